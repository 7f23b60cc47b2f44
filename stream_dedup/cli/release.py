"""`release`: documents wrongly dropped go to `unique` after all. The steps and their order:
`control.release`.

With `--host`, `--of` or `--below` what is on `duplicates` says which are meant; then each goes the
way of a single release, a thousand at a time. A document that cannot be released is counted with
its reason, and costs no other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Self

import typer

from stream_dedup.cli.options import DryRunOption, JsonOption, command
from stream_dedup.cli.orders import (
    OrderDependencies,
    append_all,
    log_names,
    on_output,
    record_at,
    source_of,
)
from stream_dedup.cli.tap import ids_of
from stream_dedup.control import declaration
from stream_dedup.control.inforce import InForce
from stream_dedup.control.release import Trace, Traces
from stream_dedup.control.rewind import POSITION_FORM
from stream_dedup.fingerprinting import format_prints, width_of
from stream_dedup.ground.document import LogPlace, Message, Reason, Verdict
from stream_dedup.ground.errors import BrokerError, ConfigurationError, InputError
from stream_dedup.ground.failpoints import Failpoints
from stream_dedup.ground.hosts import HostNames, named_host, shown_host
from stream_dedup.ground.plan import parse_similarity
from stream_dedup.ground.printable import printable
from stream_dedup.ground.terminal import note, print_counts, print_json, print_table
from stream_dedup.ground.topics import TopicNames
from stream_dedup.kafka import Output, TransactionalOutput, sample
from stream_dedup.log import headers
from stream_dedup.log.frame import FIRST_FORMAT
from stream_dedup.log.records import Release, encode_release
from stream_dedup.settings.settings import Settings
from stream_dedup.worker.prepare import value_digest

_ATTEMPTS = 3
_AT_ONCE = 1000
_EXAMPLES = 10
_REASONS = tuple(one.label for one in Reason if one.verdict is Verdict.DUPLICATE)
_GONE = "Take the document from duplicates, and send it to the readers of unique by other means."


@command("release", example="stream-dedup release --host shop.example --below 0.8 --dry-run")
def release_command(
    settings: Settings,
    position: Annotated[
        str | None,
        typer.Argument(
            metavar="POSITION|ID",
            help="Where it lies in documents (documents-3@8812, 3@8812) or on duplicates "
            "(duplicates-3@17), or its id.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", help="All that were dropped of this host, instead of one."),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--of", metavar="ID|POSITION", help="All that were dropped for this kept document."
        ),
    ] = None,
    below: Annotated[
        str | None,
        typer.Option(
            "--below",
            metavar="SHARE",
            help="All that were dropped with less similarity, such as 0.8.",
        ),
    ] = None,
    reasons: Annotated[
        list[str] | None,
        typer.Option("--reason", help="Of many, those dropped for this reason.  [default: near]"),
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Send what was wrongly dropped to `unique` after all, once, however often this is run.

    One document, or with --host, --of and --below all on `duplicates` that meet each of those
    given.
    """
    is_many = not host is of is below is None
    if (position is None) != is_many:
        raise typer.BadParameter(
            "name one document, or give --host, --of or --below", param_hint="POSITION|ID"
        )
    if reasons and not is_many:
        raise typer.BadParameter("it goes with --host, --of or --below", param_hint="--reason")
    around = OrderDependencies.of_process()
    if position is not None:
        _print(
            settings.topic_names,
            release(settings, position, around, dry_run=dry_run),
            dry_run=dry_run,
            as_json=as_json,
        )
        return 0
    wanted = ReleaseFilter.of_options(host, of, below, reasons or [Reason.NEAR.label])
    show_many(
        settings.topic_names,
        release_many(settings, wanted, around, dry_run=dry_run),
        dry_run=dry_run,
        as_json=as_json,
    )
    return 0


class Released(NamedTuple):
    """What was done: the document's position, the log offset of its release, and whether it was
    written to `unique` now.
    """

    position: str
    log_offset: int | None
    written: bool


