"""Generate a seeded stream of log records with known near-duplicates, for `bench index`.

Document n is either an original, whose print and sketch are a function of (seed, n), or a copy of
an earlier original: it differs from that in exactly `distance` random bits, and four values of its
sketch are drawn again. So nothing must be stored, and every record can be generated again.

Originals are as similar as unrelated real pages are. There are two languages; a quarter of the bits
of a print and a sixteenth of the values of a sketch are those of its language, the others are
random: prints of one language differ in 60 bits, those of two languages in 64. With `template`,
three quarters of the bits and two thirds of the values are those of one site: any two pages differ
in 28 bits and have similarity 0.43. docs/explanation/index-layout.md compares this with texts.

Invariants: the same numbers make the same bytes; a copy's original comes before it in the stream;
the sources' committed offsets follow a few records behind, as they do when workers commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import Mode
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.sketch import SKETCH_BYTES, SKETCH_VALUES
from stream_dedup.log.controls import Declaration
from stream_dedup.log.records import Batch, Control, Source, encode_batch, encode_control

RECORD_DOCUMENTS: Final = 1000
WORDS: Final = 2
_IN_FLIGHT_RECORDS: Final = 5
_TOPIC: Final = "documents"
_TOPIC_ID: Final = bytes(range(16))
_RECIPE: Final = "bench:128:random:000000"
BEGIN_MS: Final = 1_790_000_000_000
FEATURES: Final = 200
_LANGUAGES: Final = 2
_LANGUAGE_VALUES: Final = 16  # of 256
_SITE_VALUES: Final = 168
_CHANGED_VALUES: Final = 4
_MIX_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_ONE: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_TWO: Final = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A log record, and for each of its documents the number of the original that it copies, or -1:
    (n,) int64.
    """

    offset: int
    append_ms: int
    raw: bytes
    originals: NDArray[np.int64]
    prints: NDArray[np.uint64]
    sketches: NDArray[np.uint8]
    id_bytes: int


