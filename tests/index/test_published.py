"""What the topic `representatives` is owed; that it is what the fold of any log says:
tests/proof/test_representatives.py."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stream_dedup.ground.errors import FormatError, VolumeError
from stream_dedup.ground.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.rules.outbox import Outbox
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.log.records import encode_batch
from stream_dedup.log.representatives import encode_key, encode_value
from tests.index.logs import (
    APPEND_MS,
    Doc,
    batch,
    batch_of,
    control,
    declare,
    forget,
    retract,
)

KEPT = Doc(0, 0, 0, b"k" * 16, 7, features=100, id=b"kept", time_ms=1000)


class Topic:
    """Whoever writes the topic, in as few lines as it takes."""

    def __init__(self) -> None:
        self.values: dict[str, bytes | None] = {}
        self.gone_below = self.written_below = 0

    def left_behind(self, outbox: Outbox) -> None:
        """Write what windows left behind; what an order removed was told then."""
        end = outbox.first_standing
        rows = outbox.rows.scan(self.gone_below, end, 1000)
        self._write(
            outbox, [one.number for one in rows if not one.null_is_written(self.written_below)]
        )
        self.gone_below = max(self.gone_below, end)
        outbox.forget(below=end)

    def all_since(self, outbox: Outbox, log_offset: int) -> None:
        """Write all that changed at or above a log offset."""
        self.left_behind(outbox)
        self._write(
            outbox,
            [
                one.number
                for one in outbox.rows.scan(0, None, 1000)
                if one.changed_below > log_offset
            ],
        )
        self.written_below = outbox.rows.changed_below

    def _write(self, outbox: Outbox, numbers: list[int]) -> None:
        values = outbox.values(numbers)
        for _, position, value in values:
            self.values[encode_key(position).decode()] = (
                None if value is None else encode_value(value)
            )
        outbox.forget([number for number, _, value in values if value is None])


def opened(volume: dict[bytes, bytes], *, publishes: bool = True) -> LogIndex:
    index = LogIndex(MemoryStore(volume), publishes=publishes)
    index.bind("log")
    return index


def outbox_of(index: LogIndex) -> Outbox:
    assert index.outbox is not None
    return index.outbox


def begun(volume: dict[bytes, bytes], **declared: object) -> LogIndex:
    index = opened(volume)
    more = {"count_copies": True, **declared}
    index.apply(
        [
            (0, APPEND_MS, declare(PLANS["classic"], **more)),
            (1, APPEND_MS, batch([KEPT, copy(1), copy(2)])),
        ]
    )
    return index


def copy(offset: int, features: int = 100) -> Doc:
    name = offset.to_bytes(16, "big")
    return Doc(
        0, offset, offset, name, 6, features=features, id=b"c%d" % offset, time_ms=1000 + offset
    )


def test_a_volume_that_kept_nothing_is_owed_everything() -> None:
    """Where the setting was off until now, and where it was off for a while: then what is gone gets
    its null, too."""
    volume: dict[bytes, bytes] = {}
    index, topic = begun(volume), Topic()
    topic.all_since(outbox_of(index), 0)
    index.close()
    off = opened(volume, publishes=False)
    assert off.outbox is None
    other = Doc(0, 50, 50, b"o" * 16, 0xFFFF << 40, id=b"other")
    off.apply(
        [
            (2, APPEND_MS, batch([other, Doc(0, 51, 51, b"p" * 16, 0xFFFF << 40)])),
            (3, APPEND_MS, retract(KEPT)),
        ]
    )
    assert layout.KEY_PUBLISHED not in volume
    off.close()

    topic.all_since(outbox_of(opened(volume)), 1 << 40)
    assert topic.values["documents-0@0"] is None
    assert json.loads(topic.values["documents-0@50"] or b"")["copies"] == 1

    topic.values.clear()
    index = opened(volume)
    outbox_of(index).forget(swept_below=4)
    index.apply([(4, APPEND_MS, control("plan"))])
    index.close()
    topic.all_since(outbox_of(opened(volume)), 4)
    assert topic.values == {}, "once it was told of all, only what changes is owed"


def test_what_came_and_went_in_one_write_is_owed_a_null() -> None:
    """Of a rebuilt volume: another index may have told the topic of it in between."""
    index, topic = begun({}), Topic()
    records = [
        (
            2,
            APPEND_MS,
            batch(
                [
                    Doc(0, 9, 9, b"n" * 16, 0xFFFF << 40, id=b"gone"),
                    Doc(0, 10, 10, b"m" * 16, 0xFFFF << 40),
                ]
            ),
        )
    ]
    index.apply([*records, (3, APPEND_MS, forget(b"gone"))])
    topic.all_since(outbox_of(index), 2)

    assert topic.values == {"documents-0@9": None}


def test_a_value_says_what_is_best_and_why() -> None:
    """The kept document itself until something beats it; copies and times only where they are
    counted; a wiped id is empty."""
    index, topic = begun({}), Topic()
    topic.all_since(outbox_of(index), 0)
    told = json.loads(topic.values["documents-0@0"] or b"")
    assert told["best"] == {"position": "documents-0@0", "id": "kept", "why": "first"}
    assert (told["copies"], told["first"], told["last"]) == (
        2,
        "1970-01-01T00:00:01.000Z",
        "1970-01-01T00:00:01.002Z",
    )
    index.apply([(2, APPEND_MS, batch([copy(3, 200)]))])
    topic.all_since(outbox_of(index), 2)
    best = {"position": "documents-0@3", "id": "c3", "why": "longest"}
    assert json.loads(topic.values["documents-0@0"] or b"")["best"] == best
    index.apply([(3, APPEND_MS, forget(b"c3"))])
    topic.all_since(outbox_of(index), 3)
    assert json.loads(topic.values["documents-0@0"] or b"")["best"] == best | {"id": ""}

    index, topic = begun({}, count_copies=False), Topic()
    topic.all_since(outbox_of(index), 0)
    assert topic.values == {}
    index.apply([(2, APPEND_MS, batch([copy(3, 200)]))])
    topic.all_since(outbox_of(index), 0)
    assert json.loads(topic.values["documents-0@0"] or b"") == {"best": best}


def test_of_a_topic_that_was_created_again_only_the_new_one_is_told() -> None:
    """Its positions are those of other documents."""
    index, topic = begun({}), Topic()
    again = [
        Doc(0, 0, 99, b"z" * 16, 0xFFFF << 40, id=b"new"),
        Doc(0, 1, 98, b"y" * 16, 0xFFFF << 40, id=b"newer"),
    ]
    found = batch_of(again)
    sources = tuple(replace(one, topic_id=b"another topic id") for one in found.sources)
    index.apply([(2, APPEND_MS, encode_batch(replace(found, sources=sources)))])
    topic.all_since(outbox_of(index), 0)
    index.apply([(3, APPEND_MS, retract(KEPT))])
    topic.all_since(outbox_of(index), 3)

    assert list(topic.values) == ["documents-0@0"]
    assert json.loads(topic.values["documents-0@0"] or b"")["best"]["id"] == "new"


def test_a_renewed_representative_is_never_told_gone() -> None:
    """Its entry moves, and its row with it; what windows leave behind is not it."""
    index, topic = begun({}, window={"length_ms": 16_000, "refresh": True}), Topic()
    for seconds in range(1, 60):
        index.apply([(index.applied, APPEND_MS + 2_000 * seconds, batch([copy(2 + seconds)]))])
        topic.left_behind(outbox_of(index))
    assert topic.values == {}
    assert len(outbox_of(index).rows.scan(0, None, 10)) == 1
    topic.all_since(outbox_of(index), 0)

    assert json.loads(topic.values["documents-0@0"] or b"")["copies"] == 61


def test_more_than_a_million_changes_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes the topic is told by None, and looks at the rows."""
    monkeypatch.setattr("stream_dedup.index.rules.published._FRESH_MAX", 0)
    index = begun({})
    outbox_of(index).rows.gather()
    index.apply([(2, APPEND_MS, batch([copy(3)]))])

    assert outbox_of(index).rows.fresh is None
    assert outbox_of(index).rows.scan(0, None, 10) == [(0, 3, False)]


@pytest.mark.parametrize("key", [layout.KEY_PUBLISHED, layout.published_key(0)])
def test_a_damaged_row_is_an_error(key: bytes) -> None:
    volume: dict[bytes, bytes] = {}
    begun(volume).close()
    volume[key] = volume[key][:-1]

    with pytest.raises((VolumeError, FormatError), match="give the index an empty volume"):
        outbox_of(opened(volume)).rows.scan(0, None, 1)
