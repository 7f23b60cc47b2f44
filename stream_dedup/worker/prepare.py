"""A batch of source records becomes log records: decode, fingerprint all at once, pack.

Invariants: a record that can be judged gets exactly one place in exactly one log record; a record
that cannot is decided here, as a pure function of the record, the input settings and the outputs'
limits; documents keep the order in which they were read, so those of one partition stand in offset
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
from stream_dedup.domain.unforeseen import Unforeseen
from stream_dedup.fingerprinting import (
    Content,
    Fingerprinter,
    Prints,
    SiteHasher,
    as_vector,
    format_prints,
)
from stream_dedup.inputs.decoder import Decoder, Documents
from stream_dedup.inputs.elsewhere import Fetched
from stream_dedup.log import headers, records
from stream_dedup.log.answers import Judgement, Verdicts
from stream_dedup.log.frame import table_of

# Bytes of values that are prepared before the clock is looked at: as many as take a second at most,
# and the usual batch of what one kernel does at once is not cut.
_QUICK_BYTES = 16 << 20
SLOW_BYTES = 64 << 10
AHEAD_BYTES = 64 << 20

# A text and a vector that no recipe can take amiss.
_OURS: Final[Mapping[bool, list[Content]]] = {
    False: ["a text of ours"],
    True: [as_vector([1.0, 2.0])],
}

Decided: TypeAlias = DeadLetter | Reason | Judgement


@dataclass(slots=True, eq=False)
class Part:
    """One log record of a batch: its number, its bytes, and which of the batch's records its
    documents are.

    `verdicts` are the index's; an answered part without any was let pass.
    """

    number: int
    raw: bytes
    places: list[int]
    log_offset: int | None = None
    answered: bool = False
    verdicts: Verdicts | None = None


@dataclass(slots=True, eq=False)
class InFlight:
    """A batch on its way: what was read, what is known of each record, and what the log was asked.

    `decided[i]` is what was decided of record i, unless the index did: then it is None, and its
    part has the verdict. `live` are the partitions whose records may still be committed. `taken` is
    when it was read, in seconds of the monotonic clock. `ids` are the documents' own ids, no
    digests; the key where there is no document.
    """

    messages: Messages
    decided: list[Decided | None]
    prints: list[bytes | None]
    parts: list[Part]
    stamp: bytes
    epochs: dict[TopicPartitionKey, int]
    live: set[TopicPartitionKey] = field(default_factory=set)
    taken: float = 0.0
    ids: list[bytes] = field(default_factory=list)
    _last: dict[TopicPartitionKey, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.messages = Messages.of(self.messages)

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
        return (
            len(self.messages)
            if self.is_whole
            else int(self.messages.of_partitions(self.live).sum())
        )

    def decisions(self) -> list[Decided | None]:
        """Return the outcome of each record; None for those that still wait."""
        decisions = self.decided[:]
        for part in self.parts:
            if part.verdicts is not None:
                for place, judgement in zip(part.places, part.verdicts, strict=True):
                    decisions[place] = judgement
        return decisions

    def reasons(self) -> NDArray[np.uint8]:
        """Return the index's reason for each record, (n,); 0 for those of which it gave none."""
        reasons = np.zeros(len(self.messages), np.uint8)
        for part in self.parts:
            if part.verdicts is not None:
                reasons[part.places] = part.verdicts.reasons
        return reasons

    def duplicates(self) -> Iterator[tuple[int, Representative]]:
        """Yield which records are duplicates, and of what."""
        for part in self.parts:
            if part.verdicts is not None:
                is_duplicate = part.verdicts.are_duplicates
                of = itertools.compress(
                    part.verdicts.named, is_duplicate[part.verdicts.names_another].tolist()
                )
                yield from zip(np.array(part.places)[is_duplicate].tolist(), of, strict=True)
        for row, decided in self.decided_here():
            if isinstance(decided, Judgement) and decided.of is not None and not decided.sibling:
                yield row, decided.of

    def decided_here(self) -> Iterable[tuple[int, Decided]]:
        """Return which records were decided by anything but the index's verdict, and how: nearly
        always none.
        """
        if self.decided.count(None) == len(self.decided):
            return ()
        return ((row, decided) for row, decided in enumerate(self.decided) if decided is not None)

    def offsets(self) -> dict[TopicPartitionKey, int]:
        """Return the offset behind its last record in each partition that is still ours."""
        if not self._last:
            self._last = self.messages.last_offsets()
        return {key: offset + 1 for key, offset in self._last.items() if key in self.live}


