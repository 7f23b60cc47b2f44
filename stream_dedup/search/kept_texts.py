"""The text of a record by where it lies: from Kafka, as long as the topic keeps it.

Invariant: what a record holds is read by the filter's own decoder, one thread at a time, as it wants.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from stream_dedup.ground.document import DeadLetter, Message, Reason, TopicPartitionKey
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.kafka import sample
from stream_dedup.settings.settings import Settings

# Whoever asks is a person at a page: rather no snippet than none for half a minute.
_PATIENCE_SECONDS = 3.0


class OutputText(NamedTuple):
    """What a record says of its document; the text is empty where there is none to search in."""

    id: bytes
    text: str


class OutputTexts:
    """The texts of one deployment's outputs."""

    def __init__(self, settings: Settings) -> None:
        """Take the input settings.

        Raises:
            ConfigurationError: an extra that they ask for is not installed.
        """
        self._settings = settings
        self._decoder = Decoder(settings)
        self._lock = threading.Lock()

    def of(self, message: Message) -> OutputText:
        """Return what a record of an output says."""
        with self._lock:
            found = self._decoder.decode(message)
        if isinstance(found, DeadLetter | Reason):
            return OutputText(message.key or b"", "")
        return OutputText(found.id, found.text if isinstance(found.text, str) else "")

    def at(self, places: Iterable[str]) -> Mapping[str, str]:
        """Return the texts at some places such as `unique-3@17`; those that are kept no longer are left out.

        Raises:
            BrokerError: Kafka does not give them.
        """
        spans: dict[TopicPartitionKey, list[tuple[int, int]]] = {}
        for at in places:
            front, _, offset = at.rpartition("@")
            topic, _, partition = front.rpartition("-")
            spans.setdefault((topic, int(partition)), []).append((int(offset), int(offset) + 1))
        ordered = {key: sorted(own) for key, own in spans.items()}
        with closing(sample(self._settings, ordered, _PATIENCE_SECONDS)) as found:  # type: ignore[type-var]
            return {f"{one.topic}-{one.partition}@{one.offset}": self.of(one).text for one in found}
