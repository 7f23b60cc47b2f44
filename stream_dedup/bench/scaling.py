"""`bench scaling`: the measurements of `bench path` along one axis at a time, where the curves are flat and where they bend.

Invariants: along an axis one thing changes and all else is as the options say, but for the number of documents: four times as
many for several workers and the one beside them, because a start takes seconds in which one does all, and fewer where they are
large, so that a point is some hundreds of megabytes at most; a ratio is of two measurements of one round at one
point; points and variants are measured in an order that turns around from round to round; each axis has a broker of its own,
warmed up before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from stream_dedup.bench.path import Bench, Say, kafka_of
from stream_dedup.bench.path_machine import machine
from stream_dedup.bench.path_report import PathOptions, PathReport, order
from stream_dedup.ground.errors import InputError

SIZE: Final = "size"
_POINT_BYTES: Final = 400_000_000
_DOCUMENTS_MIN: Final = 400
_STARTS: Final = 4


@dataclass(frozen=True, slots=True)
class Axis:
    """What changes: its name, its usual values of which the first is the least, and the options at one of them."""

    name: str
    values: tuple[int, ...]
    at: Callable[[PathOptions, int], PathOptions]


def _of_workers(options: PathOptions, count: int) -> PathOptions:
    return replace(options, workers=count, documents=_STARTS * options.documents)


def _of_size(options: PathOptions, size: int) -> PathOptions:
    documents = min(options.documents, max(_DOCUMENTS_MIN, _POINT_BYTES // size))
    return replace(options, size_bytes=size, documents=documents)


AXES: Final = {
    axis.name: axis
    for axis in (
        Axis("workers", (1, 2, 3, 4), _of_workers),
        Axis("partitions", (1, 4, 16, 64), lambda options, count: replace(options, partitions=count)),
        Axis("entries", (0, 1_000_000, 10_000_000), lambda options, count: replace(options, index_entries=count)),
        Axis(SIZE, (250, 1000, 10_000, 100_000, 1_000_000), _of_size),
    )
}


@dataclass(slots=True)
class Curve:
    """What was found along one axis: a report of `bench path` at each value."""

    axis: str
    points: dict[int, PathReport] = field(default_factory=dict)

    def as_json(self) -> Mapping[str, object]:
        """Return everything, raw samples included."""
        return {"axis": self.axis, "points": {str(value): report.as_json() for value, report in self.points.items()}}


def parse(asked: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the values of each axis that is asked for: `workers` has its usual ones, `workers=1,2` these; none means all.

    Raises:
        InputError: there is no such axis, or a value is no whole number that it can have.
    """
    found = {}
    for one in asked or AXES:
        name, _, values = one.partition("=")
        axis = AXES.get(name)
        if axis is None:
            raise InputError(f"There is no axis {name!r}; choose from {', '.join(AXES)}.")
        try:
            found[name] = tuple(int(value) for value in values.split(",")) if values else axis.values
        except ValueError:
            found[name] = ()
        if min(found[name], default=-1) < axis.values[0]:
            like = ",".join(map(str, axis.values))
            raise InputError(f"{one!r} is no axis with whole numbers from {axis.values[0]} on; write it like {name}={like}.")
    return found


def points(options: PathOptions, values: Mapping[str, Sequence[int]]) -> dict[str, dict[int, PathOptions]]:
    """Return what is measured at each value of each axis.

    Raises:
        InputError: a point cannot be measured; it says which.
    """
    found: dict[str, dict[int, PathOptions]] = {}
    for name, chosen in values.items():
        for value in chosen:
            at = AXES[name].at(options, value)
            try:
                at.check()
            except InputError as error:
                raise InputError(f"{name}={value} cannot be measured: {error}") from error
            found.setdefault(name, {})[value] = at
    return found


def run_scaling(options: PathOptions, chosen: Mapping[str, Mapping[int, PathOptions]], say: Say) -> Iterator[Curve]:
    """Measure every point of each axis, and yield its curve; `say` is told in a line what is going on.

    `options` are those of the broker and its warming up, `chosen` is what `points` gave.

    Raises:
        StreamDedupError: the broker or a child did not come up or ended, or the documents stopped moving.
    """
    for name, at in chosen.items():
        yield _curve(name, at, options, say)


def _curve(name: str, chosen: Mapping[int, PathOptions], options: PathOptions, say: Say) -> Curve:
    with kafka_of(options, say) as (folder, broker):
        about = machine(broker.title)
        curve = Curve(name, {value: PathReport(at, about) for value, at in chosen.items()})
        Bench(options, broker, folder, say).warm_up()
        benches = {value: Bench(at, broker, folder, say) for value, at in chosen.items()}
        for number in range(1, options.rounds + 1):
            for value in order(number, tuple(chosen)):
                benches[value].add_round(curve.points[value], number, f"{name}={value}, ")
        if options.broker:
            names = ", ".join(bench.name for bench in benches.values())
            say(f"The topics that begin with {names} stay on {options.broker}; delete them when you like.")
    return curve
