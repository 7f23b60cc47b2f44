"""What a rewind may write: one row per case, and the log's marks."""

from __future__ import annotations

import numpy as np
import pytest

from stream_dedup.control import rewind
from stream_dedup.control.rewind import Marks, OffsetChange, RewindTarget
from stream_dedup.ground.document import Message, Mode
from stream_dedup.ground.errors import InputError
from stream_dedup.log import epochs
from stream_dedup.log.records import Batch, Control, Source

TOPIC = "crawl.documents"
TOPIC_ID = bytes(range(16))


def batch(*pairs: tuple[int, int, int], recipe: str = "r", topic_id: bytes = TOPIC_ID) -> Batch:
    """Return a batch of one document that states (partition, epoch, committed offset) of some partitions."""
    sources = tuple(Source(TOPIC, topic_id, part, epoch, committed) for part, epoch, committed in pairs)
    return Batch(
        recipe,
        Mode.ENFORCE,
        bytes(16),
        1,
        sources,
        np.zeros(1, np.uint16),
        np.zeros(1, np.int64),
        np.zeros(1, np.uint64),
        np.zeros((1, 16), np.uint8),
        np.zeros((1, 2), np.uint64),
        np.zeros((1, 0), np.uint8),
        np.zeros(1, np.uint32),
        np.zeros(1, np.uint64),
        np.zeros(1, np.int64),
        (b"",),
    )


def marks(*batches: Batch) -> Marks:
    """Return what a log of these batches holds."""
    found = Marks(TOPIC_ID, TOPIC)
    found.fold(Control("declare", {"recipe": "r", "group": "g"}))
    for one in batches:
        found.fold(one)
    return found


def cluster(committed: dict[int, tuple[int, str | None]], low: int = 0, high: int = 100) -> RewindTarget:
    """Return a topic of three partitions with the same bounds."""
    return RewindTarget(TOPIC, 3, committed, dict.fromkeys(range(3), (low, high)))


@pytest.mark.parametrize("text", ["3@8812", "crawl.documents-3@8812", "03@08812"])
def test_a_position_is_written_with_or_without_the_topic(text: str) -> None:
    """The source topic may be left out, or be written as it is named."""
    assert rewind.parse([text], TOPIC) == {3: 8812}


def test_a_topic_may_hold_hyphens_and_numbers() -> None:
    """The last hyphen parts the topic from the partition."""
    assert rewind.parse(["a-7-documents-3@1", "4@2"], "a-7-documents") == {3: 1, 4: 2}


@pytest.mark.parametrize(
    "text",
    ["", "3", "@5", "3@", "3@-1", "-3@1", "3@1.5", "3@5 ", "3@５", "3@5\n", "@", "3@" + "9" * 20, "documents3@5", "\x1b[2J@1"],
)
def test_what_is_no_position_is_refused_readably(text: str) -> None:
    """The sentence shows what was written, without anything that a terminal takes for an order, and the form."""
    with pytest.raises(InputError, match=r"is not PARTITION@OFFSET, such as 3@8812 or crawl\.documents-3@8812") as caught:
        rewind.parse([text], TOPIC)

    assert str(caught.value).isprintable()


def test_all_wrong_positions_are_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        rewind.parse(["1@2", "documents-1@2", "crawl.documents-1@3", "x", "other.documents-1@2"], TOPIC)

    assert str(caught.value).splitlines() == [
        "'documents-1@2' does not name the source topic: only crawl.documents is read by the workers.",
        "Partition 1 is named twice.",
        "'x' is not PARTITION@OFFSET, such as 3@8812 or crawl.documents-3@8812.",
        "'other.documents-1@2' does not name the source topic: only crawl.documents is read by the workers.",
    ]


@pytest.mark.parametrize("offset", [10, 40, 59])
def test_the_epoch_rises_by_one(offset: int) -> None:
    """From the first offset held up to the committed one, without a look at the log."""
    committed = {1: (60, epochs.to_metadata(4))}
    assert not rewind.needs_log([1], committed)

    changes, refusals = rewind.plan({1: offset}, cluster(committed, low=10), None)

    assert refusals == []
    assert changes == [OffsetChange(1, 60, 4, offset, 5)]


