"""Turn a batch of source records into log records: decode, fingerprint all at once, encode.

Invariants: a record that can be judged gets exactly one place in exactly one log record; a record
that cannot is decided here, as a pure function of the record, the input settings and the outputs'
limits; documents keep the order in which they were read, so those of one partition are in offset
order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import (
    DeadLetter,
    Message,
    Mode,
    Reason,
    Representative,
    TopicPartitionKey,
    digest_id,
)
from stream_dedup.domain.errors import AwayError, StreamDedupError
from stream_dedup.domain.messages import Messages
from stream_dedup.domain.unexpected_errors import Unforeseen
from stream_dedup.fingerprinting import (
    Content,
    Fingerprinter,
    Prints,
    SiteHasher,
    as_vector,
    format_prints,
)
from stream_dedup.inputs.claim_checks import Fetched
from stream_dedup.inputs.decoder import Decoder, Documents
from stream_dedup.log import headers, records
from stream_dedup.log.record_frame import index_distinct
from stream_dedup.log.schema import Judgement, Verdicts

# Bytes of values in a chunk for quick and for slow recipes. The clock is read after each chunk, so
# a chunk must take at most a second; a usual batch of a quick recipe fits into one.
_QUICK_BYTES = 16 << 20
SLOW_BYTES = 64 << 10
AHEAD_BYTES = 64 << 20

# Contents that every fingerprinter accepts, by whether the recipe takes vectors. If one of these
# fails, the fingerprinter is at fault and not a document.
_KNOWN_GOOD: Final[Mapping[bool, list[Content]]] = {
    False: ["a text of ours"],
    True: [as_vector([1.0, 2.0])],
}

Decision: TypeAlias = DeadLetter | Reason | Judgement


@dataclass(slots=True, eq=False)
class Part:
    """One log record of a batch: its number, its bytes, and the rows of its documents in the batch.

    `verdicts` are the index's. The documents of an answered part without verdicts are delivered
    unjudged (`fail-open`).
    """

    number: int
    raw: bytes
    rows: list[int]
    log_offset: int | None = None
    is_answered: bool = False
    verdicts: Verdicts | None = None


@dataclass(slots=True, eq=False)
class InFlight:
    """A batch in flight: its records, the decision on each, and the log records sent for it.

    `local_decisions[i]` is the worker's decision on record i, or None if the index decides: its
    verdict is in the record's part. `prints` are the fingerprints in hex. `group_metadata` was read
    together with the records, and `epochs` are those of their partitions. `live_partitions` are the
    partitions whose records may still be committed. `waiting_since` is when the batch went in
    flight, in seconds of the monotonic clock. `ids` are the documents' ids (never digests), or the
    record's key for a record without a document.
    """

    messages: Messages
    local_decisions: list[Decision | None]
    prints: list[bytes | None]
    parts: list[Part]
    group_metadata: bytes
    epochs: dict[TopicPartitionKey, int]
    live_partitions: set[TopicPartitionKey] = field(default_factory=set)
    waiting_since: float = 0.0
    ids: list[bytes] = field(default_factory=list)
    _last_offsets: dict[TopicPartitionKey, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.messages = Messages.of(self.messages)

    @property
    def is_answered(self) -> bool:
        """Whether every log record of the batch has its answer."""
        return all(part.is_answered for part in self.parts)

    @property
    def is_whole(self) -> bool:
        """Whether this worker still owns all its partitions."""
        return self.live_partitions >= self.epochs.keys()

    @property
    def live_records(self) -> int:
        """Number of records that a commit of this batch covers."""
        return (
            len(self.messages)
            if self.is_whole
            else int(self.messages.are_from(self.live_partitions).sum())
        )

    def decisions(self) -> list[Decision | None]:
        """Return the outcome of each record; None for those without a verdict yet."""
        decisions = self.local_decisions[:]
        for part in self.parts:
            if part.verdicts is not None:
                for place, judgement in zip(part.rows, part.verdicts, strict=True):
                    decisions[place] = judgement
        return decisions

    def reasons(self) -> NDArray[np.uint8]:
        """Return the index's reason for each record, (n,); 0 where the index did not judge."""
        reasons = np.zeros(len(self.messages), np.uint8)
        for part in self.parts:
            if part.verdicts is not None:
                reasons[part.rows] = part.verdicts.reasons
        return reasons

    def duplicates(self) -> Iterator[tuple[int, Representative]]:
        """Yield the row of each duplicate and its representative."""
        for part in self.parts:
            if part.verdicts is not None:
                is_duplicate = part.verdicts.are_duplicates
                representatives = itertools.compress(
                    part.verdicts.named, is_duplicate[part.verdicts.names_another].tolist()
                )
                yield from zip(
                    np.array(part.rows)[is_duplicate].tolist(), representatives, strict=True
                )
        for row, decision in self.decided_locally():
            if isinstance(decision, Judgement) and decision.of is not None and not decision.sibling:
                yield row, decision.of

    def decided_locally(self) -> Iterable[tuple[int, Decision]]:
        """Return (row, decision) of the records that the worker decided without the index."""
        # The usual case first: the index decides on every record.
        if self.local_decisions.count(None) == len(self.local_decisions):
            return ()
        return (
            (row, decision)
            for row, decision in enumerate(self.local_decisions)
            if decision is not None
        )

    def offsets(self) -> dict[TopicPartitionKey, int]:
        """Return the offset to commit for each partition that this worker still owns."""
        if not self._last_offsets:
            self._last_offsets = self.messages.last_offsets()
        return {
            key: offset + 1
            for key, offset in self._last_offsets.items()
            if key in self.live_partitions
        }


