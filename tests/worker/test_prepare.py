"""Log records of prepared documents: each document has its own position and source partition."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from stream_dedup.domain.document import DeadLetter, Message, Reason
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.messages import Messages
from stream_dedup.fingerprinting import Fingerprinter, Recipe, SiteHasher
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.log import records
from stream_dedup.log.records import value_digest
from stream_dedup.settings.layers import load_settings
from stream_dedup.worker import prepare
from stream_dedup.worker.prepare import Preparer

TOPIC_ID = bytes(range(16))
RECORD_BYTES_MAX = 6000


@pytest.mark.parametrize("seed", range(8))
def test_every_document_keeps_its_position(seed: int) -> None:
    chance = random.Random(seed)
    messages = []
    for index in range(chance.choice([1, 50, 1300])):
        text = chance.choice([f"the text of page {index} is long enough", "", ["in", "two parts"]])
        fields = {"url": f"https://{'ab'[index % 2]}.example/{index}", "text": text}
        value = json.dumps(fields | ({"title": f"Page {index}"} if index % 3 else {})).encode()
        value = chance.choice(
            [value, value, value, None, b"{", json.dumps({"url": "u", "text": "x" * 5000}).encode()]
        )
        messages.append(
            Message(
                "documents",
                chance.choice([5, 0, 3]),
                index,
                b"key",
                value,
                chance.choice([None, 1000 + index]),
                [],
            )
        )
    keys = {(read_message.topic, read_message.partition) for read_message in messages}
    sources = {(topic, part): records.Source(topic, TOPIC_ID, part, 2, 7) for topic, part in keys}
    decoder = Decoder(
        load_settings(
            {"value_format": "json", "id_field": "url", "title_field": "title"}, environ={}
        )
    )
    preparer = Preparer(decoder, Fingerprinter(Recipe()), bytes(16), RECORD_BYTES_MAX)

    batch = preparer.prepare(messages, sources, b"stamp")

    hasher, asked = SiteHasher(Recipe()), set()
    for part in batch.parts:
        record = records.decode(part.raw)
        assert isinstance(record, records.Batch)
        assert len(record) == len(part.rows)
        assert [source.partition for source in record.sources] == list(
            dict.fromkeys(messages[place].partition for place in part.rows)
        )
        for place, index in enumerate(part.rows):
            message = messages[index]
            position = record.position(place)
            assert (position.topic, position.partition, position.offset) == (
                message.topic,
                message.partition,
                message.offset,
            )
            assert (
                record.ids[place]
                == batch.ids[index]
                == f"https://{'ab'[index % 2]}.example/{index}".encode()
            )
            assert record.site[place] == hasher.hash_sites([f"{'ab'[index % 2]}.example"])[0] > 0
            title = f"Page {index}" if index % 3 else ""
            assert record.title[place] == hasher.hash_titles([title])[0]
            assert int(record.time_ms[place]) == (message.timestamp_ms or 0)
            assert int(record.value_digest[place]) == value_digest(message.value)
            assert batch.prints[index] is not None
            assert batch.local_decisions[index] is None
        asked.update(part.rows)
    for index, message in enumerate(messages):
        if index in asked:
            continue
        decided = batch.local_decisions[index]
        if message.value is None:
            assert decided is Reason.TOMBSTONE
        elif isinstance(decided, DeadLetter):
            assert decided.stage in ("decode", "size")
        else:
            assert decided is Reason.EMPTY
            assert batch.prints[index] is None
    assert batch.offsets() == {
        (read_message.topic, read_message.partition): read_message.offset + 1
        for read_message in messages
    }


@pytest.mark.parametrize("recipe", ["words", "keywords"])
def test_the_parts_of_a_batch_equal_the_whole(recipe: str) -> None:
    """The parts, wherever the clock cuts, have the records, decisions, ids and prints of the
    batch."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    values = [
        chance.choice(
            [
                None,
                b"{",
                b'{"text": " "}',
                json.dumps({"text": f"page {index} " * 9}).encode(),
                bytes(9000),
            ]
        )
        for index in range(60)
    ]
    messages = Messages.of(
        [
            Message("documents", index % 2, index, b"key", value, index, [("n", b"%d" % index)])
            for index, value in enumerate(values)
        ]
    )
    sources = {
        ("documents", part): records.Source("documents", TOPIC_ID, part, 2, 7) for part in (0, 1)
    }
    preparer = Preparer(
        Decoder(load_settings({"value_format": "json"}, environ={})),
        Fingerprinter(Recipe(recipe)),
        bytes(16),
        RECORD_BYTES_MAX,
        slow_bytes=300,
    )

    whole = preparer.prepare(messages, sources, b"")
    parts, done, looks = [], 0, itertools.count(1)
    with mock.patch.object(prepare, "_QUICK_BYTES", 300):
        while done < len(messages):
            rest = messages.part(done, len(messages))
            parts.append(preparer.prepare(rest, sources, b"", lambda: next(looks) % 3 == 0))
            done += len(parts[-1].messages)

    assert len(parts) > 3
    for name in ("local_decisions", "prints", "ids"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(whole, name)
    assert [message for part in parts for message in part.messages] == list(messages)
    asked = [
        record.position(place)
        for part in parts
        for log_part in part.parts
        for record in [records.decode(log_part.raw)]
        for place in range(len(record))
    ]
    record = records.decode(whole.parts[0].raw)
    assert asked == [record.position(place) for place in range(len(record))]


def test_slow_preparation_looks_at_the_clock_often() -> None:
    """A slow recipe looks at the clock after 64 kB or one larger record, a quick one only at the
    end."""
    settings = load_settings({"value_format": "raw"}, environ={})
    messages = Messages.of(
        [
            Message("documents", 0, offset, None, b"x" * size, None, [])
            for offset, size in enumerate([60_000, 3_000, 3_000, 200_000, 1])
        ]
    )
    slow = Preparer(Decoder(settings), Fingerprinter(Recipe("keywords")), bytes(16), 1 << 20)
    quick = Preparer(Decoder(settings), Fingerprinter(Recipe()), bytes(16), 1 << 20)

    assert list(slow._chunk_ends(messages)) == [2, 3, 4, 5]
    assert list(quick._chunk_ends(messages)) == [5]


def preparer_that_fails(
    monkeypatch: pytest.MonkeyPatch, error_for: Callable[[Any], BaseException | None]
) -> Preparer:
    """Return a preparer whose fingerprinter raises the error that `error_for` returns for a
    text."""
    fingerprinter = Fingerprinter(Recipe())
    known = fingerprinter.fingerprint

    def fingerprint(texts: Any) -> Any:
        for text in texts:
            if (error := error_for(text)) is not None:
                raise error
        return known(texts)

    monkeypatch.setattr(fingerprinter, "fingerprint", fingerprint)
    return Preparer(Decoder(load_settings({}, environ={})), fingerprinter, bytes(16), 1 << 20)


def texts_and_sources(texts: list[str]) -> tuple[list[Message], dict[Any, records.Source]]:
    messages = [
        Message("documents", 0, offset, b"https://k%d.example/" % offset, text.encode(), 1, [])
        for offset, text in enumerate(texts)
    ]
    return messages, {("documents", 0): records.Source("documents", TOPIC_ID, 0, 2, 7)}


@pytest.mark.parametrize("bad", [[2], [0, 1], [0, 1, 2, 3, 4], []])
def test_a_text_that_makes_the_fingerprinter_fail_affects_no_other(
    bad: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [
        f"{'bad' if index in bad else 'good'} text of page {index} is long enough for a print"
        for index in range(5)
    ]
    messages, sources = texts_and_sources(texts)
    preparer = preparer_that_fails(
        monkeypatch, lambda text: ZeroDivisionError("odd") if text.startswith("bad") else None
    )

    batch = preparer.prepare(messages, sources, b"stamp")

    letters = {
        index: decision
        for index, decision in batch.decided_locally()
        if isinstance(decision, DeadLetter)
    }
    assert [*letters] == bad
    assert all(
        (letter.stage, letter.error_class, letter.can_vary)
        == ("fingerprint", "ZeroDivisionError", True)
        for letter in letters.values()
    )
    good = [index for index in range(5) if index not in bad]
    assert [place for part in batch.parts for place in part.rows] == good
    assert [index for index in range(5) if batch.prints[index] is not None] == good
    expected = Fingerprinter(Recipe()).fingerprint([texts[index] for index in good])
    written = [records.decode(part.raw) for part in batch.parts]
    assert [record.prints.tolist() for record in written if isinstance(record, records.Batch)] == (
        [expected.prints.tolist()] if good else []
    )
    sites = SiteHasher(Recipe()).hash_sites([f"k{index}.example" for index in good])
    assert [record.site.tolist() for record in written if isinstance(record, records.Batch)] == (
        [sites.tolist()] if good else []
    )
    assert len(caplog.records) == bool(bad)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), ConfigurationError("No dictionary."), MemoryError()]
)
def test_a_fingerprinter_that_fails_for_every_text_makes_no_dead_letters(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, sources = texts_and_sources(["one text", "another"])
    preparer = preparer_that_fails(monkeypatch, lambda _: error)
    with pytest.raises(type(error)):
        preparer.prepare(messages, sources, b"stamp")