def test_where_the_committed_offset_is_asked_for_the_epoch_stays() -> None:
    """Under a higher epoch what was judged and not yet committed would be judged anew, and its copies counted twice."""
    committed = {1: (60, epochs.to_metadata(4)), 2: (60, "")}

    changes, refusals = rewind.plan({1: 60, 2: 60}, cluster(committed), marks())

    assert refusals == []
    assert [(one.partition, one.new_offset, one.new_epoch, one.is_one) for one in changes] == [
        (1, 60, 4, False),
        (2, 60, 1, True),
    ]
    assert "nothing changes" in (changes[0].warning or "")


# what is committed (offset, epoch; - for none), first offset held, end, offset asked for: part of the refusal
REFUSALS = """
60 4   10 100    9    lies below 10, the first offset that the topic still holds
60 4   10 100   61    lies above the committed offset 60: the documents between would never be judged
60 -   10 100    9    lies below 10, the first offset that the topic still holds
60 -   10 100   61    lies above the committed offset 60: the documents between would never be judged
-  -   10 100    9    lies below 10, the first offset that the topic still holds
-  -   10 100  101    lies above 100, the partition's end
5  4   10 100    9    lies below 10, the first offset that the topic still holds
5  4   10 100   11    lies above the committed offset 5: the documents between would never be judged
60 4    0   7    8    lies above 7, the partition's end, though the committed offset is 60: the topic was created again
"""


@pytest.mark.parametrize("row", REFUSALS.strip().splitlines())
def test_an_offset_outside_is_refused(row: str) -> None:
    """Nothing that would lose documents, and nothing where a worker could not begin."""
    offset, epoch, low, high, asked, sentence = row.split(None, 5)
    committed = {} if offset == "-" else {1: (int(offset), "" if epoch == "-" else epochs.to_metadata(int(epoch)))}

    changes, refusals = rewind.plan({1: int(asked)}, cluster(committed, int(low), int(high)), marks())

    assert changes == []
    assert len(refusals) == 1
    assert refusals[0].startswith(f"{TOPIC}-1@{asked} ")
    assert sentence in refusals[0]


def test_a_partition_that_does_not_exist_is_refused_beside_the_others() -> None:
    """Each position that cannot be written has its sentence; the caller writes none."""
    committed = {part: (60, epochs.to_metadata(0)) for part in range(3)}

    _, refusals = rewind.plan({0: 5, 1: 70, 3: 0}, cluster(committed), None)

    assert [one.split(" ", 1)[0] for one in refusals] == [f"{TOPIC}-1@70", f"{TOPIC}-3"]


def test_what_the_topic_lost_may_be_passed() -> None:
    """A committed offset that retention has overtaken may move up to the first record held, and the loss is said."""
    changes, refusals = rewind.plan({1: 10}, cluster({1: (5, epochs.to_metadata(4))}, low=10), None)

    assert refusals == []
    assert changes == [OffsetChange(1, 5, 4, 10, 5, "The topic lost the records from 5 to 9 before they were judged.")]


def test_a_topic_created_again_begins_at_its_own_offsets() -> None:
    """A committed offset beyond the end is of the topic before; any offset that the new one has may be written."""
    changes, refusals = rewind.plan({1: 7}, cluster({1: (60, epochs.to_metadata(4))}, high=7), None)

    assert (changes, refusals) == ([OffsetChange(1, 60, 4, 7, 5)], [])


@pytest.mark.parametrize("metadata", ["", None, "somebody else's", "stream-dedup epoch=", "stream-dedup epoch=4 "])
def test_a_lost_epoch_comes_from_the_log(metadata: str | None) -> None:
    """The new epoch is above the highest in the log, wherever in the log that stands."""
    committed = {1: (60, metadata)}
    log = marks(batch((1, 0, 50)), batch((0, 9, 3), (1, 6, 20)), batch((1, 5, 55)))
    assert rewind.needs_log([1], committed)

    changes, refusals = rewind.plan({1: 20}, cluster(committed), log)

    assert (changes, refusals) == ([OffsetChange(1, 60, None, 20, 7)], [])


