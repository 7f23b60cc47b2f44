"""Carry out `release`: deliver wrongly dropped documents to `unique`. `orders.release` describes the
steps and their order.

The log is read once for all documents; then they are released in groups of a thousand. A document
that cannot be released is counted with its reason, and does not affect the others. Comments name the
steps of `orders.release`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stream_dedup.domain.document import LogPlace, Message, Reason
from stream_dedup.domain.errors import BrokerError, ConfigurationError, InputError
from stream_dedup.domain.failpoints import Failpoints
from stream_dedup.domain.printable import printable
from stream_dedup.fingerprinting import format_prints, width_of
from stream_dedup.kafka import Output, TransactionalOutput, read_spans
from stream_dedup.log import headers
from stream_dedup.log.record_frame import FIRST_FORMAT
from stream_dedup.log.records import Release, encode_release, value_digest
from stream_dedup.log.schema import Judgement
from stream_dedup.orders import declaration
from stream_dedup.orders.common import (
    OrderDependencies,
    append_all,
    check_log_topics,
    find_source,
)
from stream_dedup.orders.in_force import InForce
from stream_dedup.orders.release import LoggedRelease, Trace, Traces
from stream_dedup.orders.rewind import POSITION_PATTERN
from stream_dedup.settings.settings import Settings

_ATTEMPTS = 3
_GROUP_DOCUMENTS_MAX = 1000


class Released(NamedTuple):
    """The result: the document's position, the log offset of its release, and whether it was written
    to `unique` now.
    """

    position: str
    log_offset: int | None
    written: bool


class ReleaseOrder:
    """A run of releases: checks the filter, reads the log, appends releases and writes to `unique`.

    A dry run writes nothing. Call `close` at the end.
    """

    def __init__(
        self, settings: Settings, dependencies: OrderDependencies, *, dry_run: bool
    ) -> None:
        """Check that the filter exists and delivers.

        Raises:
            ConfigurationError: a topic is missing, the log belongs to another filter, or the mode is
            shadow.
        """
        self.settings, self.dependencies, self.names = settings, dependencies, settings.topic_names
        names = self.names
        if not settings.judging_mode.delivers:
            raise ConfigurationError(
                "In shadow mode no document is delivered, so none can be released. Nothing was "
                "written."
            )
        check_log_topics(
            settings, [names.documents, names.unique, names.duplicates], dependencies.make_admin
        )
        self.recipe = dependencies.recipe_of(settings)
        declaration.read_or_declare(
            settings, names, self.recipe, begins=False, read=dependencies.read_whole_log
        )
        self.admin = dependencies.make_admin(settings)
        source = self.admin.topic_ids([names.documents])[names.documents]
        self.topic_id, self.partitions = source.topic_id, source.partitions
        self._failpoints = Failpoints(dependencies.failpoint)
        self.dry_run = dry_run
        self._transactions: TransactionalOutput | None = None
        self._format = FIRST_FORMAT

    def begin(self) -> None:
        """Acquire the transactional id, unless this is a dry run."""
        if not self.dry_run:
            # step 1
            self._transactions = self.dependencies.make_transactions(
                self.settings, f"{self.settings.group}-release", "release"
            )

    def close(self) -> None:
        """Close the producer."""
        if self._transactions is not None:
            self._transactions.close()

    def trace(self, traces: Sequence[Trace]) -> None:
        """Read the log, and complete these traces."""
        traced, in_force = Traces(self.topic_id, self.recipe.id, traces), InForce()
        with self.dependencies.progress("searching the log for the documents", None) as advance:
            # step 2
            for log_offset, record in self.dependencies.read_whole_log(
                self.settings, self.names.fingerprints, advance
            ):
                traced.fold(log_offset, record)
                in_force.fold(record)
        self._format = in_force.format

    def release_documents(self, documents: Sequence[tuple[Message, Trace]]) -> int:
        """Append a release of each document without one, and write the documents that are not in
        `unique` yet; return how many were written.

        Raises:
            InputError: needed records of `unique` were deleted; nothing was written.
            ConfigurationError: `unique` refuses a record; none of these documents was written.
            BrokerError: Kafka failed; run the command again to continue.
        """
        if self._transactions is None:
            return 0
        new = [trace for _, trace in documents if not trace.releases]
        if new:
            self._append(new)  # step 3
            self._failpoints.hit("release.appended", 1)
        self._check_unique_since(documents)
        reason = ""
        for _ in range(_ATTEMPTS):
            # step 4
            released = self._find_releases_on_unique([trace for _, trace in documents])
            missing = [
                (message, trace) for message, trace in documents if not trace.released_at & released
            ]
            if not missing:
                return 0
            result = self._transactions.run(  # step 5
                [self._output(message, trace) for message, trace in missing],
                [],
                b"",
                report_step=lambda step: self._failpoints.hit(f"release.{step}", 1),
            )
            if result.outcome.name == "COMMITTED":
                self._failpoints.hit("release.after-commit", 1)
                return len(missing)
            reason = result.why
            if result.refused:
                raise ConfigurationError(
                    f"The topic {self.names.unique} refuses the record: {reason} Correct the topic's "
                    "settings with: stream-dedup topics apply; then run this again."
                )
        raise BrokerError(
            f"The released records could not be written to {self.names.unique}: {reason} Run the same "
            "command again; it continues."
        )

    def _append(self, traces: Sequence[Trace]) -> None:
        ends = {
            partition: self.admin.end_offset(self.names.unique, partition)
            for partition in {trace.partition for trace in traces}
        }
        raws = [
            encode_release(Release(trace.judged[-1].document, ends[trace.partition]), self._format)
            for trace in traces
        ]
        for trace, log_offset in zip(
            traces, append_all(self.settings, self.names, raws), strict=True
        ):
            trace.releases.append(LoggedRelease(log_offset, ends[trace.partition]))

    def _check_unique_since(self, documents: Sequence[tuple[Message, Trace]]) -> None:
        """Check that `unique` still contains the records since each release.

        Raises:
            InputError: it does not, so a release may or may not have been written.
        """
        bounds = self.admin.bounds(
            list({(self.names.unique, trace.partition) for _, trace in documents})
        )
        for message, trace in documents:
            first_offset = min(logged.unique_from for logged in trace.releases)
            low, _ = bounds[self.names.unique, trace.partition]
            if low > first_offset:
                raise InputError(
                    f"{self.names.unique}-{trace.partition} no longer contains records below "
                    f"{low}, but {message.position} may have been released to offset "
                    f"{first_offset} or later, so it is unknown whether it was. Nothing was written."
                )

    def _find_releases_on_unique(self, traces: Sequence[Trace]) -> set[str]:
        """Return the log places of releases of these documents that occur in records of `unique`."""
        starts: defaultdict[int, list[int]] = defaultdict(list)
        for trace in traces:
            starts[trace.partition] += [logged.unique_from for logged in trace.releases]
        reads = {
            partition: {
                "start": min(offsets),
                "until": self.admin.end_offset(self.names.unique, partition),
            }
            for partition, offsets in starts.items()
        }
        places_to_find = {place for trace in traces for place in trace.released_at}
        return _find_places(self, self.names.unique, reads, places_to_find)

    def _output(self, message: Message, trace: Trace) -> Output:
        document, recipe = trace.judged[-1].document, self.recipe.id
        (fingerprint,) = format_prints(
            document.prints, width_of(document.recipe, document.prints.shape[1])
        )
        released = Judgement(Reason.RELEASED, LogPlace(trace.releases[0].log_offset, 0))
        verdict_headers = headers.of_verdict(document.position(0), recipe, fingerprint, released)
        output_headers = headers.escape_source_headers(message.headers) + verdict_headers
        return Output(
            self.names.unique,
            message.partition,
            message.key,
            message.value,
            message.timestamp_ms,
            output_headers,
        )


class Dropped(NamedTuple):
    """A document to release: its timestamp and its trace."""

    timestamp_ms: int | None
    trace: Trace


@dataclass(slots=True)
class ManyReleased:
    """The numbers of documents by result; `refused` counts reasons why documents cannot be
    released.
    """

    requested: int = 0
    released_before: int = 0
    written: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def remaining(self) -> int:
        """Number of documents that a dry run would have written."""
        return self.requested - self.released_before - self.written - self.refused.total()


def release(
    settings: Settings, text: str, dependencies: OrderDependencies, *, dry_run: bool
) -> Released:
    """Release a document, named as in `orders.common`; idempotent.

    Raises:
        ConfigurationError: a topic is missing, or the log belongs to another filter.
        InputError: the document does not exist, or cannot be released; then nothing was written.
        BrokerError: Kafka failed; run the command again to continue.
    """
    order = ReleaseOrder(settings, dependencies, dry_run=dry_run)
    place = find_source(dependencies, settings, text, order.topic_id, order.recipe.key)
    name = f"{order.names.documents}-{place.partition}@{place.offset}"
    result, ready = _release(order, [place])
    for reason in result.refused:
        raise InputError(f"{name} cannot be released: {reason.removesuffix('.')}.")
    releases = ready[0].trace.releases
    return Released(name, releases[0].log_offset if releases else None, bool(result.written))


def release_many(
    settings: Settings, positions: Iterable[str], dependencies: OrderDependencies, *, dry_run: bool
) -> ManyReleased:
    """Release the documents at positions in `documents`; idempotent.

    Raises:
        ConfigurationError: a topic is missing, or the log belongs to another filter.
        InputError: a line is not a position; then nothing was written.
        BrokerError: Kafka failed; run the command again to continue.
    """
    order = ReleaseOrder(settings, dependencies, dry_run=dry_run)
    return _release(order, _parse_positions(order, positions))[0]


def _release(
    order: ReleaseOrder, places: Sequence[tuple[int, int]]
) -> tuple[ManyReleased, list[Dropped]]:
    """Release the documents at (partition, offset); return the result, and those not refused."""
    result = ManyReleased(requested=len(places))
    order.begin()
    try:
        dropped = list(_read_documents(order, places, result))
        order.trace([document.trace for document in dropped])
        ready = list(_select_releasable(order, dropped, result))
        # Documents that a killed run has begun to release come first: only they require reading much of
        # `unique`.
        ready.sort(key=lambda document: not document.trace.releases)
        for first in range(0, len(ready), _GROUP_DOCUMENTS_MAX):
            _release_group(order, ready[first : first + _GROUP_DOCUMENTS_MAX], result)
    finally:
        order.close()
    return result, ready


def _parse_positions(order: ReleaseOrder, positions: Iterable[str]) -> list[tuple[int, int]]:
    """Return the distinct (partition, offset) of some lines, in their order."""
    places = dict.fromkeys(
        _parse_position(order, line.strip()) for line in positions if line.strip()
    )
    return list(places)


def _parse_position(order: ReleaseOrder, line: str) -> tuple[int, int]:
    match = POSITION_PATTERN.match(line)
    if match is None or match["topic"] not in (None, order.names.documents):
        raise InputError(
            f"The line {printable(line, 80)!r} is not a position in {order.names.documents}, such "
            f"as {order.names.documents}-3@8812. Nothing was written."
        )
    return int(match["partition"]), int(match["offset"])


def _read_documents(
    order: ReleaseOrder, places: Sequence[tuple[int, int]], result: ManyReleased
) -> Iterator[Dropped]:
    """Yield the documents at these places; count deleted ones as refused."""
    for first in range(0, len(places), _GROUP_DOCUMENTS_MAX):
        group = places[first : first + _GROUP_DOCUMENTS_MAX]
        sources = _read_source_records(order, group)
        for partition, offset in group:
            message = sources.get((partition, offset))
            if message is None:
                result.refused[f"{order.names.documents} does not contain it"] += 1
            else:
                trace = Trace(partition, offset, value_digest(message.value))
                yield Dropped(message.timestamp_ms, trace)


def _select_releasable(
    order: ReleaseOrder, dropped: Sequence[Dropped], result: ManyReleased
) -> Iterator[Dropped]:
    """Yield the documents that may be released, and those that have a release already; count the others
    as refused.
    """
    names, new = order.names, [document for document in dropped if not document.trace.releases]
    on_unique, on_duplicates = (
        _log_places_on_output(order, topic, new) for topic in (names.unique, names.duplicates)
    )
    for document in dropped:
        if document.trace.releases:
            yield document
        elif not document.trace.judged:
            result.refused["the log contains no verdict for it"] += 1
        elif document.trace.verdicts_at & on_unique:
            result.refused[f"it was delivered to {names.unique}"] += 1
        elif not document.trace.verdicts_at & on_duplicates:
            result.refused[f"it is not in {names.duplicates}"] += 1
        else:
            yield document


def _log_places_on_output(order: ReleaseOrder, topic: str, dropped: Sequence[Dropped]) -> set[str]:
    """Return the log places of these documents that occur in records of an output topic. The search
    starts at the documents' timestamps.
    """
    times_by_partition: defaultdict[int, list[int]] = defaultdict(list)
    for document in dropped:
        times_by_partition[document.trace.partition].append(document.timestamp_ms or 0)
    reads = {partition: {"since_ms": min(times)} for partition, times in times_by_partition.items()}
    places_to_find = {place for document in dropped for place in document.trace.verdicts_at}
    return _find_places(order, topic, reads, places_to_find)


def _find_places(
    order: ReleaseOrder,
    topic: str,
    reads: Mapping[int, Mapping[str, int]],
    places_to_find: Collection[str],
) -> set[str]:
    """Return those of the log places `places_to_find` that occur in the headers of a topic's records.
    `reads` contains, by partition, the bounds for `read_partition`.
    """
    places = set()
    for partition, bounds in reads.items():
        for record in order.dependencies.read_partition(order.settings, topic, partition, **bounds):
            place = headers.text_of(record.headers, headers.LOG)
            if place in places_to_find:  # all places of the topic may need too much memory
                places.add(place)
    return places


def _release_group(order: ReleaseOrder, group: Sequence[Dropped], result: ManyReleased) -> None:
    """Release a group of documents, or only count them in a dry run."""
    if order.dry_run:
        result.released_before += sum(bool(document.trace.releases) for document in group)
        return
    sources = _read_source_records(order, [document.trace.source_place for document in group])
    documents = []
    for document in group:
        message = sources.get(document.trace.source_place)
        if message is not None and value_digest(message.value) == document.trace.value_digest:
            documents.append((message, document.trace))
    if len(documents) < len(group):
        reason = f"{order.names.documents} no longer contains it"
        result.refused[reason] += len(group) - len(documents)
    if not documents:
        return
    try:
        written = order.release_documents(documents)
    except (ConfigurationError, InputError) as error:
        if len(group) > 1:  # one document may have caused it: release them one by one
            for document in group:
                _release_group(order, [document], result)
            return
        result.refused[str(error)] += 1
        return
    result.written += written
    result.released_before += len(documents) - written


def _read_source_records(
    order: ReleaseOrder, places: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], Message]:
    """Return the records of `documents` at these places by (partition, offset), without deleted
    ones.
    """
    topic, spans = order.names.documents, defaultdict[tuple[str, int], list[tuple[int, int]]](list)
    for partition, offset in sorted(places):
        if partition < order.partitions:
            spans[topic, partition].append((offset, offset + 1))
    for key, (low, high) in order.admin.bounds(list(spans)).items():
        spans[key] = [span for span in spans[key] if low <= span[0] < high]
    return {
        (message.partition, message.offset): message
        for message in read_spans(order.settings, spans)
    }