class Preparer:
    """Turns records into batches for one worker process; `nonce` (16 bytes) identifies its log
    records.

    With `digests_ids` the log stores keyed digests instead of ids. `encode` returns the bytes of a
    log record of at most `record_documents`. If the recipe is slow, the clock is read after each
    `slow_bytes` of values. Texts in other storage are prefetched up to `ahead_bytes`.
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
        slow_bytes: int = SLOW_BYTES,
        record_documents: int = records.DOCUMENTS_MAX,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        self._decoder = decoder
        self._fingerprinter = fingerprinter
        self._recipe = fingerprinter.recipe
        self._nonce = nonce
        self._record_bytes_max = record_bytes_max
        self._mode = mode
        self._digests_ids = digests_ids
        self._encode = encode
        self._slow_bytes = slow_bytes
        self._record_documents = record_documents
        self._ahead_bytes = ahead_bytes
        self._site_hasher = SiteHasher(fingerprinter.recipe)
        self._number = 0
        self._unforeseen = Unforeseen("fingerprint", "fingerprinter")
        self._is_quick = not decoder.reads_pages and (
            fingerprinter.recipe.method.is_batched or fingerprinter.recipe.method.takes_vectors
        )

    def prepare(
        self,
        messages: Sequence[Message],
        sources: Mapping[TopicPartitionKey, records.Source],
        group_metadata: bytes,
        is_over: Callable[[], bool] = lambda: False,
        is_hurried: Callable[[], bool] = lambda: False,
    ) -> InFlight:
        """Return the batch of these records, or of a prefix of them; `sources` has one entry for
        each of their partitions.

        Records are prepared in chunks: consecutive records of a limited size. The batch ends after
        the current chunk once `is_over()`, and before a record whose text cannot be fetched now.
        While `is_hurried()`, texts in other storage are not waited for.

        Raises:
            AwayError: a service that the first record's text depends on is unavailable.
        """
        messages = Messages.of(messages)
        documents, prints, records_read = self._read(messages, is_over, is_hurried)
        messages = messages.part(0, records_read)
        decisions: list[Decision | None] = [None] * len(messages)
        for place, outcome in documents.outcomes.items():
            decisions[place] = outcome
        if len(documents.places) == len(messages):
            ids = documents.ids
        else:
            ids = [key or b"" for key in messages.keys]
            for place, identifier in zip(documents.places, documents.ids, strict=True):
                ids[place] = identifier
        keys = set(messages.last_offsets())
        batch = InFlight(
            messages,
            decisions,
            prints=[None] * len(messages),
            parts=[],
            group_metadata=group_metadata,
            epochs={key: sources[key].epoch for key in keys},
            live_partitions=keys,
            ids=ids,
        )
        if prints is not None:
            self._pack(batch, documents, prints, sources)
        return batch

    def _read(
        self, messages: Messages, is_over: Callable[[], bool], is_hurried: Callable[[], bool]
    ) -> tuple[Documents, Prints | None, int]:
        """Decode and fingerprint records, one chunk at a time, until `is_over`; return the
        documents, their fingerprints (None without any) and the number of records read.
        """
        decoded: list[tuple[int, Documents]] = []
        prints: list[Prints] = []
        start = 0
        large = frozenset(headers.find_too_large(messages, self._record_bytes_max))
        try:
            for stop, fetched in self._fetch_chunks(messages, large, is_hurried):
                chunk = messages.part(start, stop)
                skipped = frozenset(place - start for place in large if start <= place < stop)
                documents = self._decoder.decode_all(chunk, skipped, fetched)
                documents.outcomes.update(
                    (place, self._make_size_letter(chunk[place])) for place in skipped
                )
                if documents.texts:
                    documents, chunk_prints = self._fingerprint_chunk(documents, chunk)
                    prints.append(chunk_prints)
                    documents.texts.clear()  # as large as the records, and not needed again
                decoded.append((start, documents))
                fetched.clear()
                start = stop
                if is_over():
                    break
        except AwayError:
            if not start:
                raise
        return Documents.joined(decoded), Prints.joined(prints) if prints else None, start

    def _fingerprint_chunk(self, documents: Documents, chunk: Messages) -> tuple[Documents, Prints]:
        """Return the documents that have a fingerprint, and the fingerprints.

        A text that raises an unforeseen error becomes a dead letter, and the others are
        fingerprinted.
        """
        try:
            return documents, self._fingerprinter.fingerprint(documents.texts)
        except (StreamDedupError, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - each text is tried alone below
            self._fingerprinter.fingerprint(_KNOWN_GOOD[self._recipe.method.takes_vectors])
        rows: list[int] = []
        prints = [self._fingerprinter.fingerprint([])]
        for row, place in enumerate(documents.places):
            try:
                prints.append(self._fingerprinter.fingerprint(documents.texts[row : row + 1]))
                rows.append(row)
            except (StreamDedupError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - no text may keep others from being judged
                documents.outcomes[place] = self._unforeseen.letter(chunk[place], error)
        fingerprinted = Documents(
            places=[documents.places[row] for row in rows],
            texts=[documents.texts[row] for row in rows],
            ids=[documents.ids[row] for row in rows],
            times_ms=documents.times_ms[rows],
            scopes=documents.scopes[rows],
            sites=[documents.sites[row] for row in rows],
            titles=[documents.titles[row] for row in rows],
            outcomes=documents.outcomes,
        )
        return fingerprinted, Prints.joined(prints)

    def _chunk_ends(self, messages: Messages) -> Iterator[int]:
        """Yield the end of each chunk: the index of the record after its last."""
        bytes_max = self._chunk_bytes
        if int(messages.value_bytes.sum()) <= bytes_max:
            yield len(messages)
            return
        end_bytes = np.cumsum(messages.value_bytes)
        stop = 0
        while stop < len(messages):
            start_bytes = int(end_bytes[stop - 1]) if stop else 0
            stop = max(
                stop + 1, int(np.searchsorted(end_bytes, start_bytes + bytes_max, side="right"))
            )
            yield stop

    def _fetch_chunks(
        self, messages: Messages, skipped: Set[int], is_hurried: Callable[[], bool]
    ) -> Iterator[tuple[int, dict[int, Fetched]]]:
        """Yield the end of each chunk and its fetched texts, by place in the chunk.

        Raises:
            AwayError: the service that stores the next record's text is unavailable.
        """
        if not self._decoder.fetches:
            yield from ((stop, {}) for stop in self._chunk_ends(messages))
            return
        address_by_place = self._decoder.addresses(messages, skipped)
        places, addresses = [*address_by_place], [*address_by_place.values()]
        start = fetched_count = 0
        while start < len(messages):
            if not fetched_count and places and start < places[0]:
                # The records before the first text in other storage need not wait for it.
                stop, texts = places[0], []
            else:
                bytes_max = min(self._chunk_bytes, self._ahead_bytes // 2)
                texts = self._decoder.fetch(
                    addresses, fetched_count, bytes_max, self._ahead_bytes, is_hurried
                )
                stop = (
                    places[fetched_count + len(texts)]
                    if fetched_count + len(texts) < len(places)
                    else len(messages)
                )
            chunk_places = places[fetched_count : fetched_count + len(texts)]
            yield (
                stop,
                {place - start: text for place, text in zip(chunk_places, texts, strict=True)},
            )
            start = stop
            fetched_count += len(texts)

    @property
    def _chunk_bytes(self) -> int:
        return _QUICK_BYTES if self._is_quick else self._slow_bytes

    def _make_size_letter(self, message: Message) -> DeadLetter:
        if len(message.headers) > headers.FOREIGN_HEADERS_MAX:
            return DeadLetter(
                "size",
                "TooManyHeaders",
                f"The record has {len(message.headers)} headers; the limit is "
                f"{headers.FOREIGN_HEADERS_MAX}, because librdkafka reads at most 100,000, "
                "including the dedup.* headers. Configure the crawler to send fewer headers.",
            )
        size = headers.record_bytes(message.key, message.value, message.headers)
        return DeadLetter(
            "size",
            "TooLarge",
            f"The record needs up to {size} bytes with the dedup.* headers, but an output topic "
            f"accepts {self._record_bytes_max}. Raise max.message.bytes of the output topics, and "
            "send the record again (dlq redrive, if the dead letter is complete).",
        )

    def _fill_prints(self, batch: InFlight, documents: Documents, prints: Prints) -> None:
        """Set `batch.prints` to the fingerprints in hex; decide that documents without text are
        empty.
        """
        fingerprints: list[bytes | None] = [*format_prints(prints.prints, self._recipe.width)]
        for row in np.flatnonzero(prints.empty).tolist():
            batch.local_decisions[documents.places[row]] = Reason.EMPTY
            fingerprints[row] = None
        if len(fingerprints) == len(batch.messages):
            batch.prints = fingerprints
            return
        for place, fingerprint in zip(documents.places, fingerprints, strict=True):
            batch.prints[place] = fingerprint

    def _logged_ids(self, documents: Documents, rows: NDArray[np.intp]) -> list[bytes]:
        """Return the ids of these documents as the log stores them: plain, or as keyed digests."""
        ids = [documents.ids[row] for row in rows.tolist()]
        if self._digests_ids:
            return [digest_id(identifier, self._recipe.key) for identifier in ids]
        return ids

    def _pack(
        self,
        batch: InFlight,
        documents: Documents,
        prints: Prints,
        sources: Mapping[TopicPartitionKey, records.Source],
    ) -> None:
        """Encode the log records of a batch into its `parts`."""
        self._fill_prints(batch, documents, prints)
        rows = np.flatnonzero(~prints.empty)
        all_message_rows = np.array(documents.places)[rows]
        ids = self._logged_ids(documents, rows)
        sites = self._site_hasher.hash_sites(documents.sites)
        titles = self._site_hasher.hash_titles(documents.titles)
        messages = batch.messages
        start = 0
        for count in records.split_sizes(
            list(map(len, ids)),
            64 * self._recipe.limbs,
            self._recipe.sketch_bytes,
            len(sources),
            documents_max=self._record_documents,
        ):
            span = slice(start, start + count)
            start += count
            document_rows, message_rows = rows[span], all_message_rows[span]
            partitions, source = index_distinct(messages.partitions[message_rows])
            self._number += 1
            raw = self._encode(
                records.Batch(
                    recipe=self._recipe.id,
                    mode=self._mode,
                    nonce=self._nonce,
                    number=self._number,
                    sources=tuple(
                        sources[messages.topic, partition] for partition in partitions.tolist()
                    ),
                    source=source.astype(np.uint16),
                    offset=messages.offsets[message_rows],
                    value_digest=np.fromiter(
                        map(
                            records.value_digest,
                            map(messages.values.__getitem__, message_rows.tolist()),
                        ),
                        np.uint64,
                        count,
                    ),
                    text_digest=prints.digests[document_rows],
                    prints=prints.prints[document_rows],
                    sketches=prints.sketches[document_rows],
                    features=prints.features[document_rows],
                    scope=documents.scopes[document_rows],
                    site=sites[document_rows],
                    title=titles[document_rows],
                    time_ms=documents.times_ms[document_rows],
                    ids=tuple(ids[span]),
                )
            )
            batch.parts.append(Part(self._number, raw, message_rows.tolist()))
