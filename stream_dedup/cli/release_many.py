"""`release --host`, `--of`, `--below`: all dropped documents that meet these go to `unique` after all, each once.

What is on `duplicates` says which are meant; then each goes the way of a single release (`control.release`), a thousand at a
time. A document that cannot be released is counted with its reason, and costs no other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from stream_dedup.cli.release import ReleaseOrder
from stream_dedup.cli.tap import ids_of
from stream_dedup.ground.document import Message, Reason, Verdict
from stream_dedup.ground.errors import ConfigurationError, InputError
from stream_dedup.ground.plan import parse_similarity
from stream_dedup.ground.printable import printable
from stream_dedup.ground.terminal import note, print_json, print_table

if TYPE_CHECKING:
    from stream_dedup.cli.orders import OrderDependencies
    from stream_dedup.control.release import Trace
    from stream_dedup.ground.topics import TopicNames
    from stream_dedup.settings.settings import Settings

_AT_ONCE = 1000
_EXAMPLES = 10
_REASONS = tuple(one.label for one in Reason if one.verdict is Verdict.DUPLICATE)


@dataclass(frozen=True, slots=True)
class ReleaseFilter:
    """Which records of `duplicates` are meant: each condition that is given holds. `below` in per cent."""

    host: str | None
    of: str | None
    below: int | None
    reasons: frozenset[str]

    @classmethod
    def of_options(cls, host: str | None, of: str | None, below: str | None, reasons: Sequence[str]) -> Self:
        """Return the filter that an operator typed.

        Raises:
            ConfigurationError: the similarity is none, or there is no such reason.
        """
        for one in reasons:
            if one not in _REASONS:
                raise ConfigurationError(f"Nothing is dropped for the reason {one!r:.40}; name one of {', '.join(_REASONS)}.")
        similarity = None if below is None else parse_similarity(below)
        return cls(None if host is None else host.strip().lower().removesuffix("."), of, similarity, frozenset(reasons))

    def takes(self, dropped: Dropped) -> bool:
        """Return whether a dropped document meets every condition."""
        return (
            dropped.reason in self.reasons
            and self.host in (None, dropped.host)
            and self.of in (None, dropped.of_id, dropped.of_position)
            and (self.below is None or (dropped.similarity is not None and 100 * dropped.similarity < self.below))
        )


class Dropped(NamedTuple):
    """A record on `duplicates`, as its headers have it; `decided` is the place in the log, as `dedup.log` writes it."""

    id: str
    host: str
    reason: str
    similarity: float | None
    of_id: str
    of_position: str
    decided: str
    timestamp_ms: int | None
    trace: Trace


@dataclass(slots=True)
class ManyReleased:
    """What was done with how many documents. `refused`: why some cannot be released; `examples`: the first few."""

    found: int = 0
    before: int = 0
    written: int = 0
    hosts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    examples: list[Dropped] = field(default_factory=list)

    @property
    def left(self) -> int:
        """How many would be written, were it not for a dry run."""
        return self.found - self.before - self.written - self.refused.total()


def release_many(settings: Settings, wanted: ReleaseFilter, around: OrderDependencies, *, dry_run: bool) -> ManyReleased:
    """Release what meets a filter, each document once, however often this is run.

    Raises:
        ConfigurationError: a topic is missing, or the log is another's.
        BrokerError: Kafka failed; run it again, it goes on.
    """
    order = ReleaseOrder(settings, around, dry_run=dry_run)
    told = ManyReleased()
    order.begin()
    try:
        dropped = _matching(order, wanted)
        told.found, told.examples = len(dropped), dropped[:_EXAMPLES]
        told.hosts.update(one.host or "(no host)" for one in dropped)
        order.trace([one.trace for one in dropped])
        ready = list(_releasable(order, dropped, told))
        # Those that a killed run left halfway stand in front: only for them `unique` is read far back.
        ready.sort(key=lambda one: not one.trace.releases)
        for first in range(0, len(ready), _AT_ONCE):
            _carry_out(order, ready[first : first + _AT_ONCE], told, dry_run=dry_run)
    finally:
        order.close()
    return told


def _matching(order: ReleaseOrder, wanted: ReleaseFilter) -> list[Dropped]:
    """Return what is on `duplicates` and meets the filter, each document once, in the order of the partitions."""
    from stream_dedup.insights.hosts import HostNames

    names, found = order.names, dict[tuple[int, int, int], Dropped]()
    id_of, hosts = ids_of(order.settings), HostNames()
    _, partitions = order.admin.topic_ids([names.duplicates])[names.duplicates]
    with order.around.progress(f"reading {names.duplicates}", None) as advance:
        for partition in range(partitions):
            for record in order.around.read_partition(order.settings, names.duplicates, partition):
                advance(1, len(record.value or b""))
                identifier = id_of(record) or b""
                one = _dropped(record, names, identifier, hosts.of(identifier))
                if one is not None and wanted.takes(one):
                    found[one.trace.partition, one.trace.offset, one.trace.value_digest] = one
    return list(found.values())


def _dropped(record: Message, names: TopicNames, identifier: bytes, host: str) -> Dropped | None:
    """Return what a record of `duplicates` says of itself, or None if it is not of this filter."""
    from stream_dedup.control.release import Trace
    from stream_dedup.control.rewind import POSITION_FORM
    from stream_dedup.log import headers
    from stream_dedup.worker.prepare import value_digest

    def told(name: str) -> str:
        return headers.text_of(record.headers, name)

    at = POSITION_FORM.match(told(headers.POSITION))
    if at is None or at["topic"] != names.documents:
        return None
    similarity = told(headers.SIMILARITY)
    return Dropped(
        identifier.decode("utf-8", "replace"),
        host,
        told(headers.REASON),
        float(similarity) if similarity.replace(".", "", 1).isdecimal() else None,
        told(headers.OF_ID),
        told(headers.OF_POSITION),
        told(headers.LOG),
        record.timestamp_ms,
        Trace(int(at["partition"]), int(at["offset"]), value_digest(record.value)),
    )


def _releasable(order: ReleaseOrder, dropped: Sequence[Dropped], told: ManyReleased) -> Iterator[Dropped]:
    """Yield what may be released, or was and may not be on `unique` yet; count the others with their reason."""
    kept = _decided_on_unique(order, [one for one in dropped if not one.trace.releases])
    for one in dropped:
        if one.trace.releases:
            yield one
        elif one.decided not in one.trace.verdicts_at:
            told.refused["the log does not know the verdict"] += 1
        elif one.trace.verdicts_at & kept:
            told.refused[f"it left on {order.names.unique} as well"] += 1
        else:
            yield one


def _decided_on_unique(order: ReleaseOrder, dropped: Sequence[Dropped]) -> set[str]:
    """Return the places in the log that decided what lies on `unique`, as far back as these documents were."""
    from stream_dedup.log import headers

    since: defaultdict[int, list[int]] = defaultdict(list)
    for one in dropped:
        since[one.trace.partition].append(one.timestamp_ms or 0)
    found = set()
    for partition, times in since.items():
        records = order.around.read_partition(order.settings, order.names.unique, partition, since_ms=min(times))
        found |= {headers.text_of(one.headers, headers.LOG) for one in records}
    return found


def _carry_out(order: ReleaseOrder, part: Sequence[Dropped], told: ManyReleased, *, dry_run: bool) -> None:
    """Release a part, or say what would be."""
    if dry_run:
        told.before += sum(bool(one.trace.releases) for one in part)
        return
    sources = _sources(order, part)
    documents = [(sources[one.trace.partition, one.trace.offset], one.trace) for one in part if _is_there(one, sources)]
    if len(documents) < len(part):
        told.refused[f"{order.names.documents} does not hold it any more"] += len(part) - len(documents)
    if not documents:
        return
    try:
        written = order.carry_out(documents)
    except (ConfigurationError, InputError) as error:
        if len(part) > 1:  # one of them: each goes alone
            for one in part:
                _carry_out(order, [one], told, dry_run=dry_run)
            return
        told.refused[str(error)] += 1
        return
    told.written += written
    told.before += len(documents) - written


def _sources(order: ReleaseOrder, part: Sequence[Dropped]) -> dict[tuple[int, int], Message]:
    """Return the records in `documents` of these documents, by partition and offset; those that are gone are missing."""
    from stream_dedup.kafka import LogReader, sample

    topic, spans = order.names.documents, defaultdict[tuple[str, int], list[tuple[int, int]]](list)
    for one in sorted(part, key=lambda one: one.trace.offset):
        spans[topic, one.trace.partition].append((one.trace.offset, one.trace.offset + 1))
    for key, own in spans.items():
        reader = LogReader(order.settings, topic, "lookup", key[1])
        try:
            low, high = reader.watermarks()
        finally:
            reader.close()
        spans[key] = [span for span in own if low <= span[0] < high]
    return {(one.partition, one.offset): one for one in sample(order.settings, spans)}


def _is_there(one: Dropped, sources: dict[tuple[int, int], Message]) -> bool:
    from stream_dedup.worker.prepare import value_digest

    found = sources.get((one.trace.partition, one.trace.offset))
    return found is not None and value_digest(found.value) == one.trace.value_digest


def show_many(names: TopicNames, told: ManyReleased, *, dry_run: bool, as_json: bool) -> None:
    """Print how many were released, of which hosts, and the first few."""
    figures = {"found": told.found, "released_before": told.before, "written": told.written, "would_be_written": told.left}
    if as_json:
        examples = [
            {"id": one.id, "of": one.of_id, "reason": one.reason, "similarity": one.similarity} for one in told.examples
        ]
        print_json(figures | {"hosts": dict(told.hosts), "refused": dict(told.refused), "examples": examples})
        return
    print_table(["", "documents"], [[name.replace("_", " "), f"{count:,}"] for name, count in figures.items()])
    if told.found:
        print_table(["host", "documents"], [[host, f"{count:,}"] for host, count in told.hosts.most_common(_EXAMPLES)])
        print_table(
            ["id", "reason", "similarity", "of"],
            [
                [printable(one.id), one.reason, "" if one.similarity is None else f"{one.similarity:.2f}", printable(one.of_id)]
                for one in told.examples
            ],
        )
    for why, count in told.refused.items():
        note(f"{count:,} cannot be released: {why}")
    if dry_run:
        note("Nothing was written (--dry-run).")
    elif told.written:
        note(f"Written to {names.unique}: {told.written:,}. Each represents itself from now on.")
    else:
        note("Nothing was written.")