class ReleaseOrder:
    """Releases of one filter, between its checks and its end: what the log says, the order, the
    records on `unique`.

    A dry run writes nothing. Close it: its transactional id is taken.
    """

    def __init__(self, settings: Settings, around: OrderDependencies, *, dry_run: bool) -> None:
        """Check that the filter is there and delivers, and take the transactional id.

        Raises:
            ConfigurationError: a topic is missing, the log is another's, or nothing leaves.
        """
        self.settings, self.around, self.names = settings, around, settings.topic_names
        names = self.names
        if not settings.judging_mode.delivers:
            raise ConfigurationError(
                "In shadow mode nothing leaves, so there is nothing to release. Nothing was "
                "written."
            )
        log_names(settings, [names.documents, names.unique, names.duplicates], around.make_admin)
        self.recipe = around.recipe_of(settings)
        declaration.follow(settings, names, self.recipe, begins=False, read=around.read_whole)
        self.admin = around.make_admin(settings)
        self.topic_id, self.partitions = self.admin.topic_ids([names.documents])[names.documents]
        self._failpoints = Failpoints(around.failpoint)
        self._dry_run = dry_run
        self._transactions: TransactionalOutput | None = None
        self._format = FIRST_FORMAT

    def begin(self) -> None:
        """Take the transactional id, unless nothing is to be written."""
        if not self._dry_run:
            self._transactions = self.around.make_transactions(
                self.settings, f"{self.settings.group}-release", "release"
            )  # 1

    def close(self) -> None:
        """Close the producer."""
        if self._transactions is not None:
            self._transactions.close()

    def trace(self, traces: Sequence[Trace]) -> None:
        """Take in what the log says of these documents."""
        looked_for, now = Traces(self.topic_id, self.recipe.id, traces), InForce()
        with self.around.progress("looking for it in the log", None) as advance:
            for log_offset, record in self.around.read_whole(
                self.settings, self.names.fingerprints, advance
            ):  # 2
                looked_for.fold(log_offset, record)
                now.fold(record)
        self._format = now.format

    def carry_out(self, documents: Sequence[tuple[Message, Trace]]) -> int:
        """Append a release of each document that has none, write to `unique` what is not there, and
        return how many were.

        Raises:
            InputError: `unique` does not hold any more what would tell; nothing was written.
            ConfigurationError: `unique` refuses a record; of these documents none was written.
            BrokerError: Kafka failed; run it again, it goes on.
        """
        if self._transactions is None:
            return 0
        new = [trace for _, trace in documents if not trace.releases]
        if new:
            self._append(new)  # 3
            self._failpoints.hit("release.appended", 1)
        self._check_tellable(documents)
        why = ""
        for _ in range(_ATTEMPTS):
            there = self._released_on_unique([trace for _, trace in documents])  # 4
            missing = [
                (message, trace) for message, trace in documents if not trace.released_at & there
            ]
            if not missing:
                return 0
            result = self._transactions.run(  # 5
                [self._output(*one) for one in missing],
                [],
                b"",
                reached=lambda step: self._failpoints.hit(f"release.{step}", 1),
            )
            if result.outcome.name == "COMMITTED":
                self._failpoints.hit("release.after-commit", 1)
                return len(missing)
            why = result.why
            if result.refused:
                raise ConfigurationError(
                    f"The topic {self.names.unique} refuses the record: {why} Correct the topic's "
                    "settings with: stream-dedup "
                    "topics apply; then run this again."
                )
        raise BrokerError(
            f"What is released could not be written to {self.names.unique}: {why} Run the same "
            "command again; it goes on."
        )

    def _append(self, traces: Sequence[Trace]) -> None:
        ends = {
            part: self.admin.end_offset(self.names.unique, part)
            for part in {one.partition for one in traces}
        }
        raws = [
            encode_release(Release(one.judged[-1][2], ends[one.partition]), self._format)
            for one in traces
        ]
        for trace, log_offset in zip(
            traces, append_all(self.settings, self.names, raws), strict=True
        ):
            trace.releases.append((log_offset, ends[trace.partition]))

    def _check_tellable(self, documents: Sequence[tuple[Message, Trace]]) -> None:
        """Refuse where `unique` does not reach back to a release."""
        ends = self.admin.ends(
            list({(self.names.unique, trace.partition) for _, trace in documents})
        )
        for message, trace in documents:
            first, (low, _) = (
                min(one for _, one in trace.releases),
                ends[self.names.unique, trace.partition],
            )
            if low > first:
                raise InputError(
                    f"{self.names.unique}-{trace.partition} holds nothing below {low} any more, "
                    "and a release of "
                    f"{message.at} began at {first}: whether it left then cannot be "
                    "told. Nothing was written."
                )

    def _released_on_unique(self, traces: Sequence[Trace]) -> set[str]:
        """Return the places of releases that records of `unique` name, from where these began."""
        first: defaultdict[int, list[int]] = defaultdict(list)
        for one in traces:
            first[one.partition] += [unique_from for _, unique_from in one.releases]
        found = set()
        for partition, begins in first.items():
            end = self.admin.end_offset(self.names.unique, partition)
            records = self.around.read_partition(
                self.settings, self.names.unique, partition, min(begins), until=end
            )
            found |= {headers.text_of(one.headers, headers.LOG) for one in records}
        return found

    def _output(self, message: Message, trace: Trace) -> Output:
        document, recipe = trace.judged[-1][2], self.recipe.id
        (fingerprint,) = format_prints(
            document.prints, width_of(document.recipe, document.prints.shape[1])
        )
        place = LogPlace(trace.releases[0][0], 0)
        own = headers.of_verdict(document.position(0), Reason.RELEASED, recipe, fingerprint, place)
        passed = headers.passed_on(message.headers) + own
        return Output(
            self.names.unique,
            message.partition,
            message.key,
            message.value,
            message.timestamp_ms,
            passed,
        )


