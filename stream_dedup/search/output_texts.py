"""Decode the texts of output records: of the records that the role reads, and of single records by
position.

Invariants: the same decoder as in the workers is used; a page that needs texts does not wait for
the role's loop, and waits at most `_PATIENCE_SECONDS` for texts in an object store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from stream_dedup.domain.document import DeadLetter, Message, TopicPartitionKey
from stream_dedup.domain.errors import AwayError
from stream_dedup.inputs.claim_checks import Fetched
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.kafka import read_spans
from stream_dedup.settings.settings import Settings

# A person waits for the page: a missing snippet is better than a wait.
_PATIENCE_SECONDS: Final = 1.5
_FETCH_BYTES: Final = 4 << 20
_FETCH_AHEAD_BYTES: Final = 64 << 20


class OutputText(NamedTuple):
    """The document in a record. `text` is empty if there is no text to search in;
    `unreadable_reason`: why a text that should exist cannot be read.
    """

    id: bytes
    text: str
    unreadable_reason: str = ""
    title: str = ""


class OutputTexts:
    """The texts of one deployment's outputs."""

    def __init__(self, settings: Settings) -> None:
        """Create the decoders from the input settings.

        Raises:
            ConfigurationError: an extra that the settings need is not installed.
        """
        self._settings = settings
        self._decoder = Decoder(settings)
        self._page_decoder = Decoder(settings)
        self._lock = threading.Lock()

    def decode_each(
        self, messages: Sequence[Message], is_hurried: Callable[[], bool]
    ) -> Iterator[OutputText]:
        """Yield the document in each record, in the order of the records; texts in an object store
        are fetched ahead. Only one thread may call this.

        Raises:
            AwayError: the store of the next text does not answer; or the text has not arrived and
            `is_hurried` returns True.
        """
        return _decode_each(self._decoder, messages, is_hurried)

    def texts_at(self, positions: Iterable[str]) -> Mapping[str, str]:
        """Return the texts at positions such as `unique-3@17`; texts that cannot be read are missing.

        Raises:
            BrokerError: Kafka does not return the records.
        """
        spans: dict[TopicPartitionKey, list[tuple[int, int]]] = {}
        for position in positions:
            front, _, offset = position.rpartition("@")
            topic, _, partition = front.rpartition("-")
            spans.setdefault((topic, int(partition)), []).append((int(offset), int(offset) + 1))
        ordered = {key: sorted(key_spans) for key, key_spans in spans.items()}
        with closing(read_spans(self._settings, ordered, _PATIENCE_SECONDS)) as records:  # type: ignore[type-var]
            messages = list(records)
        texts: dict[str, str] = {}
        with self._lock:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while messages:
                decoded_count = 0
                try:
                    for output_text in _decode_each(
                        self._page_decoder, messages, lambda: time.monotonic() >= deadline
                    ):
                        message = messages[decoded_count]
                        texts[message.position] = output_text.text
                        decoded_count += 1
                except AwayError:
                    decoded_count += 1  # skip the record whose text did not arrive
                messages = messages[decoded_count:]
        return texts


def _decode_each(
    decoder: Decoder, messages: Sequence[Message], is_hurried: Callable[[], bool]
) -> Iterator[OutputText]:
    address_by_place = decoder.addresses(messages) if decoder.fetches else {}
    places, addresses = [*address_by_place], [*address_by_place.values()]
    texts: dict[int, Fetched] = {}
    fetched_count = 0
    for place, message in enumerate(messages):
        if place in address_by_place and place not in texts:
            fetched = decoder.fetch(
                addresses, fetched_count, _FETCH_BYTES, _FETCH_AHEAD_BYTES, is_hurried
            )
            texts.update(
                zip(places[fetched_count : fetched_count + len(fetched)], fetched, strict=True)
            )
            fetched_count += len(fetched)
        decoded = decoder.decode(message, texts.pop(place, None))
        if isinstance(decoded, DecodedDocument):
            text = decoded.text if isinstance(decoded.text, str) else ""
            yield OutputText(decoded.id, text, title=decoded.title)
        else:
            yield OutputText(
                decoder.id_of(message) or b"",
                "",
                decoded.message if isinstance(decoded, DeadLetter) else "",
            )
