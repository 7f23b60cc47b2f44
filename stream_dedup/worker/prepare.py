"""A batch of source records becomes log records: decode, fingerprint all at once, pack.

Invariants: a record that can be judged gets exactly one place in exactly one log record; a record that cannot is decided
here, as a pure function of the record, the input settings and the outputs' limits; documents keep the order in which
they were read, so those of one partition stand in offset order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from stream_dedup.document import DeadLetter, Message, Mode, Reason, TopicPartitionKey, digest_id
from stream_dedup.fingerprint import Fingerprinter, format_prints
from stream_dedup.log import headers, records
from stream_dedup.log.answers import Judgement
from stream_dedup.worker.inputs import Decoder, Document

Decided: TypeAlias = DeadLetter | Reason | Judgement


@dataclass(slots=True, eq=False)
class Part:
    """One log record of a batch: its number, its bytes, and which of the batch's records its documents are."""

    number: int
    raw: bytes
    places: list[int]
    log_offset: int | None = None
    answered: bool = False


@dataclass(slots=True, eq=False)
class InFlight:
    """A batch on its way: what was read, what is known of each record, and what the log was asked.

    `decided[i]` is None until record i has a verdict. `live` are the partitions whose records may still be committed.
    `taken` is when it was read, in seconds of the monotonic clock.
    """

    messages: list[Message]
    decided: list[Decided | None]
    prints: list[bytes | None]
    parts: list[Part]
    stamp: bytes
    epochs: dict[TopicPartitionKey, int]
    live: set[TopicPartitionKey] = field(default_factory=set)
    taken: float = 0.0

    @property
    def is_answered(self) -> bool:
        """Whether every record has a verdict."""
        return all(part.answered for part in self.parts)

    @property
    def live_records(self) -> int:
        """How many records a commit of this batch moves past."""
        if self.live >= self.epochs.keys():
            return len(self.messages)
        return sum((message.topic, message.partition) in self.live for message in self.messages)


class Preparer:
    """Turns records into batches, for one worker process; `nonce` (16 bytes) tells its log records from all others.

    With `digests_ids` the log gets keyed digests instead of ids. `encode` makes a log record of a batch.
    """

    def __init__(
        self,
        decoder: Decoder,
        fingerprinter: Fingerprinter,
        nonce: bytes,
        record_bytes_max: int,
        mode: Mode = Mode.ENFORCE,
        *,
        digests_ids: bool = False,
        encode: Callable[[records.Batch], bytes] = records.encode_batch,
    ) -> None:
        self._decoder = decoder
        self._fingerprinter = fingerprinter
        self._recipe = fingerprinter.recipe
        self._nonce = nonce
        self._record_bytes_max = record_bytes_max
        self._mode = mode
        self._digests_ids = digests_ids
        self._encode = encode
        self._number = 0

    def prepare(self, messages: list[Message], sources: Mapping[TopicPartitionKey, records.Source], stamp: bytes) -> InFlight:
        """Return the batch for these records; `sources` has one entry for each partition among them."""
        keys = {(message.topic, message.partition) for message in messages}
        decided: list[Decided | None] = []
        documents: list[Document] = []
        places: list[int] = []
        for index, message in enumerate(messages):
            outcome = self._too_large(message) or self._decoder.decode(message)
            if isinstance(outcome, Document):
                if self._digests_ids:
                    outcome = outcome._replace(id=digest_id(outcome.id, self._fingerprinter.recipe.key))
                documents.append(outcome)
                places.append(index)
                decided.append(None)
            else:
                decided.append(outcome)
        batch = InFlight(
            messages,
            decided,
            [None] * len(messages),
            [],
            stamp,
            {key: sources[key].epoch for key in keys},
            keys,
        )
        if documents:
            self._fingerprint(batch, documents, places, sources)
        return batch

    def _too_large(self, message: Message) -> DeadLetter | None:
        size = headers.record_bytes(message.key, message.value, message.headers)
        if size <= self._record_bytes_max:
            return None
        return DeadLetter(
            "size",
            "TooLarge",
            f"The record needs up to {size} bytes with our headers, and an output topic takes {self._record_bytes_max}; "
            "raise max.message.bytes of the output topics, then redrive it.",
        )

    def _fingerprint(
        self,
        batch: InFlight,
        documents: Sequence[Document],
        places: Sequence[int],
        sources: Mapping[TopicPartitionKey, records.Source],
    ) -> None:
        prints = self._fingerprinter.fingerprint([document.text for document in documents])
        judged: list[int] = []  # rows of `prints` that go to the log
        for row, is_empty in enumerate(prints.empty.tolist()):
            if is_empty:
                batch.decided[places[row]] = Reason.EMPTY
            else:
                judged.append(row)
        written = format_prints(prints.prints, self._recipe.width)
        for row in judged:
            batch.prints[places[row]] = written[row]
        start = 0
        sizes = [len(documents[row].id) for row in judged]
        for count in records.split_sizes(sizes, 64 * self._recipe.words, len(sources)):
            rows = judged[start : start + count]
            start += count
            part_messages = [batch.messages[places[row]] for row in rows]
            table = {key: index for index, key in enumerate(dict.fromkeys((m.topic, m.partition) for m in part_messages))}
            chosen = np.asarray(rows, dtype=np.intp)
            self._number += 1
            raw = self._encode(
                records.Batch(
                    recipe=self._recipe.id,
                    mode=self._mode,
                    nonce=self._nonce,
                    number=self._number,
                    sources=tuple(sources[key] for key in table),
                    source=np.fromiter((table[m.topic, m.partition] for m in part_messages), np.uint16, count),
                    offset=np.fromiter((m.offset for m in part_messages), np.int64, count),
                    value_digest=np.fromiter((value_digest(m.value) for m in part_messages), np.uint64, count),
                    text_digest=prints.digests[chosen],
                    prints=prints.prints[chosen],
                    features=prints.features[chosen],
                    scope=np.fromiter((documents[row].scope for row in rows), np.uint64, count),
                    time_ms=np.fromiter((documents[row].time_ms for row in rows), np.int64, count),
                    ids=tuple(documents[row].id for row in rows),
                )
            )
            batch.parts.append(Part(self._number, raw, [places[row] for row in rows]))


def value_digest(value: bytes | None) -> int:
    """Return the 64-bit digest of a raw value: it tells a redelivery from another document at the same position."""
    return int.from_bytes(hashlib.blake2b(value or b"", digest_size=8).digest(), "little")
