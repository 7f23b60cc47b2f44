"""A position names the topic that it was printed with, also after the source of this filter was given another name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stream_dedup.cli import explain
from stream_dedup.cli.orders import OrderDependencies, SourcePlace, source_of
from stream_dedup.control import rewind
from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import InputError
from stream_dedup.settings.settings import Settings

RENAMED = Settings.model_validate({"documents": "crawl2", "duplicates": "copies"})


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


AROUND = OrderDependencies(read_whole=_nothing, read_partition=_nothing)


@pytest.mark.parametrize("text", ["documents-11@0", "duplicates-11@3", "other-1@2"])
def test_a_position_in_another_topic_is_no_document_of_this_filter(text: str) -> None:
    """`release` looks whether it is an id, and changes nothing; `rewind` refuses it."""
    with pytest.raises(InputError, match=r"is no position in crawl2 or copies, .* Nothing was written"):
        source_of(AROUND, RENAMED, text, bytes(16), b"key")
    with pytest.raises(InputError, match="does not name the source topic: only crawl2 is read"):
        rewind.parse([text], RENAMED.topic_names.documents)


@pytest.mark.parametrize("text", ["11@3", "crawl2-11@3"])
def test_a_position_in_the_source_is_understood(text: str) -> None:
    assert source_of(AROUND, RENAMED, text, bytes(16), b"key") == SourcePlace(11, 3)


@pytest.mark.parametrize(("text", "topic"), [("documents-1@3", "documents"), ("1@3", "crawl2"), ("unique-1@3", "unique")])
def test_explain_reads_the_topic_that_a_position_names(text: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def record_at(_: object, __: object, name: str, partition: int, offset: int, ___: str) -> Message:
        asked.append((name, partition, offset))
        return Message(name, partition, offset, b"key", b"some words", None, [])

    monkeypatch.setattr(explain, "record_at", record_at)
    explain._read(RENAMED, text, takes_vectors=False)
    assert asked == [(topic, 1, 3)]
