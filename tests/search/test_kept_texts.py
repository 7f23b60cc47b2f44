"""Texts by where their records lie, for whoever asks at a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from stream_dedup.ground.document import Message
from stream_dedup.inputs import elsewhere
from stream_dedup.search import kept_texts
from stream_dedup.search.kept_texts import OutputTexts
from stream_dedup.settings.layers import load_settings
from tests.inputs.store_server import Pages, Reply, serving


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    monkeypatch.setattr(elsewhere, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(kept_texts, "_PATIENCE_SECONDS", 1.0)
    with serving() as pages:
        yield pages


def texts_of(pages: Pages, monkeypatch: pytest.MonkeyPatch, count: int) -> OutputTexts:
    """Return texts of records that a topic keeps, each of which names a page."""

    def sample(_: Any, spans: Any, __: float) -> Iterator[Message]:
        for (topic, partition), own in spans.items():
            for offset, _ in own:
                value = json.dumps({"at": f"{pages.url}/{offset}"}).encode()
                yield Message(topic, partition, offset, b"k", value, 1, [])

    for number in range(count):
        pages.by_path[f"/{number}"] = Reply(b"text %d" % number)
    monkeypatch.setattr(kept_texts, "sample", sample)
    given = {"value_format": "json", "text_at": "at", "text_prefixes": pages.url, "text_timeout": "500ms"}
    return OutputTexts(load_settings(given, environ={}))


def test_those_that_do_not_come_keep_no_other_back(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    by = texts_of(pages, monkeypatch, 6)
    pages.by_path |= {"/1": Reply(status=503), "/2": Reply(status=404), "/4": Reply(worse=pages.silent)}
    found = by.at(f"unique-0@{number}" for number in range(6))
    assert found == {f"unique-0@{number}": "" if number == 2 else f"text {number}" for number in (0, 2, 3, 5)}


def test_whoever_asks_does_not_wait_for_what_is_read_meanwhile(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The role waits for a page that never comes, and keeps what it fetched ahead."""
    monkeypatch.setattr(kept_texts, "_PATIENCE_SECONDS", 60.0)  # a busy machine is no silent page
    by = texts_of(pages, monkeypatch, 4)
    pages.by_path["/1"] = Reply(worse=pages.silent)
    messages = [
        Message("unique", 0, number, b"k", json.dumps({"at": f"{pages.url}/{number}"}).encode(), 1, []) for number in range(4)
    ]
    asked: list[Any] = []

    def is_hurried() -> bool:
        if not asked and (found := by.at(["unique-0@3"])):
            asked.append(found)
        return bool(asked)

    with pytest.raises(kept_texts.AwayError):
        list(by.of_each(messages, is_hurried))
    assert asked == [{"unique-0@3": "text 3"}]
    pages.by_path["/1"] = Reply(b"late")
    assert [said.text for said in by.of_each(messages[1:], lambda: False)] == ["late", "text 2", "text 3"]
    assert pages.asked.count("/2") == 1
