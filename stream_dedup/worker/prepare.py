"""A batch of source records becomes log records: decode, fingerprint all at once, pack.

Invariants: a record that can be judged gets exactly one place in exactly one log record; a record that cannot is decided
here, as a pure function of the record, the input settings and the outputs' limits; documents keep the order in which
they were read, so those of one partition stand in offset order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import xxhash

from stream_dedup.document import DeadLetter, Message, Mode, Reason, TopicPartitionKey, digest_id
from stream_dedup.fingerprint import Fingerprinter, format_prints
from stream_dedup.log import headers, records
from stream_dedup.log.answers import Judgement
from stream_dedup.worker.inputs import Decoder, Document

Decided: TypeAlias = DeadLetter | Reason | Judgement

# Columns of a batch are taken from its records by code that is compiled, as far as there is such.
partition_of = itemgetter(Message._fields.index("topic"), Message._fields.index("partition"))
_offset_of = itemgetter(Message._fields.index("offset"))
_text_of, _id_of, _time_of, _scope_of = (itemgetter(place) for place in range(len(Document._fields)))


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
    `taken` is when it was read, in seconds of the monotonic clock. `ids` are the documents' own ids, whatever the log gets;
    the key where there is no document.
    """

    messages: list[Message]
    decided: list[Decided | None]
    prints: list[bytes | None]
    parts: list[Part]
    stamp: bytes
    epochs: dict[TopicPartitionKey, int]
    live: set[TopicPartitionKey] = field(default_factory=set)
    taken: float = 0.0
    ids: list[bytes] = field(default_factory=list)
    _last: dict[TopicPartitionKey, int] = field(default_factory=dict, init=False)

    @property
    def is_answered(self) -> bool:
        """Whether every record has a verdict."""
        return all(part.answered for part in self.parts)

    @property
    def is_whole(self) -> bool:
        """Whether all its partitions are still ours."""
        return self.live >= self.epochs.keys()

    @property
    def live_records(self) -> int:
        """How many records a commit of this batch moves past."""
        return len(self.messages) if self.is_whole else sum(map(self.live.__contains__, map(partition_of, self.messages)))

    def offsets(self) -> dict[TopicPartitionKey, int]:
        """Return the offset behind its last record in each partition that is still ours."""
        if not self._last:
            self._last = dict(zip(map(partition_of, self.messages), map(_offset_of, self.messages), strict=True))
        return {key: offset + 1 for key, offset in self._last.items() if key in self.live}


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
        keys = set(map(partition_of, messages))
        decided: list[Decided | None] = [None] * len(messages)
        documents: list[Document] = []
        places: list[int] = []
        ids = [message.key or b"" for message in messages]
        decode, fits, most = self._decoder.decode, headers.fits, self._record_bytes_max
        for place, message in enumerate(messages):
            outcome = decode(message) if fits(message.key, message.value, message.headers, most) else self._too_large(message)
            if isinstance(outcome, Document):
                documents.append(outcome)
                places.append(place)
                ids[place] = outcome.id
            else:
                decided[place] = outcome
        if self._digests_ids:
            key = self._recipe.key
            documents = [document._replace(id=digest_id(document.id, key)) for document in documents]
        batch = InFlight(
            messages,
            decided,
            [None] * len(messages),
            [],
            stamp,
            {key: sources[key].epoch for key in keys},
            keys,
            ids=ids,
        )
        if documents:
            self._fingerprint(batch, documents, places, sources)
        return batch

    def _too_large(self, message: Message) -> DeadLetter:
        size = headers.record_bytes(message.key, message.value, message.headers)
        return DeadLetter(
            "size",
            "TooLarge",
            f"The record needs up to {size} bytes with our headers, and an output topic takes {self._record_bytes_max}; "
            "raise max.message.bytes of the output topics, then redrive it.",
        )

    def _fingerprint(
        self,
        batch: InFlight,
        documents: list[Document],
        places: list[int],
        sources: Mapping[TopicPartitionKey, records.Source],
    ) -> None:
        prints = self._fingerprinter.fingerprint(list(map(_text_of, documents)))
        written: list[bytes | None] = [*format_prints(prints.prints, self._recipe.width)]
        rows = np.arange(len(documents))
        if prints.empty.any():
            for row in np.flatnonzero(prints.empty).tolist():
                batch.decided[places[row]] = Reason.EMPTY
                written[row] = None
            rows = np.flatnonzero(~prints.empty)
            documents, judged = [documents[row] for row in rows.tolist()], [places[row] for row in rows.tolist()]
        else:
            judged = list(places)
        if len(written) == len(batch.messages):
            batch.prints = written
        else:
            for place, one in zip(places, written, strict=True):
                batch.prints[place] = one
        messages = batch.messages if len(judged) == len(batch.messages) else [batch.messages[place] for place in judged]
        ids = list(map(_id_of, documents))
        start = 0
        for count in records.split_sizes(list(map(len, ids)), 64 * self._recipe.words, len(sources)):
            part = slice(start, start + count)
            start += count
            chosen, asked = rows[part], documents[part]
            partitions = list(map(partition_of, messages[part]))
            table = {key: index for index, key in enumerate(dict.fromkeys(partitions))}
            self._number += 1
            raw = self._encode(
                records.Batch(
                    recipe=self._recipe.id,
                    mode=self._mode,
                    nonce=self._nonce,
                    number=self._number,
                    sources=tuple(sources[key] for key in table),
                    source=np.fromiter(map(table.__getitem__, partitions), np.uint16, count),
                    offset=np.fromiter(map(_offset_of, messages[part]), np.int64, count),
                    value_digest=np.fromiter((value_digest(one.value) for one in messages[part]), np.uint64, count),
                    text_digest=prints.digests[chosen],
                    prints=prints.prints[chosen],
                    features=prints.features[chosen],
                    scope=np.fromiter(map(_scope_of, asked), np.uint64, count),
                    time_ms=np.fromiter(map(_time_of, asked), np.int64, count),
                    ids=tuple(ids[part]),
                )
            )
            batch.parts.append(Part(self._number, raw, judged[part]))


def value_digest(value: bytes | None) -> int:
    """Return XXH3-64 of a raw value: it tells a redelivery from another document at the same position.

    Two values that collide would have to come to one offset of one topic, so this is no place for an attack.
    """
    return xxhash.xxh3_64_intdigest(value or b"")
