"""The worker's rules, event by event, without Kafka."""

from __future__ import annotations

import pytest

from stream_dedup.domain.document import LogPlace, Message, Reason
from stream_dedup.domain.errors import ConfigurationError, DivergedError, InvariantError
from stream_dedup.log.answers import Announce, LogAnswer, Rejected
from stream_dedup.log.schema import Judgement
from stream_dedup.worker.allowance import Amount
from stream_dedup.worker.flow import Flow
from stream_dedup.worker.prepare import InFlight, Part

NONCE = bytes(range(16))
TOPIC_ID = bytes(16)


class Scene:
    """A worker with two partitions, and batches whose log records are numbered 1, 2, 3..."""

    def __init__(self, batches_max: int = 3) -> None:
        self.flow = Flow(batches_max, 5000, NONCE)
        self.flow.assigned(("documents", 0), TOPIC_ID, 100, 0)
        self.flow.assigned(("documents", 1), TOPIC_ID, 200, 4)
        self.flow.renew_group_metadata(b"stamp-1", 1)
        self.numbers = 0

    def batch(self, *positions: tuple[int, int], stamp: bytes = b"stamp-1") -> InFlight:
        """Admit a batch of one log record with these (partition, offset)."""
        self.numbers += 1
        messages = [
            Message("documents", part, offset, None, b"x", 0, []) for part, offset in positions
        ]
        keys = {("documents", part) for part, _ in positions}
        part = Part(self.numbers, b"raw", list(range(len(messages))))
        count = len(messages)
        epochs = {key: self.flow.source(key).epoch for key in keys}
        batch = InFlight(messages, [None] * count, [None] * count, [part], stamp, epochs, keys)
        self.flow.admit(batch)
        return batch

    def answer(
        self,
        number: int,
        *reasons: Reason,
        chain: bytes = b"c" * 8,
        log_offset: int | None = None,
        nonce: bytes = NONCE,
    ) -> InFlight | None:
        answer_offset = number if log_offset is None else log_offset
        judgements = tuple(
            Judgement(reason, LogPlace(answer_offset, place))
            for place, reason in enumerate(reasons)
        )
        return self.flow.answered(LogAnswer(answer_offset, nonce, number, judgements, chain))


def test_only_one_log_record_is_in_flight_until_the_first_answer() -> None:
    """After a start there is room for one batch of one log record; the first answer opens the
    window."""
    scene = Scene()
    assert scene.flow.records_wanted() == 1000

    scene.batch((0, 100))
    assert scene.flow.records_wanted() == 0

    scene.answer(1, Reason.NEW)
    assert scene.flow.records_wanted() == 5000
    scene.batch((0, 101))
    assert scene.flow.records_wanted() == 5000
    scene.batch((0, 102))
    assert scene.flow.records_wanted() == 0


def test_batches_leave_in_the_order_in_which_they_were_read() -> None:
    """A later batch that is answered first waits for the earlier one; to commit it is an alarm."""
    scene = Scene()
    first, second = scene.batch((0, 100)), scene.batch((0, 101))

    scene.answer(2, Reason.NEW)
    assert scene.flow.ready() == []
    with pytest.raises(InvariantError, match="out of order"):
        scene.flow.committed([second])

    scene.answer(1, Reason.NEW)
    assert scene.flow.ready() == [first, second]
    assert scene.flow.offsets([first, second]) == {("documents", 0): (102, 0)}


def test_no_more_is_committed_at_once_than_is_allowed() -> None:
    """The limit is in records and in bytes; a larger batch is committed alone."""
    scene = Scene()
    first, second = scene.batch((0, 100), (1, 200)), scene.batch((0, 101))
    scene.answer(1, Reason.NEW, Reason.NEW)
    scene.answer(2, Reason.NEW)
    both_bytes = first.messages.held_bytes + second.messages.held_bytes

    assert scene.flow.held_bytes == both_bytes
    assert scene.flow.ready(Amount(3, both_bytes)) == [first, second]
    assert scene.flow.ready(Amount(2, both_bytes)) == [first]
    assert scene.flow.ready(Amount(3, both_bytes - 1)) == [first]
    assert scene.flow.ready(Amount(1, 1)) == [first]


