"""Write our headers of many records at once, as columns, with a compiled kernel.

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
# The bytes of a record's values besides texts: a position's partition and offset (32), a distance
# (3), a similarity (4), copies (10), a rule (9), a log offset and place (31).
_NUMBERS_BYTES_MAX = 32 + 3 + 4 + 10 + 9 + 31
_SLASH, _DOT, _DASH, _ZERO, _AT = (ord(character) for character in "/.-0@")
_NOT_COMPARED = NOT_COMPARED


class HeaderColumns(NamedTuple):
    """The headers of n records, one record after the other.

    Record i has the headers from `record_ends[i - 1]` to before `record_ends[i]`. Header j has the
    name `names[name_numbers[j]]`, and its value is in `values` from `value_ends[j - 1]` to before
    `value_ends[j]`. `record_ends` is (n,), `name_numbers` and `value_ends` are (headers,).
    """

    names: Sequence[str]
    name_numbers: NDArray[np.uint8]
    value_ends: NDArray[np.int64]
    record_ends: NDArray[np.int64]
    values: NDArray[np.uint8]


class SourcePlaces(NamedTuple):
    """The source positions of n records: the topic, and `partitions` and `offsets` (n,)."""

    topic: str
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]


# The columns of verdicts for the kernel, and the mask of those to write, (n,) each.
_VerdictArrays = cast("Any", namedtuple)(
    "_VerdictArrays", [*(column.name for column in COLUMNS), "is_written"]
)


class _NamedArrays(NamedTuple):
    """The texts of the m representatives that the verdicts name: id, position and time of each, one
    after the other. Text k is from `text_ends[k]` to before `text_ends[k + 1]`; (3 m + 1,).
    """

    texts: NDArray[np.uint8]
    text_ends: NDArray[np.int64]


class _WrittenArrays(NamedTuple):
    """The output arrays of the kernel, as in `HeaderColumns`."""

    name_numbers: NDArray[np.uint8]
    value_ends: NDArray[np.int64]
    record_ends: NDArray[np.int64]
    values: NDArray[np.uint8]


def of_verdicts(
    recipe: str,
    places: SourcePlaces,
    fingerprints: NDArray[np.uint8],
    verdicts: Verdicts,
    is_written: NDArray[np.bool_],
) -> HeaderColumns:
    """Return our headers of n records; `fingerprints` (n, digits) are in hex.

    Records outside the mask `is_written` (n,) get no headers: they have no outcome, or are built one
    by one.

    Raises:
        ValueError: a verdict in the mask is not an outcome.
    """
    if not verdicts.are_outcomes[is_written].all():
        raise ValueError("a reason of these verdicts cannot be delivered")
    count, digits = fingerprints.shape
    outcomes, outcome_ends = _outcome_labels()
    named = _NamedArrays(*_concatenate(_texts_of(NamedRepresentatives.of(verdicts.named))))
    topic, recipe_bytes = _writable_bytes(places.topic.encode()), _writable_bytes(recipe.encode())
    record_bytes_max = _NUMBERS_BYTES_MAX + digits
    record_bytes_max += len(topic) + len(recipe_bytes) + len(outcomes)
    name_numbers = np.empty(count * len(NAMES), np.uint8)
    value_ends = np.empty(count * len(NAMES), np.int64)
    record_ends = np.empty(count, np.int64)
    values = np.empty(count * record_bytes_max + len(named.texts), np.uint8)
    columns = _VerdictArrays(*(getattr(verdicts, column.name) for column in COLUMNS), is_written)
    written = _WrittenArrays(name_numbers, value_ends, record_ends, values)
    header_count = _write_headers(
        outcomes,
        outcome_ends,
        *_rule_labels(),
        recipe_bytes,
        topic,
        np.ascontiguousarray(places.partitions),
        np.ascontiguousarray(places.offsets),
        np.ascontiguousarray(fingerprints),
        columns,
        named,
        written,
    )
    return HeaderColumns(
        NAMES, name_numbers[:header_count], value_ends[:header_count], record_ends, values
    )


def _texts_of(named: NamedRepresentatives) -> list[bytes]:
    """Return id, position and time of each representative, one after the other."""
    texts: list[bytes] = []
    for representative in named:
        time = headers.rfc3339(representative.time_ms)
        texts += (representative.id, str(representative.position).encode(), time.encode())
    return texts


def _writable_bytes(raw: bytes) -> NDArray[np.uint8]:
    # A copy is writable: numba compiles a kernel again for read-only arrays.
    return np.frombuffer(raw, np.uint8).copy()


def _concatenate(parts: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the concatenation of n parts, and 0 and the end of each part in it, (n + 1,)."""
    return _writable_bytes(b"".join(parts)), np.cumsum([0, *map(len, parts)], dtype=np.int64)


@lru_cache
def _outcome_labels() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the labels of verdict and reason of every reason number r, concatenated, and their ends:
    label 2 r is the verdict, 2 r + 1 the reason.
    """
    labels = {
        int(reason): [value for _, value in outcome] for reason, outcome in headers.OUTCOMES.items()
    }
    parts = [value for number in range(256) for value in labels.get(number, [b"", b""])]
    return _concatenate(parts)


@lru_cache
def _rule_labels() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the labels of the `BetterRule`s by number, concatenated, and their ends."""
    return _concatenate([label.encode() for label in BETTER_LABELS])


