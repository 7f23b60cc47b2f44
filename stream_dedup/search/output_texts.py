"""Read the texts of records of the outputs: of records as they are read, and by position.

Invariants: the filter's own decoder reads them; a page that needs a text does not wait for the
role's reading, and at most `_PATIENCE_SECONDS` for a text in another store.
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
_STRETCH_BYTES: Final = 4 << 20
_AHEAD_BYTES: Final = 64 << 20


class OutputText(NamedTuple):
    """The document of a record. The text is empty if there is nothing to search in; `why`: why a
    text that should exist cannot be read.
    """

    id: bytes
    text: str
    why: str = ""
    title: str = ""


class OutputTexts:
    """The texts of one deployment's outputs."""

    def __init__(self, settings: Settings) -> None:
        """Take the input settings.

        Raises:
            ConfigurationError: an extra that they ask for is not installed.
        """
        self._settings = settings
        self._decoder = Decoder(settings)
        self._asked = Decoder(settings)
        self._lock = threading.Lock()

    def of_each(
        self, messages: Sequence[Message], is_hurried: Callable[[], bool]
    ) -> Iterator[OutputText]:
        """Yield the document of each record, in their order; texts in other stores are fetched
        ahead. For one thread.

        Raises:
            AwayError: the store of the next text does not answer; or the caller `is_hurried`, and
            it has not arrived.
        """
        return _read_each(self._decoder, messages, is_hurried)

    def at(self, places: Iterable[str]) -> Mapping[str, str]:
        """Return the texts at positions such as `unique-3@17`, without those that cannot be read.

        Raises:
            BrokerError: Kafka does not give them.
        """
        spans: dict[TopicPartitionKey, list[tuple[int, int]]] = {}
        for position in places:
            front, _, offset = position.rpartition("@")
            topic, _, partition = front.rpartition("-")
            spans.setdefault((topic, int(partition)), []).append((int(offset), int(offset) + 1))
        ordered = {key: sorted(key_spans) for key, key_spans in spans.items()}
        with closing(read_spans(self._settings, ordered, _PATIENCE_SECONDS)) as records:  # type: ignore[type-var]
            messages = list(records)
        texts: dict[str, str] = {}
        with self._lock:
            until = time.monotonic() + _PATIENCE_SECONDS
            while messages:
                done = 0
                try:
                    for text in _read_each(
                        self._asked, messages, lambda: time.monotonic() >= until
                    ):
                        message = messages[done]
                        texts[message.position] = text.text
                        done += 1
                except AwayError:
                    done += 1
                messages = messages[done:]
        return texts


def _read_each(
    decoder: Decoder, messages: Sequence[Message], is_hurried: Callable[[], bool]
) -> Iterator[OutputText]:
    address_of_place = decoder.addresses(messages) if decoder.fetches else {}
    places, addresses = [*address_of_place], [*address_of_place.values()]
    texts: dict[int, Fetched] = {}
    fetched_count = 0
    for place, message in enumerate(messages):
        if place in address_of_place and place not in texts:
            fetched = decoder.fetch(
                addresses, fetched_count, _STRETCH_BYTES, _AHEAD_BYTES, is_hurried
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
