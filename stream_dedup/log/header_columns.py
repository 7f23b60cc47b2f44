"""Our headers of many verdicts at once, as columns, written by a compiled kernel.

Invariant: the bytes are those of `headers.of_verdict` for every verdict with a fingerprint; a test
compares them.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.better_copy import BETTER_LABELS
from stream_dedup.domain.document import Reason
from stream_dedup.domain.sketch import NOT_COMPARED
from stream_dedup.kernels.byte_arrays import copy_bytes
from stream_dedup.kernels.compiled import inlined, kernel
from stream_dedup.log import headers
from stream_dedup.log.schema import COLUMNS, NamedRepresentatives, Verdicts

NAMES = (
    headers.VERDICT,
    headers.REASON,
    headers.RECIPE,
    headers.POSITION,
    headers.FINGERPRINT,
    headers.DISTANCE,
    headers.SIMILARITY,
    headers.COPIES,
    headers.BETTER,
    headers.OF_ID,
    headers.OF_POSITION,
    headers.OF_TIME,
    headers.SIBLING_SIMILARITY,
    headers.SIBLING_ID,
    headers.SIBLING_POSITION,
    headers.LOG,
)
_VERDICT, _REASON, _RECIPE, _POSITION, _FINGERPRINT, _DISTANCE = range(6)
_SIMILARITY, _COPIES, _BETTER, _OF_ID, _OF_POSITION, _OF_TIME = range(6, 12)
_SIBLING_SIMILARITY, _SIBLING_ID, _SIBLING_POSITION, _LOG = range(12, len(NAMES))
_NEW = int(Reason.NEW)
# A position's partition and offset of 10 and 20 digits with a dash and an at sign, a distance of 3,
# a similarity of 4, copies of 10, a rule of 9, a log offset and a place of 20 and 10 with a slash.
_NUMBERS_BYTES_MAX = 32 + 3 + 4 + 10 + 9 + 31
_SLASH, _DOT, _DASH, _ZERO, _AT = (ord(character) for character in "/.-0@")
_NOT_COMPARED = NOT_COMPARED


class HeaderColumns(NamedTuple):
    """The headers of n records: record i has the headers j from `stops[i - 1]` to before `stops[i]`.

    Header j has the name `names[of[j]]` and the value `values[ends[j - 1] : ends[j]]`; `of` and
    `ends` are (headers,), `stops` is (n,).
    """

    names: Sequence[str]
    of: NDArray[np.uint8]
    ends: NDArray[np.int64]
    stops: NDArray[np.int64]
    values: NDArray[np.uint8]


class SourcePlaces(NamedTuple):
    """The source positions of n records: the topic, and `partitions` and `offsets` (n,)."""

    topic: str
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]


# The columns of verdicts for the kernel, and which verdicts are wanted, (n,) each.
_JudgedArrays = cast("Any", namedtuple)(
    "_JudgedArrays", [*(column.name for column in COLUMNS), "wanted"]
)


class _NamedArrays(NamedTuple):
    """The texts of the representatives that the verdicts name: id, position and time of each, one
    after the other, split at `stops` (3 m + 1,).
    """

    texts: NDArray[np.uint8]
    stops: NDArray[np.int64]


class _WrittenArrays(NamedTuple):
    """The output arrays of the kernel, as in `HeaderColumns`."""

    of: NDArray[np.uint8]
    ends: NDArray[np.int64]
    stops: NDArray[np.int64]
    values: NDArray[np.uint8]


def of_verdicts(
    recipe: str,
    places: SourcePlaces,
    fingerprints: NDArray[np.uint8],
    verdicts: Verdicts,
    wanted: NDArray[np.bool_],
) -> HeaderColumns:
    """Return our headers of n records; `fingerprints` (n, digits) are in hex.

    Records outside the mask `wanted` (n,) get no headers: they have no outcome, or are built one by
    one.

    Raises:
        ValueError: a wanted verdict is not an outcome.
    """
    if not verdicts.are_outcomes[wanted].all():
        raise ValueError("a verdict that is to be written is not an outcome for a reader")
    count, digits = fingerprints.shape
    outcomes, outcome_stops = _outcome_labels()
    named = _NamedArrays(*_joined(_texts_of(NamedRepresentatives.of(verdicts.named))))
    topic, recipe_bytes = _bytes(places.topic.encode()), _bytes(recipe.encode())
    record_bytes_max = _NUMBERS_BYTES_MAX + digits
    record_bytes_max += len(topic) + len(recipe_bytes) + len(outcomes)
    of = np.empty(count * len(NAMES), np.uint8)
    ends = np.empty(count * len(NAMES), np.int64)
    stops = np.empty(count, np.int64)
    values = np.empty(count * record_bytes_max + len(named.texts), np.uint8)
    judged = _JudgedArrays(*(getattr(verdicts, column.name) for column in COLUMNS), wanted)
    written = _WrittenArrays(of, ends, stops, values)
    count_written = _write_headers(
        outcomes,
        outcome_stops,
        *_rule_labels(),
        recipe_bytes,
        topic,
        np.ascontiguousarray(places.partitions),
        np.ascontiguousarray(places.offsets),
        np.ascontiguousarray(fingerprints),
        judged,
        named,
        written,
    )
    return HeaderColumns(NAMES, of[:count_written], ends[:count_written], stops, values)


def _texts_of(named: NamedRepresentatives) -> list[bytes]:
    """Return id, position and time of each representative, one after the other."""
    texts: list[bytes] = []
    for representative in named:
        time = headers.rfc3339(representative.time_ms)
        texts += (representative.id, str(representative.position).encode(), time.encode())
    return texts


def _bytes(raw: bytes) -> NDArray[np.uint8]:
    # A copy, because read-only arrays are another type for numba.
    return np.frombuffer(raw, np.uint8).copy()


def _joined(parts: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the concatenation of n parts, and the stops between them, (n + 1,), from 0."""
    return _bytes(b"".join(parts)), np.cumsum([0, *map(len, parts)], dtype=np.int64)


