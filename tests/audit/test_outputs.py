"""What went in beside what came out, without Kafka: each damage is found where it is, and nothing
else is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from stream_dedup.audit import content_digests, ledger
from stream_dedup.audit.findings import Findings, Kind, Violation
from stream_dedup.audit.judgements import Fold
from stream_dedup.audit.ledger import AuditLedger, Span
from stream_dedup.audit.log_contents import LogOutline
from stream_dedup.audit.scan import PlainScan
from stream_dedup.audit.verdicts import AuditedOutputs
from stream_dedup.domain.document import DeadLetter, Headers, LogPlace, Message, Position, Reason
from stream_dedup.domain.plan import PLANS
from stream_dedup.log import headers
from stream_dedup.log.dead_letters import split_dead_letter
from stream_dedup.log.headers import of_verdict
from stream_dedup.log.records import decode
from stream_dedup.log.schema import Judgement
from tests.index.logs import (
    APPEND_MS,
    RECIPE,
    TOPIC,
    TOPIC_ID,
    Doc,
    batch,
    declare,
    forget,
    release,
    seed,
)

NAMES = ("unique", "duplicates", "dlq.documents")
FAR, NEAR = 0x0123456789ABCDEF_FEDCBA9876543210, 0x0123456789ABCDEF_FEDCBA9876543217
DOCS = [
    Doc(0, 0, 1, b"a" * 16, FAR, id=b"a"),
    Doc(0, 1, 2, b"b" * 16, NEAR, id=b"b"),
    Doc(0, 3, 3, b"a" * 16, FAR, id=b"c"),
    Doc(0, 4, 4, b"d" * 16, 2**128 - 1, id=b"d"),
]


LOG = [declare(PLANS["blocks"]), batch(DOCS[:2]), batch(DOCS[2:], {0: (0, 2)})]


def source_at(offset: int) -> Position:
    return Position(TOPIC, b"", 0, offset)


@dataclass
class Scene:
    """Six records of one partition: 2 is empty, 5 cannot be read, the others are judged."""

    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    scan: bool = True

    def __post_init__(self) -> None:
        self.outline = LogOutline(Fold(PlainScan() if self.scan else None))
        log = LOG + [batch(DOCS, {0: mark}) for mark in self.epochs.values()]
        for offset, raw in enumerate(log):
            self.outline.add_record(offset, APPEND_MS + 1000 * offset, decode(raw))
        self.source = [
            Message(TOPIC, 0, at, b"k%d" % at, b"v%d" % at, 1000 + at, [("n", b"1")])
            for at in range(6)
        ]
        self.source[2] = self.source[2]._replace(headers=[("dedup.verdict", b"forged")])

    def left(self) -> list[Message]:
        places = [(1, 0), (1, 1), None, (2, 0), (2, 1)]
        found, ends, fold = [], dict.fromkeys(NAMES, 0), Fold(PlainScan())
        judged = [fold.judge(at, 0, decode(raw)) for at, raw in enumerate(LOG)]
        for at, place in enumerate(places):
            if place is None:
                own, topic = (
                    headers.of_verdict(source_at(at), RECIPE, None, Reason.EMPTY),
                    NAMES[0],
                )
            else:
                judgement = (judged[place[0]] or ())[place[1]]
                known = self.outline.document(LogPlace(*place))
                assert known is not None
                own, topic = (
                    of_verdict(source_at(at), RECIPE, known.hex, judgement),
                    NAMES[judgement.of is not None],
                )
            found.append(self._output(at, topic, ends, own))
        letter = headers.of_dead_letter(
            DeadLetter("decode", "Bad", "why"), Position(TOPIC, b"", 0, 5), "group", 1005
        )
        found.append(self._output(5, NAMES[2], ends, letter))
        return found

    def _output(self, at: int, topic: str, ends: dict[str, int], own: Headers) -> Message:
        one, ends[topic] = self.source[at], ends[topic] + 1
        return Message(
            topic,
            0,
            ends[topic] - 1,
            one.key,
            one.value,
            one.timestamp_ms,
            headers.escape_source_headers(one.headers) + own,
        )

    def audit(
        self,
        came: Iterable[Message],
        *,
        committed: int = 6,
        low: int = 0,
        lows: Mapping[str, int] | None = None,
    ) -> tuple[list[Violation], AuditLedger, AuditedOutputs]:
        """Audit these outputs, in their topics' order."""
        findings = Findings(10)
        all_lows = {(name, 0): (lows or {}).get(name, 0) for name in NAMES}
        book = AuditLedger(
            self.outline, TOPIC, TOPIC_ID, {0: Span(low, 6, committed)}, all_lows, findings
        )
        for one in self.source[low:]:
            book.add_source(one, content_digests.digest_source(one))
        outputs = AuditedOutputs(
            self.outline,
            book,
            NAMES,
            (TOPIC, TOPIC_ID),
            {0: committed},
            {0: all_lows["unique", 0]},
            findings,
        )
        for one in sorted(came, key=lambda one: NAMES.index(one.topic)):
            outputs.add_message(one)
        book.close()
        outputs.close()
        return findings.shown, book, outputs