def test_an_offset_that_nobody_vouches_for_is_warned_of() -> None:
    """Without an epoch the committed offset may have been moved ahead by anybody; the log knows how far is certain."""
    log = marks(batch((1, 2, 30)), batch((1, 2, 41)))

    (change,), _ = rewind.plan({1: 60}, cluster({1: (60, "")}), log)

    assert change.new_epoch == 3
    assert change.warning == (
        "Nothing here tells whether the documents from 41 to 59 have left already; if not, they are lost. "
        "crawl.documents-1@41 is sure to skip none."
    )


def test_before_the_first_start_any_offset_may_be_chosen() -> None:
    """Without a commit and without documents in the log a partition begins wherever the topic has records; others too."""
    changes, refusals = rewind.plan({1: 10, 2: 40}, cluster({}, low=10), marks())

    assert refusals == []
    assert changes[0] == OffsetChange(1, None, None, 10, 1)
    assert (changes[1].new_offset, changes[1].new_epoch) == (40, 1)
    assert "from 10 to 39" in str(changes[1].warning)


def test_vanished_offsets_may_be_restored_one_by_one() -> None:
    """What is left out is not read meanwhile: a worker refuses a partition that was begun and has no offset."""
    log = marks(batch((0, 0, 50), (1, 3, 70)))

    assert rewind.plan({0: 50}, cluster({}), log) == ([OffsetChange(0, None, None, 50, 1)], [])
    assert rewind.plan({1: 70}, cluster({0: (50, epochs.to_metadata(1))}), log) == ([OffsetChange(1, None, None, 70, 4)], [])


def test_a_new_partition_is_no_vanished_one() -> None:
    """A partition without a commit that the log does not know may be set alone, and left out alone."""
    committed = {0: (60, epochs.to_metadata(0))}

    changes, refusals = rewind.plan({2: 0}, cluster(committed), marks(batch((0, 0, 50))))

    assert (changes, refusals) == ([OffsetChange(2, None, None, 0, 1)], [])


def test_marks_are_those_of_the_index() -> None:
    """Pairs compare epoch first; another topic of the name, another recipe, and what precedes the declaration count nothing."""
    early = Marks(TOPIC_ID)
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


def test_outputs_prove_the_highest_position_that_left() -> None:
    """A released document names an old one; other topics, other partitions and what is no position prove nothing."""
    found = [output(f"{TOPIC}-1@{offset}") for offset in (17, 18, 3)]
    others = [output(f"{TOPIC}-2@90"), output("other.documents-1@90"), output("nonsense"), output(f"{TOPIC}-1@")]

    assert rewind.left_up_to([*others, *found, *others], TOPIC, 1) == 19
    assert rewind.left_up_to(others, TOPIC, 1) is None


def test_lost_offsets_are_restored_behind_what_is_proven() -> None:
    """By the highest of three: the outputs, what was confirmed to the log, the first record held. What is there stays."""
    log = marks(batch((0, 2, 40)), batch((1, 0, 40)))
    held = {2: (50, epochs.to_metadata(1))}
    target = cluster(held, low=10)

    assert rewind.restored(target, log, {0: 60, 1: 30, 2: 99}) == {0: 60, 1: 40}
    assert rewind.restored(cluster({0: (70, "")}, low=10), marks(), {}) == {0: 10, 1: 10, 2: 10}
    changes, refusals = rewind.plan({0: 60, 1: 40}, target, log, {0: 60, 1: 30})
    assert refusals == []
    assert changes == [OffsetChange(0, None, None, 60, 3), OffsetChange(1, None, None, 40, 1)]
    (doubted,), _ = rewind.plan({0: 61}, target, log, {0: 60})
    assert doubted.warning is not None
    assert f"{TOPIC}-0@60 is sure to skip none" in doubted.warning


def test_outputs_of_an_earlier_topic_of_that_name_prove_nothing() -> None:
    """Their positions are of other documents; the log knows topics by id."""
    log = marks(batch((0, 5, 900), topic_id=bytes(16)), batch((0, 0, 20)))

    assert log.is_made_anew
    assert rewind.restored(cluster({}), log, {0: 95}) == {0: 20, 1: 0, 2: 0}
    assert not marks(batch((0, 0, 20))).is_made_anew