@lru_cache
def _outcome_labels() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the labels of verdict and reason of every reason number r, concatenated, and their
    stops: at 2 r + 1 and 2 r + 2.
    """
    known = {
        int(reason): [value for _, value in outcome] for reason, outcome in headers.OUTCOMES.items()
    }
    parts = [value for number in range(256) for value in known.get(number, [b"", b""])]
    return _joined(parts)


@lru_cache
def _rule_labels() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the labels of the `BetterRule`s by number, concatenated, and their stops."""
    return _joined([label.encode() for label in BETTER_LABELS])


@inlined
def _write_uint(values: Any, position: Any, number: Any) -> Any:
    """Write a uint64 in decimal; return the position after it."""
    digits, rest = 1, number // np.uint64(10)
    while rest:
        digits += 1
        rest //= np.uint64(10)
    for place in range(position + digits - 1, position - 1, -1):
        values[place] = np.uint8(np.uint64(_ZERO) + number % np.uint64(10))
        number //= np.uint64(10)
    return position + digits


@inlined
def _write_similarity(values: Any, position: Any, similarity: Any) -> Any:
    """Write per cents as a number with two decimals, as `sketch.as_text` does; return the position
    after it.
    """
    values[position] = _ZERO + similarity // 100
    values[position + 1] = _DOT
    values[position + 2] = _ZERO + similarity // 10 % 10
    values[position + 3] = _ZERO + similarity % 10
    return position + 4


@inlined
def _write_named(named: Any, first: Any, written: Any, names: Any, j: Any, end: Any) -> Any:
    """Write the texts from number `first` on of a representative as headers of these `names`; return
    the number of headers so far, and the position after their values.
    """
    for name in names:
        end = copy_bytes(
            named.texts, named.stops[first], named.stops[first + 1], written.values, end
        )
        written.of[j], written.ends[j] = name, end
        first, j = first + 1, j + 1
    return j, end