@dataclass(frozen=True, slots=True)
class PrintStream:
    """A stream of `documents` documents. The share `duplicates` of them are copies that differ in
    `distance` bits, within the plan's width. With `template` all are pages of one site.
    """

    plan: Plan
    documents: int
    duplicates: float
    distance: int
    seed: int = 1
    recipe: str = _RECIPE
    template: bool = False

    def declare(self) -> bytes:
        """Return the log's first record, at offset 0."""
        declared = Declaration(self.recipe, self.plan, "bench", 1, Mode.ENFORCE, WORDS * 64)
        return encode_control(Control("declare", declared.to_fields()))

    def records(self, first: int = 0) -> Iterator[StreamRecord]:
        """Return the batches, from the one at log offset `first` + 1 on."""
        for number in range(first, -(-self.documents // RECORD_DOCUMENTS)):
            yield self._record(number)

    def texts(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint8]]:
        """Return (originals, prints, sketches) of the documents of record `number`."""
        begin, end = number * RECORD_DOCUMENTS, min(self.documents, (number + 1) * RECORD_DOCUMENTS)
        count = end - begin
        chance = np.random.default_rng((self.seed, number))
        originals = np.full(count, -1, np.int64)
        prints, sketches = (
            self._prints(np.arange(begin, end)),
            self._sketches(np.arange(begin, end)),
        )
        if begin:  # the first record is all originals
            copies = np.flatnonzero(self._is_copy(np.arange(begin, end)))
            sources = chance.integers(0, begin, len(copies))
            genuine = ~self._is_copy(sources)  # what would copy a copy is an original instead
            copies, sources = copies[genuine], sources[genuine]
            originals[copies] = sources
            prints[copies] = self._prints(sources) ^ self._differences(chance, len(copies))
            sketches[copies] = self._sketches(sources)
            for first, end, count in (
                (0, SKETCH_VALUES, _CHANGED_VALUES),
                (SKETCH_VALUES, SKETCH_BYTES, _CHANGED_VALUES // 2),
            ):
                anew = (len(copies), count)
                sketches[copies[:, None], chance.integers(first, end, anew)] = chance.integers(
                    0, 256, anew, np.uint8
                )
        return originals, prints, sketches

    def _record(self, number: int) -> StreamRecord:
        originals, prints, sketches = self.texts(number)
        begin, count = number * RECORD_DOCUMENTS, len(originals)
        end = begin + count
        time_ms = BEGIN_MS + number * 10
        ids = tuple(
            b"https://host-%d.example/page/%d" % (document_number % 9973, document_number)
            for document_number in range(begin, end)
        )
        batch = Batch(
            recipe=self.recipe,
            mode=Mode.ENFORCE,
            nonce=self.seed.to_bytes(16, "big"),
            number=number,
            sources=(
                Source(
                    _TOPIC, _TOPIC_ID, 0, 0, max(0, begin - _IN_FLIGHT_RECORDS * RECORD_DOCUMENTS)
                ),
            ),
            source=np.zeros(count, np.uint16),
            offset=np.arange(begin, end, dtype=np.int64),
            value_digest=_mix(np.arange(begin, end), self.seed + 3),
            text_digest=self._random_limbs(np.arange(begin, end), 5).view(np.uint8),
            prints=prints,
            sketches=sketches,
            features=np.full(count, FEATURES, np.uint32),
            scope=np.zeros(count, np.uint64),
            site=np.zeros(count, np.uint64),
            title=np.zeros(count, np.uint64),
            time_ms=np.full(count, time_ms, np.int64),
            ids=ids,
        )
        return StreamRecord(
            number + 1,
            time_ms,
            encode_batch(batch),
            originals,
            prints,
            sketches,
            sum(map(len, ids)),
        )

    def _is_copy(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which documents may be copies, by a die that follows from their numbers; those are
        not copied.
        """
        dice = (_mix(numbers, self.seed + 9) >> np.uint64(11)) * 2.0**-53
        is_copy: NDArray[np.bool_] = (dice < self.duplicates) & (numbers >= RECORD_DOCUMENTS)
        return is_copy

    def _prints(self, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        first, other = self._random_limbs(numbers, 11), self._random_limbs(numbers, 13)
        is_shared = first | other if self.template else first & other
        own_limbs, shared = (
            self._random_limbs(numbers, 1),
            self._random_limbs(self._groups(numbers), 15),
        )
        return own_limbs ^ (own_limbs ^ shared) & is_shared

    def _sketches(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return sketches, (n, SKETCH_BYTES)."""
        is_shared = self._random_bytes(numbers, 40) < (
            _SITE_VALUES if self.template else _LANGUAGE_VALUES
        )
        return np.where(
            is_shared,
            self._random_bytes(self._groups(numbers), 60),
            self._random_bytes(numbers, 20),
        )

    def _groups(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each document's site, or language."""
        return numbers * 0 if self.template else numbers % _LANGUAGES

    def _random_bytes(self, numbers: NDArray[np.int64], salt: int) -> NDArray[np.uint8]:
        parts = [
            self._random_limbs(numbers, salt + 2 * part) for part in range(-(-SKETCH_BYTES // 16))
        ]
        return np.concatenate(parts, 1).view(np.uint8)[:, :SKETCH_BYTES]

    def _random_limbs(self, numbers: NDArray[np.int64], salt: int) -> NDArray[np.uint64]:
        return np.stack([_mix(numbers, self.seed + salt), _mix(numbers, self.seed + salt + 1)], 1)

    def _differences(self, chance: np.random.Generator, count: int) -> NDArray[np.uint64]:
        """Return what to XOR onto `count` prints: `distance` random bits of the plan's width in
        each.
        """
        order = chance.random((count, self.plan.width)).argpartition(
            max(0, self.distance - 1), axis=1
        )[:, : self.distance]
        bits = np.zeros((count, WORDS * 64), np.uint8)
        np.put_along_axis(bits, order, 1, axis=1)
        return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)


def _mix(numbers: NDArray[np.int64], salt: int) -> NDArray[np.uint64]:
    """Return random-looking limbs, a function of numbers and salt: splitmix64."""
    with np.errstate(over="ignore"):
        limbs = (numbers.astype(np.uint64) + np.uint64(salt) * np.uint64(1 << 40)) * _MIX_STEP
        limbs = (limbs ^ (limbs >> np.uint64(30))) * _MIX_ONE
        limbs = (limbs ^ (limbs >> np.uint64(27))) * _MIX_TWO
        return limbs ^ (limbs >> np.uint64(31))