def release(settings: Settings, text: str, around: OrderDependencies, *, dry_run: bool) -> Released:
    """Release a document (`orders` says how it may be named), once, however often it is asked.

    Raises:
        ConfigurationError: a topic is missing, or the log is another's. InputError: there is no
        such document any more, or it is not a duplicate; then nothing was written. BrokerError:
        Kafka failed; run it again, it goes on.
    """
    order = ReleaseOrder(settings, around, dry_run=dry_run)
    partition, offset = source_of(around, settings, text, order.topic_id, order.recipe.key)
    message = record_at(around, settings, order.names.documents, partition, offset, _GONE)
    order.begin()
    try:
        trace = Trace(partition, offset, value_digest(message.value))
        order.trace([trace])
        if not trace.releases:
            _check_was_dropped(around, settings, message, trace)
        written = order.carry_out([(message, trace)])
    finally:
        order.close()
    released_at = trace.releases[0][0] if trace.releases else None
    return Released(f"{order.names.documents}-{partition}@{offset}", released_at, bool(written))


def _check_was_dropped(
    around: OrderDependencies, settings: Settings, message: Message, trace: Trace
) -> None:
    """Refuse what did not leave on `duplicates`, or has left on `unique` as well."""
    names = settings.topic_names
    name = message.at
    if not trace.judged:
        raise InputError(
            f"The log has no verdict on {name}, so it was not dropped: it has not been judged yet, "
            "or it was passed on or set "
            "aside unjudged. Nothing was written."
        )
    found = on_output(around, settings, names.unique, message, trace.verdicts_at)
    if found is not None:
        reason = headers.text_of(found.headers, headers.REASON)
        raise InputError(
            f"{name} was not dropped: it left on {names.unique}, as {reason}. Nothing was written."
        )
    if on_output(around, settings, names.duplicates, message, trace.verdicts_at) is None:
        raise InputError(
            f"{name} is not in {names.duplicates}: its verdict has not left yet, or that topic "
            "does not hold it any more. "
            "Nothing was written."
        )


