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
            Message(
                TOPIC, 0, offset, b"k%d" % offset, b"v%d" % offset, 1000 + offset, [("n", b"1")]
            )
            for offset in range(6)
        ]
        self.source[2] = self.source[2]._replace(headers=[("dedup.verdict", b"forged")])

    def left(self) -> list[Message]:
        places = [(1, 0), (1, 1), None, (2, 0), (2, 1)]
        found, ends, fold = [], dict.fromkeys(NAMES, 0), Fold(PlainScan())
        judged = [fold.judge(offset, 0, decode(raw)) for offset, raw in enumerate(LOG)]
        for offset, place in enumerate(places):
            if place is None:
                output_headers, topic = (
                    headers.of_verdict(source_at(offset), RECIPE, None, Reason.EMPTY),
                    NAMES[0],
                )
            else:
                judgement = (judged[place[0]] or ())[place[1]]
                known = self.outline.document(LogPlace(*place))
                assert known is not None
                output_headers, topic = (
                    of_verdict(source_at(offset), RECIPE, known.hex, judgement),
                    NAMES[judgement.of is not None],
                )
            found.append(self._output(offset, topic, ends, output_headers))
        letter = headers.of_dead_letter(
            DeadLetter("decode", "Bad", "why"), Position(TOPIC, b"", 0, 5), "group", 1005
        )
        found.append(self._output(5, NAMES[2], ends, letter))
        return found

    def _output(
        self, offset: int, topic: str, ends: dict[str, int], added_headers: Headers
    ) -> Message:
        source, ends[topic] = self.source[offset], ends[topic] + 1
        return Message(
            topic,
            0,
            ends[topic] - 1,
            source.key,
            source.value,
            source.timestamp_ms,
            headers.escape_source_headers(source.headers) + added_headers,
        )

    def audit(
        self,
        messages: Iterable[Message],
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
        for message in self.source[low:]:
            book.add_source(message, content_digests.digest_source(message))
        outputs = AuditedOutputs(
            self.outline,
            book,
            NAMES,
            (TOPIC, TOPIC_ID),
            {0: committed},
            {0: all_lows["unique", 0]},
            findings,
        )
        for message in sorted(messages, key=lambda message: NAMES.index(message.topic)):
            outputs.add_message(message)
        book.close()
        outputs.close()
        return findings.shown, book, outputs


def kinds(found: tuple[list[Violation], AuditLedger, AuditedOutputs]) -> list[str]:
    return sorted(f"{violation.kind} {violation.position}" for violation in found[0])


@pytest.mark.parametrize("scan", [True, False])
def test_correct_outputs_have_no_findings(scan: bool) -> None:
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
def test_a_dead_letter_may_lack_what_it_declares(
    cut: Headers, changed: dict[str, Any], is_clean: bool
) -> None:
    """And nothing else of it may differ from its record; one whose key or headers were cut is held
    to its place."""
    scene = Scene()
    *rest, letter = scene.left()
    _, letter_headers = split_dead_letter(letter.headers)
    foreign = changed.get("headers", letter.headers[: -len(letter_headers)])
    letter = letter._replace(**changed | {"headers": [*foreign, *letter_headers, *cut]})

    assert kinds(scene.audit([*rest, letter])) == (
        [] if is_clean else ["changed dlq.documents-0@0"]
    )


@pytest.mark.parametrize("offset", range(6))
def test_a_record_that_is_missing_is_lost(offset: int) -> None:
    """Whatever it was; a representative is told as unemitted too, and one that is named is missed
    by its duplicate."""
    scene = Scene()
    messages = scene.left()
    del messages[offset]

    found = scene.audit(messages)

    expected = [f"lost documents-0@{offset}"]
    if offset in (0, 4):
        expected.append(f"unemitted documents-0@{offset}")
    if offset == 0:
        expected.append("representative duplicates-0@0")
    assert kinds(found) == sorted(expected)
    if offset == 4:
        assert found[2].unemitted.oldest_ms == APPEND_MS + 2000


@pytest.mark.parametrize("offset", range(6))
def test_a_record_emitted_twice_is_reported_with_both_positions(offset: int) -> None:
    """A record without a place in the log is only reported as coming from nowhere."""
    scene = Scene()
    messages = scene.left()
    messages.append(messages[offset]._replace(offset=99))

    found = [
        violation for violation in scene.audit(messages)[0] if violation.kind is not Kind.ORDER
    ]

    assert [violation.kind for violation in found] == [Kind.NOWHERE if offset == 2 else Kind.TWICE]
    assert found[0].position == f"{messages[offset].topic}-0@99"
    if offset != 2:
        assert f"first at {messages[offset].topic}-0@{messages[offset].offset}" in found[0].sentence


def test_records_in_flight_are_not_lost() -> None:
    """Above the group's committed offset nothing is missing, and representatives there are in
    flight."""
    scene = Scene()

    found, _, outputs = scene.audit(scene.left()[:3], committed=3)

    assert found == []
    assert (outputs.in_flight.count, outputs.unemitted.count) == (1, 0)
    # A duplicate may leave before its representative, which another worker commits.
    assert (
        kinds(
            scene.audit(
                [message for message in scene.left() if message.topic == "duplicates"], committed=0
            )
        )
        == []
    )


def test_records_removed_by_retention_are_counted_and_not_lost() -> None:
    """Source records that are gone are counted where they came out; outputs that are gone are not
    missed."""
    scene = Scene()
    found, book, _ = scene.audit(scene.left(), low=3)
    assert found == []
    assert book.counts[ledger.SOURCE_TRIMMED] == 3

    messages = [
        message
        for message in scene.left()
        if not (message.topic == "unique" and message.offset < 2)
    ]
    found, book, _ = scene.audit(messages, lows={"unique": 2})
    assert found == []
    assert book.counts[ledger.OUTPUTS_TRIMMED] == 2


def test_a_rewind_explains_repeated_outputs() -> None:
    """What was read again in a later epoch may leave once more, and the order may go back once; but
    no more than that."""
    messages = Scene().left()
    more = [
        messages[3]._replace(offset=11),
        messages[4]._replace(offset=12),
        messages[2]._replace(offset=13),
    ]
    again = [
        message._replace(offset=message.offset + 20)
        for message in (messages[0], messages[3], messages[4])
    ]
    rewound = Scene(epochs={3: (1, 3)})
    # In the second epoch its own place in the log decides on a duplicate.
    second = of_verdict(source_at(3), RECIPE, b"%032x" % FAR, rewound.outline.judgements[3][2])
    more[0] = more[0]._replace(headers=[("n", b"1"), *second])

    assert kinds(rewound.audit([*messages, *more[:2]])) == []
    assert rewound.audit([*messages, *more[:2]])[1].counts[ledger.REDELIVERED] == 2
    assert "twice unique-0@20" in kinds(rewound.audit([*messages, *again]))
    assert any(kind.startswith("twice") for kind in kinds(Scene().audit([*messages, *more[:2]])))


@pytest.mark.parametrize(
    ("offset", "name", "value", "kind", "expected"),
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
    offset: int, name: str, value: bytes, kind: Kind | None, expected: str
) -> None:
    """The report names the wrong value and the value that the log implies."""
    scene = Scene()
    messages = scene.left()
    messages[offset] = messages[offset]._replace(
        headers=[
            (violation, value if violation == name else old)
            for violation, old in messages[offset].headers
        ]
    )

    found, _, _ = scene.audit(messages)

    if kind is None:
        assert found == []
    else:
        assert any(
            violation.kind is kind
            and expected in violation.sentence
            and f"{messages[offset].topic}-0@" in violation.position
            for violation in found
        ), found


def test_records_in_another_order_are_named() -> None:
    scene = Scene()
    messages = scene.left()
    messages[0], messages[4] = messages[4]._replace(offset=0), messages[0]._replace(offset=2)

    found = scene.audit(
        [messages[0], messages[2], messages[4], messages[1], messages[3], messages[5]]
    )

    assert kinds(found) == ["order unique-0@1", "order unique-0@2"]


def test_seeds_and_releases_are_exempt() -> None:
    """A seed may be named though it never left; a released document is on both outputs, once, or is
    on its way there; a rewind may bring it there instead of the command."""
    outline = LogOutline(Fold(PlainScan()))
    seeded, copy = Doc(0, 7, 7, b"s" * 16, FAR, id=b"s"), Doc(0, 0, 1, b"s" * 16, FAR, id=b"a")
    log = [declare(PLANS["blocks"]), seed([seeded]), batch([copy]), release(copy)]
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

    def audit(*messages: Message, now_ms: int = APPEND_MS) -> tuple[list[str], int]:
        findings = Findings(9)
        book = AuditLedger(outline, TOPIC, TOPIC_ID, {0: Span(0, 1, 1)}, {}, findings)
        book.add_source(source, content_digests.digest_source(source))
        outputs = AuditedOutputs(
            outline, book, NAMES, (TOPIC, TOPIC_ID), {0: 1}, {}, findings, now_ms
        )
        for message in messages:
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


def test_a_record_read_again_without_a_verdict_is_not_twice() -> None:
    """A rewind begins where it begins, though the log has its epoch only from the first document
    that needs a verdict on."""
    scene = Scene(epochs={1: (1, 3)})
    messages = scene.left()
    again = messages[2]._replace(offset=9)

    assert scene.audit([*messages, again])[0] == []
    assert Kind.TWICE in {
        violation.kind for violation in scene.audit([*messages, messages[1]._replace(offset=9)])[0]
    }
    silent = Scene()
    assert Kind.NOWHERE in {violation.kind for violation in silent.audit([*messages, again])[0]}
    silent.outline.committed_epochs[TOPIC, TOPIC_ID, 0] = 1
    assert silent.audit([*messages, again])[0] == []


def test_a_verdict_given_again_after_a_take_down_names_no_id() -> None:
    """The id is gone from it, and everything else stands; another id, or none without a take-down,
    is a violation."""
    scene = Scene()
    messages = scene.left()
    blanked = [
        violation._replace(
            headers=[
                (name, b"" if name == headers.OF_ID else value) for name, value in violation.headers
            ]
        )
        for violation in messages
    ]

    assert {violation.kind for violation in scene.audit(blanked)[0]} == {Kind.VERDICT}
    raw = forget(b"a")
    scene.outline.add_record(3, APPEND_MS + 9000, decode(raw))
    assert scene.audit(blanked)[0] == []
    assert scene.audit(messages)[0] == []


def test_a_rewound_page_may_lack_its_sibling() -> None:
    """An index answers a representative again without its sibling, so only a page that the log
    answered again may lack it, and it lacks all of it."""
    for scene in (Scene(), Scene(epochs={3: (1, 0)})):
        messages = scene.left()
        first, second = scene.outline.judgements[1]
        assert first.reason is Reason.NEW
        kept = first._replace(of=second.of, similarity=74)
        scene.outline.judgements[1] = (kept, second)
        known = scene.outline.document(LogPlace(1, 0))
        assert known is not None
        whole = of_verdict(source_at(0), RECIPE, known.hex, kept)
        with_sibling = [messages[0]._replace(headers=[("n", b"1"), *whole]), *messages[1:]]

        was_answered_again = 3 in scene.outline.judgements
        assert scene.audit(with_sibling)[0] == []
        assert (scene.audit(messages)[0] == []) is was_answered_again
        part = [header for header in whole if header[0] != headers.SIBLING_ID]
        messages[0] = messages[0]._replace(headers=[("n", b"1"), *part])
        assert {violation.kind for violation in scene.audit(messages)[0]} == {Kind.VERDICT}
