"""The format in force: the old one is written until the log orders a newer; a program that does not
know it stops there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from stream_dedup.audit.judgements import Fold
from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import ConfigurationError, OtherFormatError
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.rules.window import RulesInForce
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.log import answers, records
from stream_dedup.log.record_frame import format_of
from stream_dedup.orders.in_force import InForce, change_fields
from stream_dedup.worker.questions import Questions, WrittenFormat
from tests.index.logs import APPEND_MS, Doc, batch, batch_of, control, declare, number
from tests.worker.parts import make_context

DOCS = [Doc(0, n, n, bytes([n]) * 16, n << 60) for n in range(4)]
RAISE = control("plan", format=2)
LOG = [
    declare(PLANS["classic"], width=128),
    batch(DOCS[:2]),
    RAISE,
    batch(DOCS[2:]),
    None,
    batch(DOCS),
]


@contextmanager
def format_2() -> Iterator[None]:
    """Have a program that knows a second format, whose bytes are those of the first but for their
    number."""
    with (
        mock.patch.dict(records.FORMATS, {2: records.FORMATS[1]}),
        mock.patch.dict(answers.FORMATS, {2: answers.FORMATS[1]}),
    ):
        yield


def apply_log(
    log: Sequence[bytes | None], volume: dict[bytes, bytes] | None = None
) -> dict[int, bytes]:
    index = LogIndex(MemoryStore({} if volume is None else volume))
    return dict(index.apply(number(log)[index.applied :]))


def test_answers_are_in_the_format_in_force_at_their_record() -> None:
    """The old one before the order, the new one behind it, whoever knows both; the verdicts are the
    same."""
    with format_2():
        found = apply_log(LOG)
        assert {offset: format_of(raw) for offset, raw in found.items()} == {1: 1, 3: 2, 4: 2, 5: 2}
        plain = apply_log([*LOG[:2], control("plan"), *LOG[3:]])
        assert set(map(format_of, plain.values())) == {1}
        assert [answers.decode(raw) for raw in plain.values()] == [
            answers.decode(raw) for raw in found.values()
        ]


def test_an_older_program_stops_at_the_order_of_a_newer_format() -> None:
    """Both give equal answers up to there; behind it the older gives none, writes nothing, and
    cannot go on by a restart."""
    volume: dict[bytes, bytes] = {}
    with format_2():
        newer = apply_log(LOG)
    older = LogIndex(MemoryStore(volume))
    with pytest.raises(
        OtherFormatError, match=r"Log record 2 declares format 2, .*up to 1: upgrade"
    ) as error:
        older.apply(number(LOG))
    assert error.value.exit_code == 78
    assert (older.applied, dict(older.answers_since(0))) == (2, {1: newer[1]})
    kept = dict(volume)
    again = LogIndex(MemoryStore(volume))
    with pytest.raises(OtherFormatError):
        again.apply(number(LOG)[again.applied :])
    assert volume == kept

    with format_2():  # upgraded, it goes on as if it had never been another
        assert {1: newer[1], **apply_log(LOG, volume)} == newer


def test_an_older_program_refuses_a_volume_of_a_newer_format() -> None:
    volume: dict[bytes, bytes] = {}
    with format_2():
        apply_log(LOG, volume)
        assert LogIndex(MemoryStore(volume)).format == 2
    with pytest.raises(
        OtherFormatError, match=r"format 2, but this version reads up to 1: upgrade"
    ):
        LogIndex(MemoryStore(volume))


def test_a_declaration_can_order_a_format() -> None:
    begun = declare(PLANS["classic"], width=128, format=2)
    with format_2():
        assert set(map(format_of, apply_log([begun, batch(DOCS)]).values())) == {2}
    with pytest.raises(OtherFormatError, match="declares format 2"):
        apply_log([begun])


@pytest.mark.parametrize("form", [0, -1, True, "2", None, 1.0, [2]])
def test_an_order_of_an_invalid_format_changes_nothing(form: Any) -> None:
    """Neither the format nor what else the order says; the index, the second fold and the command
    agree."""
    check_in_force(
        [*LOG[:2], control("plan", format=form, better="newest"), *LOG[3:]], 1, "longest"
    )


def test_a_format_is_never_lowered() -> None:
    """An order with a lower format is ignored; one with the same format is applied."""
    with format_2():
        check_in_force([*LOG, control("plan", format=1, better="newest")], 2, "longest")
        check_in_force([*LOG, control("plan", format=2, better="newest")], 2, "newest")


def check_in_force(log: Sequence[bytes | None], form: int, better: str) -> None:
    index, fold, now = LogIndex(MemoryStore()), Fold(None), InForce()
    index.apply(number(log))
    for offset, raw in enumerate(log):
        record = None if raw is None else records.decode(raw)
        fold.judge(offset, APPEND_MS, record)
        now.fold(record)

    assert (index.format, fold.format, now.format) == (form, form, form)
    assert (index._state.better.label, fold.better.label, now.better.label) == (
        better,
        better,
        better,
    )


def test_the_command_raises_the_format_and_never_lowers_it() -> None:
    with format_2():
        now = InForce()
        for raw in LOG[:2]:
            now.fold(records.decode(raw))
        rules = RulesInForce(now.plan or PLANS["classic"], now.window, now.better, 2)
        assert change_fields(now, rules) == {"format": 2}
        now.fold(records.decode(RAISE))
        assert change_fields(now, rules) == {}
        with pytest.raises(
            ConfigurationError,
            match="format 2, which cannot be lowered to 1",
        ):
            change_fields(now, rules._replace(format=1))


def test_a_worker_writes_in_the_highest_format_it_knows_of() -> None:
    """What the log was begun with; from the first answer in a newer format on, that one, whatever a
    late replica says."""
    with format_2():
        written = WrittenFormat()
        assert format_of(written.encode(batch_of(DOCS))) == 1
        written.raise_to(1)
        assert format_of(written.encode(batch_of(DOCS))) == 1
        written.raise_to(2)
        written.raise_to(1)
        assert format_of(written.encode(batch_of(DOCS))) == 2
        assert format_of(WrittenFormat(2).encode(batch_of(DOCS))) == 2


def test_a_worker_learns_the_format_from_answers() -> None:
    """From the first one in a newer format on; one in a format that it does not know ends it,
    instead of being skipped."""
    with format_2():
        found = apply_log(LOG)
    written, taken = WrittenFormat(), [found[1]]
    reader = SimpleNamespace(take_messages=lambda *_: [message(raw) for raw in taken])
    flow = SimpleNamespace(
        is_failed_open=False, nonce=bytes(16), answered=lambda _: False, oldest_unanswered=None
    )
    questions = Questions(
        make_context(flow), mock.Mock(), mock.Mock(), reader, mock.Mock(), None, written
    )  # type: ignore[arg-type]

    questions.process_answers(0.0)
    assert written.number == 1
    taken.append(found[3])
    with pytest.raises(
        OtherFormatError, match=r"verdicts-0@7 has the format 2, .*up to 1: upgrade"
    ):
        questions.process_answers(0.0)
    with format_2():
        questions.process_answers(0.0)
    assert written.number == 2


def message(raw: bytes) -> Message:
    return Message("verdicts", 0, 7, None, raw, None, [])