@inlined
def _write_duplicate_headers(
    i: Any,
    row: Any,
    judged: Any,
    named: Any,
    rules: Any,
    rule_stops: Any,
    written: Any,
    j: Any,
    end: Any,
) -> Any:
    """Write the headers that only duplicates have; return the number of headers so far, and the
    position after their values.

    `i` is the record, `row` its representative in `named`, `j` the next header.
    """
    of, ends, values = written.of, written.ends, written.values
    end = _write_uint(values, end, np.uint64(judged.distances[i]))
    of[j], ends[j] = _DISTANCE, end
    if judged.similarity[i] != _NOT_COMPARED:
        end = _write_similarity(values, end, np.int64(judged.similarity[i]))
        j += 1
        of[j], ends[j] = _SIMILARITY, end
    if judged.copies[i]:
        end = _write_uint(values, end, np.uint64(judged.copies[i]))
        j += 1
        of[j], ends[j] = _COPIES, end
    if judged.better[i]:
        rule = np.int64(judged.better[i])
        end = copy_bytes(rules, rule_stops[rule], rule_stops[rule + 1], values, end)
        j += 1
        of[j], ends[j] = _BETTER, end
    names = (_OF_ID, _OF_POSITION, _OF_TIME)
    return _write_named(named, 3 * row, written, names, j + 1, end)


@inlined
def _write_position(values: Any, end: Any, topic: Any, partition: Any, offset: Any) -> Any:
    """Write `TOPIC-PARTITION@OFFSET`; return the end."""
    end = copy_bytes(topic, 0, len(topic), values, end)
    values[end] = _DASH
    end = _write_uint(values, end + 1, np.uint64(partition))
    values[end] = _AT
    return _write_uint(values, end + 1, np.uint64(offset))


@kernel
def _write_headers(
    outcomes: Any,
    outcome_stops: Any,
    rules: Any,
    rule_stops: Any,
    recipe: Any,
    topic: Any,
    partitions: Any,
    offsets: Any,
    fingerprints: Any,
    judged: Any,
    named: Any,
    written: Any,
) -> Any:
    """Write all headers into `written`; return their number."""
    of, ends, values = written.of, written.ends, written.values
    j = end = row = 0
    for i in range(len(judged.reasons)):
        reason = np.int64(judged.reasons[i])
        # One range of numbers, as `document.Reason` has it: 10 to 19 are duplicates.
        is_duplicate = 10 <= reason < 20
        is_compared = judged.similarity[i] != _NOT_COMPARED
        has_sibling = reason == _NEW and is_compared
        if judged.wanted[i]:
            first = 2 * reason
            end = copy_bytes(outcomes, outcome_stops[first], outcome_stops[first + 1], values, end)
            of[j], ends[j] = _VERDICT, end
            first += 1
            end = copy_bytes(outcomes, outcome_stops[first], outcome_stops[first + 1], values, end)
            of[j + 1], ends[j + 1] = _REASON, end
            end = copy_bytes(recipe, 0, len(recipe), values, end)
            of[j + 2], ends[j + 2] = _RECIPE, end
            end = _write_position(values, end, topic, partitions[i], offsets[i])
            of[j + 3], ends[j + 3] = _POSITION, end
            end = copy_bytes(fingerprints[i], 0, fingerprints.shape[1], values, end)
            of[j + 4], ends[j + 4] = _FINGERPRINT, end
            j += 5
            if is_duplicate:
                j, end = _write_duplicate_headers(
                    i, row, judged, named, rules, rule_stops, written, j, end
                )
            elif has_sibling:
                end = _write_similarity(values, end, np.int64(judged.similarity[i]))
                of[j], ends[j] = _SIBLING_SIMILARITY, end
                names = (_SIBLING_ID, _SIBLING_POSITION)
                j, end = _write_named(named, 3 * row, written, names, j + 1, end)
            end = _write_uint(values, end, judged.decided_offsets[i])
            values[end] = _SLASH
            end = _write_uint(values, end + 1, np.uint64(judged.decided_places[i]))
            of[j], ends[j] = _LOG, end
            j += 1
        if is_duplicate or has_sibling:
            row += 1
        written.stops[i] = j
    return j
