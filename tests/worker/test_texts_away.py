"""Texts that are stored elsewhere: a worker judges those that it can read; records behind an
unavailable one wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from stream_dedup.domain.document import DeadLetter, Message
from stream_dedup.domain.errors import ExtractorAwayError, RegistryAwayError, TextAwayError
from stream_dedup.domain.messages import Messages
from stream_dedup.domain.threads import SideThread
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.inputs import claim_checks
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.log import records
from stream_dedup.settings.layers import load_settings
from stream_dedup.worker import intake as intake_module
from stream_dedup.worker.metrics import WorkerMetrics
from stream_dedup.worker.prepare import InFlight, Preparer
from tests.inputs.store_server import Pages, Reply, serving
from tests.waiting import wait_until
from tests.worker.parts import ThreadStub, VirtualClock, intake_of, roomy_flow

SOURCES = {("documents", 0): records.Source("documents", bytes(16), 0, 0, 0)}
COUNT = 12


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    monkeypatch.setattr(claim_checks, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(intake_module, "_RETRY_SECONDS", 0.001)
    with serving() as pages:
        for number in range(COUNT):
            pages.by_path[f"/{number}"] = Reply(
                b"the text of page %d is long enough for a print" % number
            )
        yield pages


def preparer_of(pages: Pages, **bounds: int) -> Preparer:
    given = {
        "value_format": "json",
        "text_at": "uri",
        "text_prefixes": pages.url,
    }
    return Preparer(
        Decoder(load_settings(given, environ={})),
        Fingerprinter(Recipe()),
        bytes(16),
        1 << 20,
        **bounds,
    )


def messages_of(pages: Pages, **instead: Any) -> Messages:
    values = [
        instead.get(f"at_{number}", {"uri": f"{pages.url}/{number}"}) for number in range(COUNT)
    ]
    return Messages.of(
        [
            Message("documents", 0, offset, b"k", json.dumps(value).encode(), 1, [])
            for offset, value in enumerate(values)
        ]
    )


def inline_prints() -> list[bytes | None]:
    """Return the fingerprints of the same texts when the records contain them."""
    preparer = Preparer(
        Decoder(load_settings({"value_format": "json"}, environ={})),
        Fingerprinter(Recipe()),
        bytes(16),
        1 << 20,
    )
    values = [
        {"text": f"the text of page {number} is long enough for a print"} for number in range(COUNT)
    ]
    messages = [
        Message("documents", 0, offset, b"k", json.dumps(value).encode(), 1, [])
        for offset, value in enumerate(values)
    ]
    return preparer.prepare(messages, SOURCES, b"").prints


def test_prints_equal_those_of_inline_texts(pages: Pages) -> None:
    batch = preparer_of(pages).prepare(messages_of(pages), SOURCES, b"")
    assert batch.prints == inline_prints()
    assert [place for part in batch.parts for place in part.rows] == [*range(COUNT)]


@pytest.mark.parametrize(
    "bounds", [{"ahead_bytes": 100}, {"ahead_bytes": 1}, {"slow_bytes": 1}, {"record_documents": 5}]
)
def test_small_bounds_give_the_same_prints(pages: Pages, bounds: dict[str, int]) -> None:
    batch = preparer_of(pages, **bounds).prepare(messages_of(pages), SOURCES, b"")
    assert batch.prints == inline_prints()


def test_a_missing_text_is_a_dead_letter_among_documents(pages: Pages) -> None:
    messages = messages_of(
        pages,
        at_0={"text": "inside, and long enough for a print of its own"},
        at_3={"uri": f"{pages.url}/none"},
    )
    batch = preparer_of(pages).prepare(messages, SOURCES, b"")
    letters = {
        place: (decision.stage, decision.error_class)
        for place, decision in batch.decided_locally()
        if isinstance(decision, DeadLetter)
    }
    assert letters == {3: ("fetch", "NotFound")}
    expected = inline_prints()
    assert [batch.prints[place] == expected[place] for place in range(COUNT)] == [
        place not in (0, 3) for place in range(COUNT)
    ]
    assert batch.prints[0] is not None


def test_records_before_an_unavailable_text_are_prepared(pages: Pages) -> None:
    reply = pages.by_path["/5"]
    pages.by_path["/5"] = Reply(status=503)
    preparer = preparer_of(pages)
    messages = messages_of(pages)
    batch = preparer.prepare(messages, SOURCES, b"")
    assert len(batch.messages) == 5
    rest = messages.part(5, COUNT)
    for _ in range(3):
        with pytest.raises(TextAwayError, match="/5 is unavailable"):
            preparer.prepare(rest, SOURCES, b"")
    pages.by_path["/5"] = reply
    batch_of_rest = preparer.prepare(rest, SOURCES, b"")
    assert batch.prints + batch_of_rest.prints == inline_prints()
    assert [pages.asked.count(f"/{number}") for number in range(COUNT) if number != 5] == [1] * (
        COUNT - 1
    )


def test_records_before_the_first_address_do_not_wait_for_it(pages: Pages) -> None:
    pages.by_path["/2"] = Reply(status=503)
    messages = messages_of(pages, at_0={"text": "inside"}, at_1={"text": "inside as well"})
    assert len(preparer_of(pages).prepare(messages, SOURCES, b"").messages) == 2


def test_an_unavailable_text_is_logged_and_read_later(pages: Pages) -> None:
    reply = pages.by_path["/0"]
    pages.by_path["/0"] = Reply(status=503)
    preparer = preparer_of(pages)
    metrics = WorkerMetrics("r")
    taken: list[InFlight] = []
    gauges: list[float] = []

    def prepare(messages: Messages, _: Any, group_metadata: bytes, *hurry: Any) -> InFlight:
        gauges.append(read_gauge(metrics))
        if len(gauges) == 4:
            pages.by_path["/0"] = reply
        return preparer.prepare(messages, SOURCES, group_metadata, *hurry)

    clock = VirtualClock()
    intake = intake_of(
        read_once(messages_of(pages)),
        ThreadStub(clock),
        clock,
        roomy_flow(),
        prepare=prepare,
        take_in=taken.append,
    )
    intake._metrics.set_away = metrics.set_away  # type: ignore[method-assign]
    intake.read_and_prepare(reads=True)
    assert [len(batch.messages) for batch in taken] == [COUNT]
    assert (gauges[0], set(gauges[1:]), read_gauge(metrics)) == (0.0, {1.0}, 0.0)
    warnings = [call.args[0] for call in intake._logger.warning.call_args_list]
    assert warnings == ["the store of the texts is unavailable; the records wait for it"]
    assert [call.args[0] for call in intake._logger.info.call_args_list] == [
        "the store of the texts answers again"
    ]


def test_a_hurried_intake_returns_its_unprepared_records(pages: Pages) -> None:
    pages.by_path["/0"] = Reply(worse=pages.silent)
    preparer = preparer_of(pages)
    clock = VirtualClock()
    taken: list[InFlight] = []

    def prepare(messages: Messages, _: Any, *more: Any) -> InFlight:
        return preparer.prepare(messages, SOURCES, *more)

    read = messages_of(pages)
    intake = intake_of(
        read_once(read),
        SideThread("prepare"),
        clock,
        roomy_flow(),
        prepare=prepare,
        take_in=taken.append,
    )
    intake.read_and_prepare(reads=True)
    wait_until(lambda: bool(pages.asked))
    assert intake.is_preparing
    intake.finish()
    assert taken == []
    (given_back,) = (call.args[0] for call in intake._assignment.reread_unprepared.call_args_list)
    assert given_back.offsets.tolist() == read.offsets.tolist()
    intake._logger.warning.assert_not_called()
    intake._metrics.set_away.assert_not_called()


def test_each_unavailable_dependency_has_its_own_gauge() -> None:
    metrics = WorkerMetrics("r")
    metrics.set_away(RegistryAwayError, True)
    assert (read_gauge(metrics), read_gauge(metrics, "stream_dedup_schema_registry_away")) == (
        0.0,
        1.0,
    )
    metrics.set_away(TextAwayError, True)
    metrics.set_away(ExtractorAwayError, True)
    metrics.set_away(RegistryAwayError, False)
    assert (read_gauge(metrics), read_gauge(metrics, "stream_dedup_schema_registry_away")) == (
        1.0,
        0.0,
    )


def read_gauge(metrics: WorkerMetrics, name: str = "stream_dedup_texts_away") -> float:
    found = metrics.registry.get_sample_value(name)
    assert found is not None
    return found


def read_once(messages: Messages) -> Any:
    waiting = [messages]
    return lambda: waiting.pop() if waiting else Messages.of([])
