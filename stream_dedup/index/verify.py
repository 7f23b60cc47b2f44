"""Folding the log again, and comparing what that gives with a volume and with the answers that were
given.

Invariants: the state of a volume at log offset A is compared with a fold that ends at exactly A; a
fold that was ended before A is compared in what cannot have changed since: the representatives that
both say were made before, and the answers; every difference is a line that says what, where, and
both sides.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stream_dedup.ground.document import LogPlace
from stream_dedup.index import contents
from stream_dedup.index.contents import Contents
from stream_dedup.index.digest import StateDigest, digest_of
from stream_dedup.index.index import LogIndex
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.contract import Store
from stream_dedup.log.answers import Judgement

LINES_MAX: Final = 20


@dataclass(slots=True)
class Comparison:
    """What differs: at most `LINES_MAX` lines of each kind, and how many there are of all kinds."""

    differences: int = 0
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    volume: StateDigest | None = None
    fold: StateDigest | None = None
    answers_compared: int = 0
    answers_differing: int = 0

    def add(self, lines: Iterable[str]) -> None:
        """Take in lines, keeping the first of them."""
        count = 0
        for line in lines:
            count += 1
            if count <= LINES_MAX:
                self.lines.append(line)
        if count > LINES_MAX:
            self.lines.append(f"... and {count - LINES_MAX} more like these")
        self.differences += count


class GivenAnswers:
    """Answers that were given or stored, by log offset, to be compared with those of a fold."""

    def __init__(self) -> None:
        self._known: dict[int, dict[tuple[bytes, bool], str]] = {}
        self.compared = 0

    def add(self, log_offset: int, raw: bytes, where: str, *, of_volume: bool) -> None:
        """Take in an answer, where it was found, and whether that is the volume itself (else any
        replica gave it).
        """
        self._known.setdefault(log_offset, {}).setdefault((_short(raw), of_volume), where)

    def differences(self, log_offset: int, raw: bytes) -> Iterator[tuple[str, bool]]:
        """Yield (line, whether it is the volume's) for each known answer that is not the fold's,
        byte for byte.
        """
        for (digest, of_volume), where in self._known.pop(log_offset, {}).items():
            self.compared += 1
            if digest != _short(raw):
                yield (
                    (f"answer to log record {log_offset}: the one {where} differs from the fold's"),
                    of_volume,
                )


def fold(
    index: LogIndex,
    records: Iterable[Sequence[tuple[int, int, bytes | None]]],
    given: GivenAnswers,
    first: int,
    result: Comparison,
) -> None:
    """Apply groups of log records, and compare the answers from log offset `first` on; the index is
    left flushed.

    An answer that some replica sent and that differs is a note: the volume that is compared need
    not be that replica's.
    """
    found: list[tuple[str, bool]] = []
    for group in records:
        answers = index.apply(group)
        index.answered(index.applied)
        for log_offset, raw in answers:
            if log_offset >= first:
                found += given.differences(log_offset, raw)
    index.flush()
    result.add(line for line, of_volume in found if of_volume)
    others = [line for line, of_volume in found if not of_volume]
    result.answers_compared = given.compared
    result.answers_differing = len(others)
    result.notes += others[:LINES_MAX]
    if others:
        result.notes.append(
            f"{len(others)} answers that a replica sent differ from what the log gives; verify the "
            "volume of every replica."
        )


def _short(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16).digest()


def compare(volume: Store, again_store: Store, result: Comparison) -> None:
    """Compare a volume's state with that of a fold of the same log, which ends where the volume
    does or before, into `result`.

    Raises:
        FormatError: the volume is damaged.
        StoreError: it cannot be read.
    """
    mine, again = contents.read(volume), contents.read(again_store)
    result.add(_declared(mine, again))
    if mine.meta.applied == again.meta.applied:
        result.volume, result.fold = digest_of(mine), digest_of(again)
        if result.volume == result.fold:
            return
        result.add(_heads(mine, again))
        result.add(_verdicts(mine.state, again.state))
        result.add(_entries(mine, again))
        result.add(_copies(mine, again))
        if not result.differences:
            result.add(
                [
                    (
                        "the state digests differ, and the parts are alike: this is a fault of the "
                        "program; please report it"
                    )
                ]
            )
    else:
        result.notes.append(
            f"The fold ended at log offset {again.meta.applied}, and the volume stands at "
            f"{mine.meta.applied}: compared are "
            "the representatives made before, and the answers; not the watermarks and the verdicts "
            "kept."
        )
        result.add(_entries(mine, again, up_to=again.meta.applied))


def _declared(mine: Contents, again: Contents) -> Iterator[str]:
    what = {
        "declared": "declaration",
        "plan": "plan in force",
        "better": "rule of what is better",
        "format": "format",
    }
    for name in what if mine.meta.applied == again.meta.applied else ("declared",):
        one, other = getattr(mine.state, name), getattr(again.state, name)
        if one != other:
            yield f"{what[name]}: the volume has {one}, the fold {other}"


def _heads(mine: Contents, again: Contents) -> Iterator[str]:
    for name, what in (
        ("chain", "chain of answers"),
        ("rejected", "records rejected"),
        ("ignored", "control records passed over"),
        ("entries", "representatives ever made"),
        ("print_limbs", "limbs of a print"),
    ):
        one, other = getattr(mine.meta, name), getattr(again.meta, name)
        if one != other:
            yield f"{what}: the volume has {_shown(one)}, the fold {_shown(other)}"
    sources = [found.state.sources for found in (mine, again)]
    names, others = ([its.name(one) for one in range(len(its))] for its in sources)
    for number, (one, other) in enumerate(itertools.zip_longest(names, others)):
        if one != other:
            yield f"source partition {number}: the volume has {_partition(one)}, the fold {_partition(other)}"
            continue
        a, b = (found.state.positions.watermark(number) for found in (mine, again))
        if a != b:
            yield f"watermark of {_partition(one)} (epoch, committed): the volume has {a}, the fold {b}"


def _verdicts(mine: IndexState, again: IndexState) -> Iterator[str]:
    one, other = (
        {
            str(state.sources.position(*key[:2])): judged
            for key, judged in state.positions.verdicts()
        }
        for state in (mine, again)
    )
    for where in sorted(one.keys() | other.keys()):
        a, b = one.get(where), other.get(where)
        if a != b:
            yield f"verdict kept of {where}: the volume has {_judgement(a)}, the fold {_judgement(b)}"


def _judgement(judgement: Judgement | None) -> str:
    if judgement is None:
        return "none"
    of = "" if judgement.of is None else f" of {judgement.of.position} at {judgement.distance} bits"
    return f"{judgement.reason.label}{of} (log {judgement.decided})"


def _side_by_side(ours: Iterator[Any], theirs: Iterator[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (key, what each side has of it or None); both ascend by their keys, which come first in
    what is given.
    """
    one, other = next(ours, None), next(theirs, None)
    while one is not None or other is not None:
        key = min(found[0] for found in (one, other) if found is not None)
        a, b = (found if found is not None and found[0] == key else None for found in (one, other))
        yield key, a, b
        one, other = (
            one if a is None else next(ours, None),
            other if b is None else next(theirs, None),
        )


def _entries(mine: Contents, again: Contents, up_to: int | None = None) -> Iterator[str]:
    """Walk both in log order. Before `up_to` one side may have removed what the other still has, so
    only pairs count.
    """
    for place, one, other in _side_by_side(_places(mine, up_to), _places(again, up_to)):
        what = f"representative {LogPlace(*place)}"
        if one is None or other is None:
            if up_to is None:
                only = (
                    f"fold ({_entry(again, other)})"
                    if one is None
                    else f"volume ({_entry(mine, one)})"
                )
                yield f"{what}: only in the {only}"
        elif one != other:
            names = [name for name in one[1] if one[1][name] != other[1][name]] + (
                ["id"] if one[2] != other[2] else []
            )
            pairs = (
                f"{name} {_field(one, name)} in the volume, {_field(other, name)} in the fold"
                for name in names
            )
            yield f"{what} ({_entry(mine, one)}): {'; '.join(pairs)}"


def _copies(mine: Contents, again: Contents) -> Iterator[str]:
    """Walk what both have of copies, by the numbers of the representatives' entries."""
    for prefix, told in ((layout.PREFIX_COPIES, _row), (layout.PREFIX_BEST_ID, repr)):
        for key, a, b in _side_by_side(
            iter(mine.store.scan(prefix)), iter(again.store.scan(prefix))
        ):
            if a != b:
                has, should = ("nothing" if found is None else told(found[1]) for found in (a, b))
                yield f"copies of entry {layout.number_of(key)}: the volume has {has}, the fold {should}"


def _row(value: bytes) -> str:
    if len(value) != layout.COPIES.itemsize:
        return f"{len(value)} bytes that are no row"
    row = np.frombuffer(value, layout.COPIES)[0]
    return ", ".join(f"{name} {row[name]}" for name in layout.COPIES.names or ())


_Found = tuple[tuple[int, int], dict[str, Any], bytes]


def _places(state: Contents, up_to: int | None) -> Iterator[_Found]:
    """Yield (log place, fields but the id's end, id) of every live representative, in log order."""
    for rows, sizes, ids in state.live_entries():
        names = [name for name in rows.dtype.names or () if name != "ids_end"]
        ends = np.cumsum(sizes)
        for row, begin, end in zip(rows, (ends - sizes).tolist(), ends.tolist(), strict=True):
            place = (int(row["log_offset"]), int(row["place"]))
            if up_to is not None and place[0] >= up_to:
                return
            yield place, {name: _plain(row[name]) for name in names}, ids[begin:end]


def _plain(value: Any) -> Any:
    """Return a field as a number, or in hexadecimal digits: a digest's bytes as they stand, a print
    high limb first.
    """
    if not isinstance(value, np.ndarray):
        return value.item()
    return (
        value.tobytes().hex()
        if value.dtype.itemsize == 1
        else "".join(f"{limb:016x}" for limb in reversed(value.tolist()))
    )


def _field(found: _Found, name: str) -> str:
    return repr(found[2].decode("utf-8", "replace")) if name == "id" else str(found[1][name])


def _entry(of: Contents, found: _Found) -> str:
    source, offset, sources = found[1]["source"], found[1]["offset"], of.state.sources
    where = (
        sources.position(source, offset)
        if source < len(sources)
        else f"unknown partition {source}@{offset}"
    )
    return f"{where}, id {found[2].decode('utf-8', 'replace')!r:.100}"


def _partition(name: tuple[str, bytes, int] | None) -> str:
    return "none" if name is None else f"{name[0]}-{name[2]} (topic id {name[1].hex()})"


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