def kinds(found: tuple[list[Violation], AuditLedger, AuditedOutputs]) -> list[str]:
    return sorted(f"{one.kind} {one.position}" for one in found[0])


@pytest.mark.parametrize("scan", [True, False])
def test_what_workers_write_is_clean(scan: bool) -> None:
    """All six come out once; the fold compares what the log judged, also where it only follows the
    log's orders."""
    scene = Scene(scan=scan)
    found, book, outputs = scene.audit(scene.left())

    assert found == []
    assert (outputs.compared, dict(book.counts)) == (4, {})
    assert outputs.reasons == {"new": 2, "near": 1, "exact": 1, "empty": 1, "dead:decode": 1}


@pytest.mark.parametrize(
    ("cut", "changed", "is_clean"),
    [
        ([], {}, True),
        ([], {"value": b""}, False),
        ([], {"key": b""}, False),
        ([(headers.ERROR_TRUNCATED, b"2")], {"value": b""}, True),
        ([(headers.ERROR_TRUNCATED, b"2")], {"key": b""}, False),
        ([(headers.ERROR_KEY_TRUNCATED, b"2")], {"key": b""}, True),
        ([(headers.ERROR_HEADERS_DROPPED, b"1")], {"headers": []}, True),
        ([], {"headers": []}, False),
    ],
)
def test_a_letter_may_lack_what_it_says(
    cut: Headers, changed: dict[str, Any], is_clean: bool
) -> None:
    """And nothing else of it may differ from its record; one whose key or headers were cut is held
    to its place."""
    scene = Scene()
    *rest, letter = scene.left()
    _, own = split_dead_letter(letter.headers)
    foreign = changed.get("headers", letter.headers[: -len(own)])
    letter = letter._replace(**changed | {"headers": [*foreign, *own, *cut]})

    assert kinds(scene.audit([*rest, letter])) == (
        [] if is_clean else ["changed dlq.documents-0@0"]
    )


@pytest.mark.parametrize("at", range(6))
def test_a_record_that_is_missing_is_lost(at: int) -> None:
    """Whatever it was; a representative is told as unemitted too, and one that is named is missed
    by its duplicate."""
    scene = Scene()
    came = scene.left()
    del came[at]

    found = scene.audit(came)

    expected = [f"lost documents-0@{at}"]
    if at in (0, 4):
        expected.append(f"unemitted documents-0@{at}")
    if at == 0:
        expected.append("representative duplicates-0@0")
    assert kinds(found) == sorted(expected)
    if at == 4:
        assert found[2].unemitted.oldest_ms == APPEND_MS + 2000


@pytest.mark.parametrize("at", range(6))
def test_a_record_that_left_twice_is_named_at_both_places(at: int) -> None:
    """With or without a place in the log; what has none can only be told to come from nowhere."""
    scene = Scene()
    came = scene.left()
    came.append(came[at]._replace(offset=99))

    found = [one for one in scene.audit(came)[0] if one.kind is not Kind.ORDER]

    assert [one.kind for one in found] == [Kind.NOWHERE if at == 2 else Kind.TWICE]
    assert found[0].position == f"{came[at].topic}-0@99"
    if at != 2:
        assert f"first at {came[at].topic}-0@{came[at].offset}" in found[0].sentence


def test_what_waits_is_not_lost() -> None:
    """Above the group's committed offset nothing is missing, and representatives there are in
    flight."""
    scene = Scene()

    found, _, outputs = scene.audit(scene.left()[:3], committed=3)

    assert found == []
    assert (outputs.in_flight.count, outputs.unemitted.count) == (1, 0)
    # A duplicate may leave before its representative, which another worker commits.
    assert (
        kinds(scene.audit([one for one in scene.left() if one.topic == "duplicates"], committed=0))
        == []
    )