class Preparer:
    """Turns records into batches, for one worker process; `nonce` (16 bytes) tells its log records
    from all others.

    With `digests_ids` the log gets keyed digests instead of ids. `encode` makes a log record of a
    batch, of at most `record_documents`. Where texts take long, the clock is looked at after each
    `slow_bytes` of values. Of texts that lie elsewhere at most `ahead_bytes` are held before their
    turn.
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
            fingerprinter.recipe.method.is_at_once or fingerprinter.recipe.method.takes_vectors
        )

    def prepare(
        self,
        messages: Sequence[Message],
        sources: Mapping[TopicPartitionKey, records.Source],
        stamp: bytes,
        is_over: Callable[[], bool] = lambda: False,
        is_hurried: Callable[[], bool] = lambda: False,
    ) -> InFlight:
        """Return the batch for these records, or for the first of them; `sources` has one entry for
        each partition among them.

        Once `is_over`, what is in work is finished, and the records behind it are left out. So are
        those behind one that lacks something which is away. A caller who `is_hurried` waits for no
        text that lies elsewhere.

        Raises:
            AwayError: what the first record cannot be read without is away.
        """
        messages = Messages.of(messages)
        documents, prints, done = self._read(messages, is_over, is_hurried)
        messages = messages.part(0, done)
        decided: list[Decided | None] = [None] * len(messages)
        for place, outcome in documents.passed_over.items():
            decided[place] = outcome
        if len(documents.places) == len(messages):
            ids = documents.ids
        else:
            ids = [key or b"" for key in messages.keys]
            for place, identifier in zip(documents.places, documents.ids, strict=True):
                ids[place] = identifier
        keys = set(messages.last_offsets())
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
        if prints is not None:
            self._pack(batch, documents, prints, sources)
        return batch

    def _read(
        self, messages: Messages, is_over: Callable[[], bool], is_hurried: Callable[[], bool]
    ) -> tuple[Documents, Prints | None, int]:
        """Decode and fingerprint records, stretch by stretch, until it `is_over`; return how many
        of them that were.
        """
        found: list[tuple[int, Documents]] = []
        prints: list[Prints] = []
        start = 0
        large = frozenset(headers.too_large(messages, self._record_bytes_max))
        try:
            for stop, fetched in self._fetched(messages, large, is_hurried):
                stretch = messages.part(start, stop)
                skipped = frozenset(place - start for place in large if start <= place < stop)
                documents = self._decoder.decode_all(stretch, skipped, fetched)
                documents.passed_over.update(
                    (place, self._too_large(stretch[place])) for place in skipped
                )
                if documents.texts:
                    documents, made = self._fingerprinted(documents, stretch)
                    prints.append(made)
                    # they are not needed again, and are as large as the records
                    documents.texts.clear()
                found.append((start, documents))
                fetched.clear()
                start = stop
                if is_over():
                    break
        except AwayError:
            if not start:
                raise
        return Documents.joined(found), Prints.joined(prints) if prints else None, start

    def _fingerprinted(self, documents: Documents, stretch: Messages) -> tuple[Documents, Prints]:
        """Return prints, and the documents that have one: a text that leads to an error is a dead
        letter and costs no other.
        """
        try:
            return documents, self._fingerprinter.fingerprint(documents.texts)
        except (StreamDedupError, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - each text is looked at by itself
            self._fingerprinter.fingerprint(
                _OURS[self._recipe.method.takes_vectors]
            )  # else no text is at fault
        rows: list[int] = []
        prints = [self._fingerprinter.fingerprint([])]
        for row, place in enumerate(documents.places):
            try:
                prints.append(self._fingerprinter.fingerprint(documents.texts[row : row + 1]))
                rows.append(row)
            except (StreamDedupError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - no text may keep others from being judged
                documents.passed_over[place] = self._unforeseen.letter(stretch[place], error)
        left = Documents(
            [documents.places[row] for row in rows],
            [documents.texts[row] for row in rows],
            [documents.ids[row] for row in rows],
            documents.times_ms[rows],
            documents.scopes[rows],
            [documents.sites[row] for row in rows],
            [documents.titles[row] for row in rows],
            documents.passed_over,
        )
        return left, Prints.joined(prints)

    def _stretches(self, messages: Messages) -> Iterator[int]:
        """Yield where each stretch of records ends that is worked on before anybody looks at the
        clock.
        """
        most = self._stretch_bytes
        if int(messages.value_bytes.sum()) <= most:
            yield len(messages)
            return
        ends = np.cumsum(messages.value_bytes)
        stop = 0
        while stop < len(messages):
            before = int(ends[stop - 1]) if stop else 0
            stop = max(stop + 1, int(np.searchsorted(ends, before + most, side="right")))
            yield stop

    def _fetched(
        self, messages: Messages, skipped: Set[int], is_hurried: Callable[[], bool]
    ) -> Iterator[tuple[int, dict[int, Fetched]]]:
        """Yield where each stretch of records ends, and the texts of those whose text lies
        elsewhere, by place in the stretch.

        Raises:
            AwayError: what the record behind the last stretch cannot be read without is away.
        """
        if not self._decoder.fetches:
            yield from ((stop, {}) for stop in self._stretches(messages))
            return
        found = self._decoder.addresses(messages, skipped)
        places, addresses = [*found], [*found.values()]
        start = taken = 0
        while start < len(messages):
            if taken < len(places) and start < places[taken] and not taken:
                stop, texts = places[taken], []  # those before the first text need not wait for it
            else:
                most = min(self._stretch_bytes, self._ahead_bytes // 2)
                texts = self._decoder.fetch(addresses, taken, most, self._ahead_bytes, is_hurried)
                stop = (
                    places[taken + len(texts)]
                    if taken + len(texts) < len(places)
                    else len(messages)
                )
            yield (
                stop,
                {
                    place - start: text
                    for place, text in zip(places[taken : taken + len(texts)], texts, strict=True)
                },
            )
            start = stop
            taken += len(texts)

    @property
    def _stretch_bytes(self) -> int:
        return _QUICK_BYTES if self._is_quick else self._slow_bytes

    def _too_large(self, message: Message) -> DeadLetter:
        if len(message.headers) > headers.FOREIGN_HEADERS_MAX:
            return DeadLetter(
                "size",
                "TooManyHeaders",
                f"The record has {len(message.headers)} headers. With ours they would be more than "
                "the 100,000 that librdkafka "
                f"reads, so at most {headers.FOREIGN_HEADERS_MAX} are passed on. Have the crawler "
                "send fewer.",
            )
        size = headers.record_bytes(message.key, message.value, message.headers)
        return DeadLetter(
            "size",
            "TooLarge",
            f"The record needs up to {size} bytes with our headers, and an output topic takes "
            f"{self._record_bytes_max}; "
            "raise max.message.bytes of the output topics, then redrive it.",
        )

    def _pack(
        self,
        batch: InFlight,
        documents: Documents,
        prints: Prints,
        sources: Mapping[TopicPartitionKey, records.Source],
    ) -> None:
        """Make log records of what was found."""
        written: list[bytes | None] = [*format_prints(prints.prints, self._recipe.width)]
        places = np.array(documents.places)
        for row in np.flatnonzero(prints.empty).tolist():
            batch.decided[documents.places[row]] = Reason.EMPTY
            written[row] = None
        if len(written) == len(batch.messages):
            batch.prints = written
        else:
            for place, one in zip(documents.places, written, strict=True):
                batch.prints[place] = one
        rows = np.flatnonzero(~prints.empty)
        judged = places[rows]
        own_ids = (
            documents.ids
            if len(rows) == len(documents.ids)
            else [documents.ids[row] for row in rows.tolist()]
        )
        ids = (
            [digest_id(one, self._recipe.key) for one in own_ids] if self._digests_ids else own_ids
        )
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
            part = slice(start, start + count)
            start += count
            chosen, asked = rows[part], judged[part]
            partitions, source = table_of(messages.partitions[asked])
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
                    offset=messages.offsets[asked],
                    value_digest=np.fromiter(
                        map(records.value_digest, map(messages.values.__getitem__, asked.tolist())),
                        np.uint64,
                        count,
                    ),
                    text_digest=prints.digests[chosen],
                    prints=prints.prints[chosen],
                    sketches=prints.sketches[chosen],
                    features=prints.features[chosen],
                    scope=documents.scopes[chosen],
                    site=sites[chosen],
                    title=titles[chosen],
                    time_ms=documents.times_ms[chosen],
                    ids=tuple(ids[part]),
                )
            )
            batch.parts.append(Part(self._number, raw, asked.tolist()))
