"""The topic `representatives` beside the fold: what the index tells is clean wherever it stands,
and each damage is found."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from stream_dedup.ground.document import Message
from stream_dedup.ground.plan import PLANS, parse
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.log.representatives import (
    PROGRESS_KEY,
    Progress,
    encode_key,
    encode_progress,
    encode_value,
)
from stream_dedup.proof.findings import Findings, Violation
from stream_dedup.proof.fold import Fold
from stream_dedup.proof.outline import Outline
from stream_dedup.proof.representatives import AuditedRepresentatives
from stream_dedup.proof.scan import PlainScan
from tests.index.logs import (
    Doc,
    RandomLog,
    append_time,
    batch,
    declare,
    doubtful_positions,
    forget,
    read,
)
from tests.tiers import few

TOPIC, LOG, TOPIC_ID = "representatives", "cluster/log", "7" * 32
# Two kept documents; the first gets copies in the second record and one more in the third, which
# forgets the other as well.
LOG_RECORDS = [
    declare(PLANS["classic"], count_copies=True),
    batch([Doc(0, 0, 0, b"a" * 16, 7, id=b"a"), Doc(0, 1, 1, b"b" * 16, 2**64 - 7, id=b"b")]),
    batch(
        [Doc(1, at, at, b"a" * 16, 7, id=b"c%d" % at) for at in range(3)]
        + [Doc(1, 3, 3, b"b" * 16, 7, id=b"d")]
    ),
    batch([Doc(0, 2, 2, b"a" * 16, 7, features=200, id=b"e")]),
    forget(b"b"),
]


class Topic:
    """The topic as an index writes it, from what its twin in memory owes."""

    def __init__(self, log: Sequence[bytes]) -> None:
        self.log = log
        self.records: list[Message] = []
        self.written_below = self.told_at = self.gone_below = 0
        self.begin({})

    def begin(self, volume: dict[bytes, bytes]) -> None:
        """Let an index on this volume write on: the same one that is opened anew, or another that
        was behind."""
        self.volume = volume
        self.index = LogIndex(MemoryStore(volume), publishes=True)
        self.index.bind(LOG)

    def follow(self, end: int) -> Topic:
        for offset in range(self.index.applied, end):
            self.index.apply([(offset, append_time(offset), self.log[offset])])
        return self

    def tell(self, most: int | None = None) -> Topic:
        """Write what windows left behind, and what changed since the last whole round, or only so
        much of that."""
        outbox, applied = self.index.outbox, self.index.applied
        assert outbox is not None
        end = outbox.first_standing
        rows = outbox.rows.scan(self.gone_below, None, 1 << 20)
        gone = [
            one.number
            for one in rows
            if one.number < end and not one.null_is_written(self.written_below)
        ]
        numbers = [
            one.number
            for one in rows
            if one.number >= end and one.changed_below > self.written_below
        ]
        told = outbox.values(gone + numbers[:most])
        for _, position, value in told:
            self.put(encode_key(position), None if value is None else encode_value(value))
        outbox.forget([number for number, _, value in told if value is None])
        self.written_below, self.told_at = applied if most is None else self.written_below, applied
        self.gone_below = max(self.gone_below, end)
        return self.put(
            PROGRESS_KEY,
            encode_progress(Progress(LOG, TOPIC_ID, self.written_below, applied, self.gone_below)),
        )

    def put(self, key: bytes, value: bytes | None) -> Topic:
        self.records.append(Message(TOPIC, 0, len(self.records), key, value, 0, []))
        return self

    def audit(self, end: int | None = None) -> tuple[list[Violation], AuditedRepresentatives]:
        """Hold it against the log up to there."""
        outline, findings = Outline(Fold(PlainScan())), Findings(10)
        audited = AuditedRepresentatives(TOPIC, LOG, TOPIC_ID)
        for one in self.records:
            audited.take_message(one)
        for offset, raw in enumerate(self.log[:end]):
            audited.before(outline.verdicts, offset)
            outline.fold(offset, append_time(offset), read(raw))
        audited.close(outline, findings)
        return findings.shown, audited


@pytest.mark.parametrize("seed", few([*range(20), int(os.environ["TEST_SEED"])], 3))
def test_what_an_index_tells_is_clean_wherever_it_stands(seed: int) -> None:
    """Over redelivery, rewinds, orders, windows and changed plans; a round half written, and a log
    that has gone on since.

    By one index that is opened anew now and then, or by another that begins on an empty volume and
    takes over.
    """
    for tried in range(
        seed, seed + 20
    ):  # what leads to nothing yet is held against the log, and then another one
        print(f"seed {tried}")
        chance = random.Random(tried)
        kind = chance.choice(["64:3:3:12", "64:4:0:3"])
        log = RandomLog(tried, parse(kind), plan_changes=True, windows=tried % 2 == 0).records(120)
        topic, doubtful, compared = Topic(log), doubtful_positions(map(read, log)), 0
        while topic.index.applied < len(log):
            if chance.random() < 0.2:
                topic.index.close()
                topic.begin(chance.choice([topic.volume, {}]))
            least = max(topic.index.applied, topic.told_at)
            topic.follow(min(len(log), least + chance.randrange(12)))
            topic.tell(None if chance.random() < 0.8 else chance.randrange(6))
            if chance.random() < 0.3 or topic.index.applied == len(log):
                found, audited = topic.audit(chance.choice([None, topic.index.applied]))
                compared += audited.compared
                assert [one for one in found if one.sentence.split()[2] not in doubtful] == []
        if compared > 0:
            break

    assert compared > 0


def test_an_empty_topic_is_clean() -> None:
    """Where no index is to write it, it is there all the same."""
    found, audited = Topic(LOG_RECORDS).audit()

    assert (found, audited.compared) == ([], 0)


def test_what_changed_lately_may_be_there_or_not() -> None:
    """Between what is written and how far it was told; what changed below is not excused."""
    for most in (0, 1, 2):
        topic = Topic(LOG_RECORDS).follow(3).tell()
        assert [topic.audit(end)[0] for end in (3, 4, 5)] == [[], [], []], (
            "the log went on, and the topic says how far it is"
        )
        found, audited = topic.follow(5).tell(most).audit()
        assert found == []
        assert audited.on_their_way == 2 - most
        topic.put(PROGRESS_KEY, encode_progress(Progress(LOG, TOPIC_ID, 5, 5)))
        found, audited = topic.audit()
        assert [one.where for one in found] == ["representatives-0@0", "representatives-0@1"][most:]
        assert audited.on_their_way == 0


def test_what_came_and_went_lately_may_still_be_there() -> None:
    """Told in a round that was not whole, and forgotten before the next."""
    topic = Topic(LOG_RECORDS).follow(2).tell().follow(3).tell(2).follow(5).tell(0)
    assert topic.written_below == 2

    found, audited = topic.audit()

    assert found == []
    assert audited.on_their_way == 2


def test_each_damage_is_found_where_it_is() -> None:
    """Another number, a key that should be there, one that should not, a tombstone, and values that
    nobody of ours wrote."""
    topic = Topic(LOG_RECORDS[:4]).follow(4).tell()
    first = topic.records[0]
    assert first.key == b"documents-0@0"
    assert first.value is not None
    clean = list(topic.records)
    for key, value, says in (
        (first.key, first.value.replace(b'"copies":4', b'"copies":5'), "'copies': 5"),
        (first.key, None, "Of documents-0@0 the topic says nothing, and the log leads to {'best'"),
        (b"documents-9@9", first.value, "and the log leads to nothing"),
        (first.key, b"\xff{", "the topic says b'\\xff{'"),
        (b"\xff", b"{}", "the topic says {}"),
    ):
        topic.records = list(clean)
        topic.put(key, value)
        (one,) = topic.audit()[0]
        assert (one.kind, one.where) == ("published", "representatives-0@3")
        assert says in one.sentence
    topic.records = clean[1:]
    (one,) = topic.audit()[0]
    assert (one.where, "Of documents-0@0 the topic says nothing" in one.sentence) == (TOPIC, True)


def test_a_topic_of_another_log_is_told_once() -> None:
    """Or one whose progress nobody of ours wrote; and one that was created anew owes everything."""
    topic = Topic(LOG_RECORDS).follow(5).tell()
    for value, says in (
        (
            encode_progress(Progress("other", TOPIC_ID, 5, 5)),
            "tells of the log 'other', and this is 'cluster/log'",
        ),
        (b"{", "which no index wrote"),
    ):
        topic.put(PROGRESS_KEY, value)
        (one,) = topic.audit()[0]
        assert (one.where, says in one.sentence) == (
            f"representatives-0@{len(topic.records) - 1}",
            True,
        )
    topic.records = []
    topic.put(PROGRESS_KEY, encode_progress(Progress(LOG, "8" * 32, 5, 5)))
    found, audited = topic.audit()
    assert (found, audited.on_their_way) == ([], 1)