def test_what_retention_removed_is_said_and_not_lost() -> None:
    """Source records that are gone are counted where they came out; outputs that are gone are not
    missed."""
    scene = Scene()
    found, book, _ = scene.audit(scene.left(), low=3)
    assert found == []
    assert book.counts[ledger.SOURCE_TRIMMED] == 3

    came = [one for one in scene.left() if not (one.topic == "unique" and one.offset < 2)]
    found, book, _ = scene.audit(came, lows={"unique": 2})
    assert found == []
    assert book.counts[ledger.OUTPUTS_TRIMMED] == 2


def test_a_rewind_explains_what_left_again() -> None:
    """What was read again in a later epoch may leave once more, and the order may go back once; but
    no more than that."""
    came = Scene().left()
    more = [came[3]._replace(offset=11), came[4]._replace(offset=12), came[2]._replace(offset=13)]
    again = [one._replace(offset=one.offset + 20) for one in (came[0], came[3], came[4])]
    rewound = Scene(epochs={3: (1, 3)})
    # In the second epoch its own place in the log decides on a duplicate.
    second = of_verdict(source_at(3), RECIPE, b"%032x" % FAR, rewound.outline.judgements[3][2])
    more[0] = more[0]._replace(headers=[("n", b"1"), *second])

    assert kinds(rewound.audit([*came, *more[:2]])) == []
    assert rewound.audit([*came, *more[:2]])[1].counts[ledger.REDELIVERED] == 2
    assert "twice unique-0@20" in kinds(rewound.audit([*came, *again]))
    assert any(one.startswith("twice") for one in kinds(Scene().audit([*came, *more[:2]])))


@pytest.mark.parametrize(
    ("at", "name", "value", "kind", "says"),
    [
        (0, "dedup.reason", b"too-short", Kind.VERDICT, "dedup.reason is 'too-short', not 'new'"),
        (
            0,
            "dedup.position",
            b"documents-0@7",
            Kind.VERDICT,
            "dedup.position is 'documents-0@7', not 'documents-0@0'",
        ),
        (1, "dedup.distance", b"2", Kind.REACH, "they differ in 3 bits"),
        (
            1,
            "dedup.of.position",
            b"documents-0@1000",
            Kind.REPRESENTATIVE,
            "the log contains no document at that position",
        ),
        (1, "dedup.of.id", b"z", Kind.VERDICT, "dedup.of.id is 'z', not 'a'"),
        (3, "dedup.of.position", b"documents-0@4", Kind.REACH, "their texts or scopes differ"),
        (0, "dedup.log", b"7/0", Kind.VERDICT, "the log contains no document there"),
        (0, "dedup.fingerprint", b"0", Kind.VERDICT, "dedup.fingerprint"),
        (0, "dedup.verdict", b"duplicate", Kind.VERDICT, "does not belong on that topic"),
        (
            5,
            "__dlq.errors.offset",
            b"x",
            Kind.NOWHERE,
            "has no headers with its source record",
        ),
        (0, "n", b"2", Kind.CHANGED, "in its key, timestamp or headers"),
        (2, "n", b"2", None, ""),
    ],
)
def test_a_wrong_header_is_named(
    at: int, name: str, value: bytes, kind: Kind | None, says: str
) -> None:
    """Each is held against the log, and the sentence says what is there and what should be."""
    scene = Scene()
    came = scene.left()
    came[at] = came[at]._replace(
        headers=[(one, value if one == name else old) for one, old in came[at].headers]
    )

    found, _, _ = scene.audit(came)

    if kind is None:
        assert found == []
    else:
        assert any(
            one.kind is kind and says in one.sentence and f"{came[at].topic}-0@" in one.position
            for one in found
        ), found


def test_records_in_another_order_are_named() -> None:
    scene = Scene()
    came = scene.left()
    came[0], came[4] = came[4]._replace(offset=0), came[0]._replace(offset=2)

    found = scene.audit([came[0], came[2], came[4], came[1], came[3], came[5]])

    assert kinds(found) == ["order unique-0@1", "order unique-0@2"]