def _print(names: TopicNames, released: Released, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(released._asdict())
    else:
        log_offset = "-" if released.log_offset is None else str(released.log_offset)
        print_table(["position", "released at log offset"], [[released.position, log_offset]])
    if released.written:
        note(f"Written to {names.unique}. It represents itself from now on.")
    elif dry_run:
        note("Nothing was written (--dry-run).")
    else:
        note(f"Nothing was written: it was released before, and is in {names.unique}.")


@dataclass(frozen=True, slots=True)
class ReleaseFilter:
    """Which records of `duplicates` are meant: each condition that is given holds. `below` in per
    cent.
    """

    host: str | None
    of: str | None
    below: int | None
    reasons: frozenset[str]

    @classmethod
    def of_options(
        cls, host: str | None, of: str | None, below: str | None, reasons: Sequence[str]
    ) -> Self:
        """Return the filter that an operator typed.

        Raises:
            ConfigurationError: the similarity or the host is none, or there is no such reason.
        """
        for one in reasons:
            if one not in _REASONS:
                raise ConfigurationError(
                    f"Nothing is dropped for the reason {one!r:.40}; name one of "
                    f"{', '.join(_REASONS)}."
                )
        name = None if host is None else shown_host(named_host(host.encode("utf-8", "replace")))
        if name == "":
            raise ConfigurationError(f"{host!r:.80} is no host; name one such as shop.example.")
        similarity = None if below is None else parse_similarity(below)
        return cls(
            name,
            of,
            similarity,
            frozenset(reasons),
        )

    def takes(self, dropped: Dropped) -> bool:
        """Return whether a dropped document meets every condition."""
        return (
            dropped.reason in self.reasons
            and self.host in (None, dropped.host)
            and self.of in (None, dropped.of_id, dropped.of_position)
            and (
                self.below is None
                or (dropped.similarity is not None and 100 * dropped.similarity < self.below)
            )
        )


class Dropped(NamedTuple):
    """A record on `duplicates`, as its headers have it; `decided` is the place in the log, as
    `dedup.log` writes it.
    """

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
    """What was done with how many documents. `refused`: why some cannot be released; `examples`:
    the first few.
    """

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


def release_many(
    settings: Settings, wanted: ReleaseFilter, around: OrderDependencies, *, dry_run: bool
) -> ManyReleased:
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
        # Those that a killed run left halfway stand in front: only for them `unique` is read far
        # back.
        ready.sort(key=lambda one: not one.trace.releases)
        for first in range(0, len(ready), _AT_ONCE):
            _carry_out(order, ready[first : first + _AT_ONCE], told, dry_run=dry_run)
    finally:
        order.close()
    return told


def _matching(order: ReleaseOrder, wanted: ReleaseFilter) -> list[Dropped]:
    """Return what is on `duplicates` and meets the filter, each document once, in the order of the
    partitions.
    """
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


def _releasable(
    order: ReleaseOrder, dropped: Sequence[Dropped], told: ManyReleased
) -> Iterator[Dropped]:
    """Yield what may be released, or was and may not be on `unique` yet; count the others with
    their reason.
    """
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
    """Return the places in the log that decided what lies on `unique`, as far back as these
    documents were.
    """
    since: defaultdict[int, list[int]] = defaultdict(list)
    for one in dropped:
        since[one.trace.partition].append(one.timestamp_ms or 0)
    found = set()
    for partition, times in since.items():
        records = order.around.read_partition(
            order.settings, order.names.unique, partition, since_ms=min(times)
        )
        found |= {headers.text_of(one.headers, headers.LOG) for one in records}
    return found


def _carry_out(
    order: ReleaseOrder, part: Sequence[Dropped], told: ManyReleased, *, dry_run: bool
) -> None:
    """Release a part, or say what would be."""
    if dry_run:
        told.before += sum(bool(one.trace.releases) for one in part)
        return
    sources = _sources(order, part)
    documents = [
        (sources[one.trace.partition, one.trace.offset], one.trace)
        for one in part
        if _is_there(one, sources)
    ]
    if len(documents) < len(part):
        told.refused[f"{order.names.documents} does not hold it any more"] += len(part) - len(
            documents
        )
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
    """Return the records in `documents` of these documents, by partition and offset; those that are
    gone are missing.
    """
    topic, spans = order.names.documents, defaultdict[tuple[str, int], list[tuple[int, int]]](list)
    for one in sorted(part, key=lambda one: one.trace.offset):
        spans[topic, one.trace.partition].append((one.trace.offset, one.trace.offset + 1))
    for key, (low, high) in order.admin.ends(list(spans)).items():
        spans[key] = [span for span in spans[key] if low <= span[0] < high]
    return {(one.partition, one.offset): one for one in sample(order.settings, spans)}


def _is_there(one: Dropped, sources: dict[tuple[int, int], Message]) -> bool:
    found = sources.get((one.trace.partition, one.trace.offset))
    return found is not None and value_digest(found.value) == one.trace.value_digest


def show_many(names: TopicNames, told: ManyReleased, *, dry_run: bool, as_json: bool) -> None:
    """Print how many were released, of which hosts, and the first few."""
    figures = {
        "found": told.found,
        "released_before": told.before,
        "written": told.written,
        "would_be_written": told.left,
    }
    if as_json:
        examples = [
            {"id": one.id, "of": one.of_id, "reason": one.reason, "similarity": one.similarity}
            for one in told.examples
        ]
        print_json(
            figures
            | {"hosts": dict(told.hosts), "refused": dict(told.refused), "examples": examples}
        )
        return
    print_counts(figures, heading="documents")
    if told.found:
        print_table(
            ["host", "documents"],
            [[host, f"{count:,}"] for host, count in told.hosts.most_common(_EXAMPLES)],
        )
        print_table(
            ["id", "reason", "similarity", "of"],
            [
                [
                    printable(one.id),
                    one.reason,
                    "" if one.similarity is None else f"{one.similarity:.2f}",
                    printable(one.of_id),
                ]
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
