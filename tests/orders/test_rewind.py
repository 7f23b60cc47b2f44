"""Offsets that a rewind may write, and the watermarks of the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import InputError
from stream_dedup.log import epochs
from stream_dedup.log.records import Batch, Control, Source
from stream_dedup.orders import rewind
from stream_dedup.orders.rewind import LogWatermarks, OffsetChange, RewindTarget
from tests.log.test_records import make_batch

TOPIC = "crawl.documents"
TOPIC_ID = bytes(range(16))


def batch(*pairs: tuple[int, int, int], recipe: str = "r", topic_id: bytes = TOPIC_ID) -> Batch:
    """Return a batch of one document that states (partition, epoch, committed offset) of some
    partitions."""
    sources = tuple(
        Source(TOPIC, topic_id, part, epoch, committed) for part, epoch, committed in pairs
    )
    return replace(make_batch(1, size=0), recipe=recipe, sources=sources)


def marks(*batches: Batch) -> LogWatermarks:
    """Return the watermarks of a log with these batches."""
    found = LogWatermarks(TOPIC_ID, TOPIC)
    found.fold(Control("declare", {"recipe": "r", "group": "g"}))
    for log_batch in batches:
        found.fold(log_batch)
    return found


def cluster(
    committed: dict[int, tuple[int, str | None]], low: int = 0, high: int = 100
) -> RewindTarget:
    """Return a topic with three partitions that have the same bounds."""
    return RewindTarget(TOPIC, 3, committed, dict.fromkeys(range(3), (low, high)))


@pytest.mark.parametrize(
    ("texts", "topic", "found"),
    [
        (["3@8812"], TOPIC, {3: 8812}),
        (["crawl.documents-3@8812"], TOPIC, {3: 8812}),
        (["03@08812"], TOPIC, {3: 8812}),
        (["a-7-documents-3@1", "4@2"], "a-7-documents", {3: 1, 4: 2}),
    ],
)
def test_a_position_is_written_with_or_without_the_topic(
    texts: list[str], topic: str, found: dict[int, int]
) -> None:
    """The last hyphen ends the topic, which may contain hyphens and numbers."""
    assert rewind.parse(texts, topic) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "@5",
        "3@",
        "3@-1",
        "-3@1",
        "3@1.5",
        "3@5 ",
        "3@５",
        "3@5\n",
        "@",
        "3@" + "9" * 20,
        "documents3@5",
        "\x1b[2J@1",
    ],
)
def test_an_invalid_position_is_refused_in_printable_text(text: str) -> None:
    """The sentence shows what was written, without anything that a terminal takes for an order, and
    the form."""
    with pytest.raises(
        InputError, match=r"is not PARTITION@OFFSET, such as 3@8812 or crawl\.documents-3@8812"
    ) as caught:
        rewind.parse([text], TOPIC)

    assert str(caught.value).isprintable()


def test_all_wrong_positions_are_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        rewind.parse(
            ["1@2", "documents-1@2", "crawl.documents-1@3", "x", "other.documents-1@2"], TOPIC
        )

    assert str(caught.value).splitlines() == [
        (
            "'documents-1@2' is not a position in the source topic: workers read only "
            "crawl.documents."
        ),
        "Partition 1 is given twice; give each partition once.",
        "'x' is not PARTITION@OFFSET, such as 3@8812 or crawl.documents-3@8812.",
        (
            "'other.documents-1@2' is not a position in the source topic: workers read only "
            "crawl.documents."
        ),
    ]


# Columns: committed offset and epoch (- for none), the partition's first offset and end, the log's
# watermark (epoch/offset), the requested offset, the new epoch or no, and the expected message. The
# log is read only if no epoch is committed.
ANSWERS = """
60 4   10 100 -      10  5
60 4   10 100 -      40  5
60 4   10 100 -      59  5
60 4   10 100 -      60  4  This is already the committed offset; nothing changes.
60 -    0 100 -      60  1  from 0 to 59 were delivered already; if not, they are lost. crawl.documents-1@0 skips none.
60 -    0 100 2/41   60  3  from 41 to 59 were delivered already; if not, they are lost. crawl.documents-1@41 skips none.
5  4   10 100 -      10  5  The topic lost the records from 5 to 9 before they were judged.
60 4    0   7 -       7  5
-  -   10 100 -      10  1
-  -   10 100 -      40  1  from 10 to 39
-  -    0 100 0/50   50  1
-  -    0 100 3/70   70  4
60 4   10 100 -       9  no is below 10, the first offset that the topic still contains
60 4   10 100 -      61  no is above the committed offset 60: the documents between would never be judged
60 -   10 100 -       9  no is below 10, the first offset that the topic still contains
60 -   10 100 -      61  no is above the committed offset 60: the documents between would never be judged
-  -   10 100 -       9  no is below 10, the first offset that the topic still contains
-  -   10 100 -     101  no is above 100, the partition's end
5  4   10 100 -       9  no is below 10, the first offset that the topic still contains
5  4   10 100 -      11  no is above the committed offset 5: the documents between would never be judged
60 4    0   7 -       8  no is above 7, the partition's end. The committed offset is 60, so the topic was created again
"""


@pytest.mark.parametrize("row", ANSWERS.strip().splitlines())
def test_an_offset_gets_its_epoch_or_is_refused(row: str) -> None:
    """Nothing that would lose documents, and nothing where a worker could not begin; what is in
    doubt is warned of."""
    offset, epoch, low, high, mark, asked, new, *messages = row.split(None, 7)
    known = None if epoch == "-" else int(epoch)
    committed = (
        {}
        if offset == "-"
        else {1: (int(offset), "" if known is None else epochs.to_metadata(known))}
    )
    assert rewind.needs_log([1], committed) == (known is None)
    log = (
        None
        if known is not None
        else marks(
            *(batch((1, *map(int, change.split("/")))) for change in [mark] if change != "-")
        )
    )

    changes, refusals = rewind.plan({1: int(asked)}, cluster(committed, int(low), int(high)), log)

    if new == "no":
        assert changes == []
        assert [refusal.split(" ")[0] for refusal in refusals] == [f"{TOPIC}-1@{asked}"]
        assert messages[0] in refusals[0]
        return
    old = None if offset == "-" else int(offset)
    assert refusals == []
    assert [replace(change, warning=None) for change in changes] == [
        OffsetChange(1, old, known, int(asked), int(new))
    ]
    assert changes[0].is_change == ((int(asked), int(new)) != (old, known))
    assert messages[0] in str(changes[0].warning) if messages else changes[0].warning is None


def test_a_partition_that_does_not_exist_is_refused_beside_the_others() -> None:
    """Each position that cannot be written has its sentence; the caller writes none."""
    committed = {part: (60, epochs.to_metadata(0)) for part in range(3)}

    _, refusals = rewind.plan({0: 5, 1: 70, 3: 0}, cluster(committed), None)

    assert [refusal.split(" ", 1)[0] for refusal in refusals] == [f"{TOPIC}-1@70", f"{TOPIC}-3"]


@pytest.mark.parametrize(
    "metadata", ["", None, "somebody else's", "stream-dedup epoch=", "stream-dedup epoch=4 "]
)
def test_a_lost_epoch_comes_from_the_log(metadata: str | None) -> None:
    """The new epoch is above the highest epoch anywhere in the log."""
    committed = {1: (60, metadata)}
    log = marks(batch((1, 0, 50)), batch((0, 9, 3), (1, 6, 20)), batch((1, 5, 55)))
    assert rewind.needs_log([1], committed)

    changes, refusals = rewind.plan({1: 20}, cluster(committed), log)

    assert (changes, refusals) == ([OffsetChange(1, 60, None, 20, 7)], [])


def test_a_partition_may_be_set_alone() -> None:
    """One of those whose offsets vanished, because a worker refuses what was begun and has no
    offset; and a new one."""
    log, committed = marks(batch((0, 0, 50), (1, 3, 70))), {0: (50, epochs.to_metadata(1))}

    assert rewind.plan({1: 70}, cluster(committed), log) == (
        [OffsetChange(1, None, None, 70, 4)],
        [],
    )
    assert rewind.plan({2: 0}, cluster(committed), log) == ([OffsetChange(2, None, None, 0, 1)], [])


def test_watermarks_equal_those_of_the_index() -> None:
    """Pairs compare epoch first; another topic of the name, another recipe, and what precedes the
    declaration count nothing."""
    early = LogWatermarks(TOPIC_ID)
    early.fold(batch((0, 7, 7)))
    log = marks(
        batch((0, 1, 90), (1, 0, 0)),
        batch((0, 2, 10)),
        batch((0, 1, 95)),
        batch((0, 8, 8), recipe="another"),
        batch((0, 9, 9), topic_id=bytes(16)),
    )
    log.fold(Control("declare", {"recipe": "another", "group": "another"}))

    assert early.by_partition == {}
    assert log.by_partition == {0: (2, 10), 1: (0, 0)}
    assert log.group == "g"


def output(position: str) -> Message:
    headers = [("dedup.position", b"elsewhere-1@9999"), ("dedup.position", position.encode())]
    return Message("unique", 1, 0, None, b"", 1, headers)


def test_outputs_prove_the_highest_emitted_position() -> None:
    """A released document names an old one; other topics, other partitions and what is no position
    prove nothing."""
    found = [output(f"{TOPIC}-1@{offset}") for offset in (17, 18, 3)]
    others = [
        output(f"{TOPIC}-2@90"),
        output("other.documents-1@90"),
        output("nonsense"),
        output(f"{TOPIC}-1@"),
    ]

    assert rewind.find_proven_end([*others, *found, *others], TOPIC, 1) == 19
    assert rewind.find_proven_end(others, TOPIC, 1) is None


def test_lost_offsets_are_restored_after_the_proven_end() -> None:
    """By the highest of three: the outputs, what was confirmed to the log, the first record held.
    What is there stays."""
    log = marks(batch((0, 2, 40)), batch((1, 0, 40)))
    committed = {2: (50, epochs.to_metadata(1))}
    target = cluster(committed, low=10)

    assert rewind.find_restored_offsets(target, log, {0: 60, 1: 30, 2: 99}) == {0: 60, 1: 40}
    assert rewind.find_restored_offsets(cluster({0: (70, "")}, low=10), marks(), {}) == {
        0: 10,
        1: 10,
        2: 10,
    }
    changes, refusals = rewind.plan({0: 60, 1: 40}, target, log, {0: 60, 1: 30})
    assert refusals == []
    assert changes == [OffsetChange(0, None, None, 60, 3), OffsetChange(1, None, None, 40, 1)]
    (doubted,), _ = rewind.plan({0: 61}, target, log, {0: 60})
    assert doubted.warning is not None
    assert f"{TOPIC}-0@60 skips none" in doubted.warning


def test_outputs_of_a_deleted_topic_prove_nothing() -> None:
    """Their positions are of other documents; the log knows topics by id."""
    log = marks(batch((0, 5, 900), topic_id=bytes(16)), batch((0, 0, 20)))

    assert log.is_recreated
    assert rewind.find_restored_offsets(cluster({}), log, {0: 95}) == {0: 20, 1: 0, 2: 0}
    assert not marks(batch((0, 0, 20))).is_recreated