def test_batches_of_two_generations_do_not_share_a_transaction() -> None:
    scene = Scene()
    first = scene.batch((0, 100))
    scene.batch((0, 101), stamp=b"stamp-2")
    scene.answer(1, Reason.NEW)
    scene.answer(2, Reason.NEW)

    assert scene.flow.ready() == [first]


def test_committed_counts_only_what_was_confirmed() -> None:
    """A log record states the offset that a commit confirmed, with the partition's epoch."""
    scene = Scene()
    batch = scene.batch((1, 200), (1, 201))
    assert scene.flow.source(("documents", 1)).committed == 200

    scene.answer(1, Reason.NEW, Reason.NEW)
    assert scene.flow.source(("documents", 1)).committed == 200
    scene.flow.committed([batch])

    assert scene.flow.source(("documents", 1)).committed == 202
    assert scene.flow.source(("documents", 1)).epoch == 4
    assert scene.flow.in_flight == 0


def test_representatives_are_unemitted_until_they_are_committed() -> None:
    """What the index called new or too short counts, in partitions that are still ours, from its
    answer to its commit."""
    scene = Scene()
    first = scene.batch((0, 100), (0, 101), (1, 200))
    assert scene.flow.unemitted == 0

    scene.answer(1, Reason.NEW, Reason.EXACT, Reason.TOO_SHORT)
    assert scene.flow.unemitted == 2
    scene.flow.revoked([("documents", 1)])
    assert scene.flow.unemitted == 1
    scene.flow.committed([first])
    assert scene.flow.unemitted == 0


def test_an_abort_drops_all_that_is_in_flight() -> None:
    """After an abort nothing in flight is left, its answers are ignored, and all partitions are
    read again."""
    scene = Scene()
    scene.batch((0, 100))
    scene.batch((0, 101))

    assert scene.flow.drop_all() == [("documents", 0), ("documents", 1)]
    scene.answer(1, Reason.NEW)
    scene.answer(2, Reason.NEW)
    assert scene.flow.ready() == []


def test_a_revoked_partition_leaves_every_batch() -> None:
    scene = Scene()
    both = scene.batch((0, 100), (1, 200))
    only = scene.batch((1, 201))
    scene.flow.revoked([("documents", 1)])
    scene.answer(1, Reason.NEW, Reason.NEW)
    scene.answer(2, Reason.NEW)

    assert scene.flow.ready() == [both]
    assert only not in scene.flow.ready()
    assert scene.flow.offsets([both]) == {("documents", 0): (101, 0)}


def test_batches_that_survive_a_rebalance_are_stamped_anew() -> None:
    """A callback that moves nothing stamps the batches in flight with the generation read inside
    it. If a generation passed without a callback, somebody else may have owned our partitions
    meanwhile: all is dropped."""
    scene = Scene()
    batch = scene.batch((0, 100))

    assert scene.flow.renew_group_metadata(b"stamp-2", 2) is False
    assert (batch.group_metadata, scene.flow.in_flight) == (b"stamp-2", 1)
    assert scene.flow.renew_group_metadata(b"stamp-4", 4) is True
    assert scene.flow.in_flight == 0


def test_a_lost_assignment_drops_everything() -> None:
    scene = Scene()
    scene.batch((0, 100))
    scene.flow.lost([("documents", 1)])

    assert scene.flow.in_flight == 0
    assert scene.flow.owned() == [("documents", 0)]


def test_stale_drops_the_partition_and_reads_again() -> None:
    """A stale answer means that somebody committed past the record: the partition's records are
    dropped."""
    scene = Scene()
    scene.batch((0, 100), (1, 200))
    scene.answer(1, Reason.NEW, Reason.STALE)
    assert scene.flow.stale() == {("documents", 1): 200}
    assert scene.flow.ready() == []
    assert scene.flow.records_wanted() == 0

    scene.flow.resolve_stale({("documents", 1): (260, 4)})

    assert scene.flow.source(("documents", 1)).committed == 260
    assert scene.flow.offsets(scene.flow.ready()) == {("documents", 0): (101, 0)}


def test_stale_without_a_reason_is_an_alarm() -> None:
    """A record that is ours, of this epoch and not yet committed cannot be stale: stop, never
    commit past it."""
    scene = Scene()
    scene.batch((1, 200))
    scene.answer(1, Reason.STALE)

    with pytest.raises(InvariantError, match=r"documents-1@200 as stale"):
        scene.flow.resolve_stale({("documents", 1): (200, 4)})