@inlined
def _write_uint(values: Any, position: Any, number: Any) -> Any:
    """Write a uint64 in decimal; return the position after it."""
    digits, remaining = 1, number // np.uint64(10)
    while remaining:
        digits += 1
        remaining //= np.uint64(10)
    for place in range(position + digits - 1, position - 1, -1):
        values[place] = np.uint8(np.uint64(_ZERO) + number % np.uint64(10))
        number //= np.uint64(10)
    return position + digits


@inlined
def _write_similarity(values: Any, position: Any, similarity: Any) -> Any:
    """Write a similarity in per cent as a number with two decimals, as `sketch.as_text` does; return
    the position after it.
    """
    values[position] = _ZERO + similarity // 100
    values[position + 1] = _DOT
    values[position + 2] = _ZERO + similarity // 10 % 10
    values[position + 3] = _ZERO + similarity % 10
    return position + 4


@inlined
def _write_named(named: Any, first: Any, written: Any, names: Any, j: Any, end: Any) -> Any:
    """Write the texts of a representative, from text `first` on, as headers with these `names`.

    `j` is the number of headers so far, and `end` the position after their values; return both.
    """
    for name in names:
        end = copy_bytes(
            named.texts, named.text_ends[first], named.text_ends[first + 1], written.values, end
        )
        written.name_numbers[j], written.value_ends[j] = name, end
        first, j = first + 1, j + 1
    return j, end


@inlined
def _write_duplicate_headers(
    i: Any,
    row: Any,
    columns: Any,
    named: Any,
    rules: Any,
    rule_ends: Any,
    written: Any,
    j: Any,
    end: Any,
) -> Any:
    """Write the headers that only duplicates have, of record `i` with representative `row`.

    `j` is the number of headers so far, and `end` the position after their values; return both.
    """
    name_numbers, value_ends, values = written.name_numbers, written.value_ends, written.values
    end = _write_uint(values, end, np.uint64(columns.distances[i]))
    name_numbers[j], value_ends[j] = _DISTANCE, end
    if columns.similarity[i] != _NOT_COMPARED:
        end = _write_similarity(values, end, np.int64(columns.similarity[i]))
        j += 1
        name_numbers[j], value_ends[j] = _SIMILARITY, end
    if columns.copies[i]:
        end = _write_uint(values, end, np.uint64(columns.copies[i]))
        j += 1
        name_numbers[j], value_ends[j] = _COPIES, end
    if columns.better[i]:
        rule = np.int64(columns.better[i])
        end = copy_bytes(rules, rule_ends[rule], rule_ends[rule + 1], values, end)
        j += 1
        name_numbers[j], value_ends[j] = _BETTER, end
    names = (_OF_ID, _OF_POSITION, _OF_TIME)
    return _write_named(named, 3 * row, written, names, j + 1, end)


@inlined
def _write_position(values: Any, end: Any, topic: Any, partition: Any, offset: Any) -> Any:
    """Write `TOPIC-PARTITION@OFFSET`; return the position after it."""
    end = copy_bytes(topic, 0, len(topic), values, end)
    values[end] = _DASH
    end = _write_uint(values, end + 1, np.uint64(partition))
    values[end] = _AT
    return _write_uint(values, end + 1, np.uint64(offset))


@kernel
def _write_headers(
    outcomes: Any,
    outcome_ends: Any,
    rules: Any,
    rule_ends: Any,
    recipe: Any,
    topic: Any,
    partitions: Any,
    offsets: Any,
    fingerprints: Any,
    columns: Any,
    named: Any,
    written: Any,
) -> Any:
    """Write all headers into `written`; return their number."""
    name_numbers, value_ends, values = written.name_numbers, written.value_ends, written.values
    j = end = row = 0
    for i in range(len(columns.reasons)):
        reason = np.int64(columns.reasons[i])
        # `document.Reason` numbers duplicates from 10 to 19.
        is_duplicate = 10 <= reason < 20
        is_compared = columns.similarity[i] != _NOT_COMPARED
        has_sibling = reason == _NEW and is_compared
        if columns.is_written[i]:
            first = 2 * reason
            end = copy_bytes(outcomes, outcome_ends[first], outcome_ends[first + 1], values, end)
            name_numbers[j], value_ends[j] = _VERDICT, end
            first += 1
            end = copy_bytes(outcomes, outcome_ends[first], outcome_ends[first + 1], values, end)
            name_numbers[j + 1], value_ends[j + 1] = _REASON, end
            end = copy_bytes(recipe, 0, len(recipe), values, end)
            name_numbers[j + 2], value_ends[j + 2] = _RECIPE, end
            end = _write_position(values, end, topic, partitions[i], offsets[i])
            name_numbers[j + 3], value_ends[j + 3] = _POSITION, end
            end = copy_bytes(fingerprints[i], 0, fingerprints.shape[1], values, end)
            name_numbers[j + 4], value_ends[j + 4] = _FINGERPRINT, end
            j += 5
            if is_duplicate:
                j, end = _write_duplicate_headers(
                    i, row, columns, named, rules, rule_ends, written, j, end
                )
            elif has_sibling:
                end = _write_similarity(values, end, np.int64(columns.similarity[i]))
                name_numbers[j], value_ends[j] = _SIBLING_SIMILARITY, end
                names = (_SIBLING_ID, _SIBLING_POSITION)
                j, end = _write_named(named, 3 * row, written, names, j + 1, end)
            end = _write_uint(values, end, columns.decided_offsets[i])
            values[end] = _SLASH
            end = _write_uint(values, end + 1, np.uint64(columns.decided_places[i]))
            name_numbers[j], value_ends[j] = _LOG, end
            j += 1
        if is_duplicate or has_sibling:
            row += 1
        written.record_ends[i] = j
    return j
