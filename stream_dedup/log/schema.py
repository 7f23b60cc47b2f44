"""The columns of a verdict, declared once, and verdicts in memory.

`COLUMNS` declares what a verdict contains for each document. The bytes of an answer
(`log.answers`), the rows of kept verdicts (`index.storage.layout`), and the state digest
(`index.digest`) derive from it. A new column is an entry in `COLUMNS` and a field of `Judgement` and
of `Verdicts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import (
    LogPlace,
    Position,
    Reason,
    Representative,
    Verdict,
    maker_of,
)
from stream_dedup.domain.lazy_sequences import Ids, Lazy
from stream_dedup.domain.sketch import NOT_COMPARED


class VerdictColumn(NamedTuple):
    """A column of `Verdicts`: its name, its type, and the value for a document without one.

    With `named_only`, an answer stores the column only for verdicts that name another document.
    """

    name: str
    kind: type[np.unsignedinteger[Any]]
    empty: int = 0
    named_only: bool = False

    @property
    def stored(self) -> np.dtype[Any]:
        """The type in stored bytes: little-endian."""
        return np.dtype(self.kind).newbyteorder("<")


COLUMNS: Final = (
    VerdictColumn("reasons", np.uint8),
    VerdictColumn("distances", np.uint8),
    VerdictColumn("similarity", np.uint8, empty=NOT_COMPARED),
    VerdictColumn("copies", np.uint32, named_only=True),
    VerdictColumn("better", np.uint8, named_only=True),
    VerdictColumn("decided_offsets", np.uint64),
    VerdictColumn("decided_places", np.uint32),
)
ROW: Final = np.dtype([(column.name, column.stored) for column in COLUMNS])
"""The layout of one verdict as a row."""
_REASONS = {int(reason): reason for reason in Reason}
IS_REASON: Final = np.isin(np.arange(256), sorted(_REASONS))
"""Whether a number is that of a `Reason`, (256,)."""
_IS_DUPLICATE = np.isin(
    np.arange(256), [reason for reason in Reason if reason.verdict is Verdict.DUPLICATE]
)
_IS_OUTCOME = np.isin(np.arange(256), [reason for reason in Reason if reason.verdict is not None])


class Judgement(NamedTuple):
    """The verdict on one document: the reason, and the log place at which it was decided.

    For a duplicate, `of` is its representative, and `distance` the bits in which their fingerprints
    differ. For a new document that is kept only because of its site or title, `of` is its sibling.
    `similarity` is that of the two sketches in per cent, for near duplicates and siblings; otherwise
    `NOT_COMPARED`. For a duplicate, `copies` is the number of copies of its representative so far,
    including this one (0: the log does not count them), and `better` is the number of the
    `BetterRule` by which it beats the representative and every earlier copy, or 0.
    """

    reason: Reason
    decided: LogPlace
    distance: int = 0
    of: Representative | None = None
    similarity: int = NOT_COMPARED
    copies: int = 0
    better: int = 0

    def row(self) -> tuple[int, ...]:
        """Return the values in the order of `COLUMNS`."""
        return (
            self.reason,
            self.distance,
            *(getattr(self, name) for name in _DETAILS),
            *self.decided,
        )

    @property
    def sibling(self) -> Representative | None:
        """The earliest similar page of the same site, for a new document that is kept only because of
        its site or title; None otherwise.
        """
        return self.of if self.reason is Reason.NEW else None

    @property
    def text_similarity(self) -> float | None:
        """Similarity of both texts, 0 to 1; None without a representative or sibling, and if no
        sketches were compared.
        """
        if self.reason.has_same_text:
            return 1.0
        return None if self.similarity == NOT_COMPARED else self.similarity / 100


_DETAILS: Final = Judgement._fields[Judgement._fields.index("of") + 1 :]
"""The fields of `Judgement` that are columns of the same name."""


def naming_mask(reasons: NDArray[np.uint8], similarity: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the mask of the verdicts that name another document, (n,): duplicates, and new
    documents with a sibling.
    """
    has_sibling = (reasons == Reason.NEW) & (similarity != NOT_COMPARED)
    has_named: NDArray[np.bool_] = _IS_DUPLICATE[reasons] | has_sibling
    return has_named


_judgement, _log_place = maker_of(Judgement), maker_of(LogPlace)
_representative, _position = maker_of(Representative), maker_of(Position)