def test_stale_of_a_partition_that_is_gone_changes_nothing() -> None:
    scene = Scene()
    scene.batch((0, 100), (1, 200))
    scene.flow.revoked([("documents", 1)])
    scene.answer(1, Reason.NEW, Reason.STALE)

    assert scene.flow.stale() == {}


@pytest.mark.parametrize("is_acknowledged_first", [True, False])
def test_an_announcement_asks_again_for_what_is_older(is_acknowledged_first: bool) -> None:
    """What lies before the offset from which a rebuilt replica answers is appended once more, once,
    in either order of acknowledgement and announcement. Then only the last answer counts, because
    in between the original may have been retracted; a replica that answers the older record all the
    same is not heard."""
    scene = Scene()
    batch = scene.batch((0, 100))
    steps = [lambda: scene.flow.appended(1, 50), lambda: scene.flow.announced(Announce(60))]
    first, second = steps if is_acknowledged_first else reversed(steps)

    assert first() == []
    assert [part.number for part in second()] == [1]
    if is_acknowledged_first:
        assert scene.flow.announced(Announce(60)) == []
        assert scene.flow.appended(1, 61) == []

    assert scene.answer(1, Reason.NEAR, log_offset=50) is None
    assert not batch.is_answered
    assert scene.answer(1, Reason.NEW, log_offset=61)
    assert batch.is_answered
    assert batch.decisions() == [Judgement(Reason.NEW, LogPlace(61, 0))]


def test_answers_to_others_and_second_answers_change_nothing() -> None:
    """Answers are matched by nonce and number; the second replica's answer is dropped."""
    scene = Scene()
    scene.batch((0, 100))
    assert scene.answer(1, nonce=bytes(16)) is None
    assert scene.answer(1, Reason.NEW) is not None
    assert scene.answer(1, Reason.NEW) is None


def test_diverged_replicas_stop_the_worker() -> None:
    """Two running digests for one log offset mean that one replica is wrong, and nobody knows
    which."""
    scene = Scene()
    scene.batch((0, 100))
    scene.answer(1, Reason.NEW, chain=b"a" * 8)

    with pytest.raises(DivergedError, match="log offset 1"):
        scene.answer(1, Reason.NEW, chain=b"b" * 8)


def test_an_answer_that_judges_something_else_stops_the_worker() -> None:
    """A record that the index cannot judge is a matter for an operator; an answer of another length
    is an alarm."""
    scene = Scene()
    scene.batch((0, 100), (0, 101))

    with pytest.raises(ConfigurationError, match=r"another recipe.*start the worker again"):
        scene.flow.answered(Rejected(1, NONCE, 1, "It is of another recipe.", b"c" * 8))
    scene.batch((0, 102), (0, 103))
    with pytest.raises(InvariantError, match="judges 1 documents"):
        scene.answer(2, Reason.NEW)


def test_failing_open_lets_only_what_is_in_the_log_leave() -> None:
    """A record whose question is in the log leaves as unique; one whose append is not confirmed
    goes on waiting."""
    scene = Scene()
    first = scene.batch((0, 100), (1, 200))
    scene.flow.appended(1, 7)
    second = scene.batch((0, 101))

    assert scene.flow.oldest_unanswered is first
    assert scene.flow.fail_open() == 2

    assert scene.flow.ready() == [first]
    assert first.local_decisions == [
        Judgement(Reason.FAIL_OPEN, LogPlace(7, 0)),
        Judgement(Reason.FAIL_OPEN, LogPlace(7, 1)),
    ]
    assert scene.flow.oldest_unanswered is second
    scene.flow.appended(2, 8)
    assert scene.flow.ready() == [first, second]


def test_an_answer_ends_failing_open() -> None:
    """The first answer, though too late for its own record, makes the records after it wait for
    theirs again."""
    scene = Scene()
    first = scene.batch((0, 100))
    scene.flow.appended(1, 7)
    scene.flow.fail_open()
    scene.answer(1, Reason.NEW)
    assert first.local_decisions == [Judgement(Reason.FAIL_OPEN, LogPlace(7, 0))]

    second = scene.batch((0, 101))
    scene.flow.appended(2, 8)

    assert scene.flow.oldest_unanswered is second
    assert scene.flow.ready() == [first]