def test_seeds_and_releases_are_exempt() -> None:
    """A seed may be named though it never left; a released document is on both outputs, once, or is
    on its way there; a rewind may bring it there instead of the command."""
    outline = LogOutline(Fold(PlainScan()))
    one, copy = Doc(0, 7, 7, b"s" * 16, FAR, id=b"s"), Doc(0, 0, 1, b"s" * 16, FAR, id=b"a")
    log = [declare(PLANS["blocks"]), seed([one]), batch([copy]), release(copy)]
    for offset, raw in enumerate(log):
        outline.add_record(offset, APPEND_MS, decode(raw))
    (judgement,) = outline.judgements[2]
    assert judgement.of is not None
    print_hex = b"%032x" % FAR
    source = Message(TOPIC, 0, 0, b"k", b"v", 1, [])
    left = source._replace(
        topic="duplicates", headers=of_verdict(source_at(0), RECIPE, print_hex, judgement)
    )
    released = source._replace(
        topic="unique",
        headers=headers.of_verdict(
            source_at(0), RECIPE, print_hex, Judgement(Reason.RELEASED, LogPlace(3, 0))
        ),
    )

    def audit(*came: Message, now_ms: int = APPEND_MS) -> tuple[list[str], int]:
        findings = Findings(9)
        book = AuditLedger(outline, TOPIC, TOPIC_ID, {0: Span(0, 1, 1)}, {}, findings)
        book.add_source(source, content_digests.digest_source(source))
        outputs = AuditedOutputs(
            outline, book, NAMES, (TOPIC, TOPIC_ID), {0: 1}, {}, findings, now_ms
        )
        for message in came:
            outputs.add_message(message)
        book.close()
        outputs.close()
        return [
            f"{found.kind} {found.position}" for found in findings.shown
        ], outputs.in_flight.count

    assert audit(left, released) == ([], 0)
    assert audit(left, released, released._replace(offset=1)) == (["twice unique-0@1"], 0)
    assert audit(left) == ([], 1)
    assert audit(left, now_ms=APPEND_MS + 3_600_000) == (["unemitted documents-0@0"], 0)
    assert audit(released) == (["lost documents-0@0"], 0)

    outline.add_record(len(log), APPEND_MS, decode(batch([copy], {0: (1, 0)})))
    (judgement,) = outline.judgements[len(log)]
    assert judgement.decided == (3, 0)
    again = source._replace(
        topic="unique", headers=of_verdict(source_at(0), RECIPE, print_hex, judgement)
    )
    assert audit(left, again, now_ms=APPEND_MS + 3_600_000) == ([], 0)


def test_what_is_read_again_without_a_verdict_is_not_twice() -> None:
    """A rewind begins where it begins, though the log has its epoch only from the first document
    that needs a verdict on."""
    scene = Scene(epochs={1: (1, 3)})
    came = scene.left()
    again = came[2]._replace(offset=9)

    assert scene.audit([*came, again])[0] == []
    assert Kind.TWICE in {one.kind for one in scene.audit([*came, came[1]._replace(offset=9)])[0]}
    silent = Scene()
    assert Kind.NOWHERE in {one.kind for one in silent.audit([*came, again])[0]}
    silent.outline.committed_epochs[TOPIC, TOPIC_ID, 0] = 1
    assert silent.audit([*came, again])[0] == []


def test_a_verdict_given_again_after_a_take_down_names_no_id() -> None:
    """The id is gone from it, and everything else stands; another id, or none without a take-down,
    is a violation."""
    scene = Scene()
    came = scene.left()
    blanked = [
        one._replace(
            headers=[(name, b"" if name == headers.OF_ID else value) for name, value in one.headers]
        )
        for one in came
    ]

    assert {one.kind for one in scene.audit(blanked)[0]} == {Kind.VERDICT}
    raw = forget(b"a")
    scene.outline.add_record(3, APPEND_MS + 9000, decode(raw))
    assert scene.audit(blanked)[0] == []
    assert scene.audit(came)[0] == []


def test_a_rewound_page_may_leave_without_its_sibling() -> None:
    """An index answers a representative again without its sibling, so only a page that the log
    answered again may lack it, and it lacks all of it."""
    for scene in (Scene(), Scene(epochs={3: (1, 0)})):
        came = scene.left()
        first, second = scene.outline.judgements[1]
        assert first.reason is Reason.NEW
        kept = first._replace(of=second.of, similarity=74)
        scene.outline.judgements[1] = (kept, second)
        known = scene.outline.document(LogPlace(1, 0))
        assert known is not None
        whole = of_verdict(source_at(0), RECIPE, known.hex, kept)
        with_sibling = [came[0]._replace(headers=[("n", b"1"), *whole]), *came[1:]]

        was_answered_again = 3 in scene.outline.judgements
        assert scene.audit(with_sibling)[0] == []
        assert (scene.audit(came)[0] == []) is was_answered_again
        part = [header for header in whole if header[0] != headers.SIBLING_ID]
        came[0] = came[0]._replace(headers=[("n", b"1"), *part])
        assert {one.kind for one in scene.audit(came)[0]} == {Kind.VERDICT}