@dataclass(eq=False, repr=False, slots=True)
class NamedRepresentatives(Lazy[Representative]):
    """The representatives that an answer names, stored as columns; values are created on access.

    `partitions` are (topic, topic id, partition) in the order of their first use, and `sources` (n,)
    are indices into them. `offsets` and `times_ms` are (n,); the id of representative i is
    `ids[stops[i - 1] : stops[i]]`.
    """

    partitions: Sequence[tuple[str, bytes, int]]
    sources: NDArray[np.uint16] | NDArray[np.uint32]
    offsets: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    stops: NDArray[np.int64]
    ids: bytes

    @classmethod
    def of(cls, representatives: Sequence[Representative]) -> NamedRepresentatives:
        """Return representatives as columns."""
        if isinstance(representatives, NamedRepresentatives):
            return representatives
        table: dict[tuple[str, bytes, int], int] = {}
        count = len(representatives)
        sources = np.fromiter(
            (
                table.setdefault(representative.position[:3], len(table))
                for representative in representatives
            ),
            np.uint16,
            count,
        )
        offsets = np.fromiter(
            (representative.position.offset for representative in representatives), np.int64, count
        )
        times_ms = np.fromiter(
            (representative.time_ms for representative in representatives), np.int64, count
        )
        ids = [representative.id for representative in representatives]
        return cls(
            list(table),
            sources,
            offsets,
            times_ms,
            np.cumsum(list(map(len, ids)), dtype=np.int64),
            b"".join(ids),
        )

    @classmethod
    def joined(cls, parts: Sequence[NamedRepresentatives]) -> NamedRepresentatives:
        """Return the concatenation of `parts`; partitions are not merged."""
        if len(parts) == 1:
            return parts[0]
        partitions: list[tuple[str, bytes, int]] = []
        sources, stops, id_bytes = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)], 0
        for part in parts:
            sources.append(part.sources.astype(np.uint32) + np.uint32(len(partitions)))
            stops.append(part.stops + id_bytes)
            partitions += part.partitions
            id_bytes += len(part.ids)
        offsets = np.concatenate([np.zeros(0, np.int64), *(part.offsets for part in parts)])
        times_ms = np.concatenate([np.zeros(0, np.int64), *(part.times_ms for part in parts)])
        ids = b"".join(part.ids for part in parts)
        return cls(
            partitions, np.concatenate(sources), offsets, times_ms, np.concatenate(stops), ids
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def _item(self, place: int) -> Representative:
        position = Position(*self.partitions[int(self.sources[place])], int(self.offsets[place]))
        identifier = self.ids[self.stops[place - 1] if place else 0 : self.stops[place]]
        return Representative(position, identifier, int(self.times_ms[place]))

    def __iter__(self) -> Iterator[Representative]:  # by column, which is faster than by item
        partitions = map(self.partitions.__getitem__, self.sources.tolist())
        positions = map(
            _position,
            [
                (*partition, offset)
                for partition, offset in zip(partitions, self.offsets.tolist(), strict=True)
            ],
        )
        return map(
            _representative,
            zip(positions, Ids(self.ids, self.stops), self.times_ms.tolist(), strict=True),
        )


@dataclass(eq=False, repr=False, slots=True)
class Verdicts(Sequence[Judgement]):
    """The judgements on one log record as columns, (n,) each. `named` are the representatives of
    duplicates and the siblings of new documents, in the order of the documents.

    The index judges in columns, and the worker writes from them: an object for each document would
    cost more than judging. All objects are created on the first access to one.
    """

    reasons: NDArray[np.uint8]
    distances: NDArray[np.uint8]
    decided_offsets: NDArray[np.uint64]
    decided_places: NDArray[np.uint32]
    named: Sequence[Representative]
    similarity: NDArray[np.uint8]
    copies: NDArray[np.uint32]
    better: NDArray[np.uint8]
    _judgements: list[Judgement] | None = field(default=None, init=False)

    @classmethod
    def of_nothing(cls, count: int) -> Verdicts:
        """Return `count` empty verdicts: reason 0, no sketches compared, no copies counted."""
        columns: dict[str, Any] = {
            column.name: np.full(count, column.empty, column.kind) for column in COLUMNS
        }
        return cls(named=[], **columns)

    @classmethod
    def of(cls, judgements: Sequence[Judgement]) -> Verdicts:
        """Return judgements as columns."""
        if isinstance(judgements, Verdicts):
            return judgements
        rows = np.array([judgement.row() for judgement in judgements], ROW)
        columns: dict[str, Any] = {
            name: np.ascontiguousarray(rows[name]) for name in ROW.names or ()
        }
        named = [judgement.of for judgement in judgements if judgement.of is not None]
        return cls(named=named, **columns)

    @classmethod
    def joined(cls, parts: Sequence[Verdicts]) -> Verdicts:
        """Return the concatenation of the verdicts on some log records."""
        named = NamedRepresentatives.joined([NamedRepresentatives.of(part.named) for part in parts])
        columns: dict[str, Any] = {
            column.name: np.concatenate([getattr(part, column.name) for part in parts])
            for column in COLUMNS
        }
        return cls(named=named, **columns)

    @property
    def are_outcomes(self) -> NDArray[np.bool_]:
        """Mask of the verdicts that readers of the outputs see, (n,)."""
        return _IS_OUTCOME[self.reasons]

    @property
    def are_duplicates(self) -> NDArray[np.bool_]:
        """Mask of duplicates, (n,)."""
        return _IS_DUPLICATE[self.reasons]

    @property
    def names_another(self) -> NDArray[np.bool_]:
        """Mask of the verdicts that name another document, (n,): duplicates, and new documents with
        a sibling.
        """
        return naming_mask(self.reasons, self.similarity)

    def judgements(self) -> list[Judgement]:
        """Return the judgements as objects."""
        if self._judgements is None:
            named = iter(self.named)
            reasons = self.reasons.tolist()
            names_another = self.names_another.tolist()
            named_or_none = [next(named) if is_naming else None for is_naming in names_another]
            decided = map(
                _log_place,
                zip(self.decided_offsets.tolist(), self.decided_places.tolist(), strict=True),
            )
            columns = (
                map(_REASONS.__getitem__, reasons),
                decided,
                self.distances.tolist(),
                named_or_none,
                *(getattr(self, name).tolist() for name in _DETAILS),
            )
            self._judgements = list(map(_judgement, zip(*columns, strict=True)))
        return self._judgements

    def __len__(self) -> int:
        return len(self.reasons)

    @overload
    def __getitem__(self, index: int) -> Judgement: ...
    @overload
    def __getitem__(self, index: slice) -> list[Judgement]: ...
    def __getitem__(self, index: int | slice) -> Judgement | list[Judgement]:
        return self.judgements()[index]

    def __iter__(self) -> Iterator[Judgement]:
        return iter(self.judgements())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.judgements() == list(other)

    __hash__ = None  # type: ignore[assignment]
