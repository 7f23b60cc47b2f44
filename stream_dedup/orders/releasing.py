"""The work of `release`: documents wrongly dropped go to `unique` after all. The steps and their
order: `control.release`.

Many go the way of a single one, a thousand at a time; the log is read once for all. A document that
cannot be released is counted with its reason, and costs no other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stream_dedup.domain.document import LogPlace, Message, Reason
from stream_dedup.domain.errors import BrokerError, ConfigurationError, InputError
from stream_dedup.domain.failpoints import Failpoints
from stream_dedup.domain.printable import printable
from stream_dedup.fingerprinting import format_prints, width_of
from stream_dedup.kafka import Output, TransactionalOutput, sample
from stream_dedup.log import headers
from stream_dedup.log.frame import FIRST_FORMAT
from stream_dedup.log.records import Release, encode_release, value_digest
from stream_dedup.orders import declaration
from stream_dedup.orders.inforce import InForce
from stream_dedup.orders.orders import (
    OrderDependencies,
    append_all,
    log_names,
    on_output,
    record_at,
    source_of,
)
from stream_dedup.orders.release import Trace, Traces
from stream_dedup.orders.rewind import POSITION_FORM
from stream_dedup.settings.settings import Settings

_ATTEMPTS = 3
_AT_ONCE = 1000
_GONE = "Take the document from duplicates, and send it to the readers of unique by other means."


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


class Dropped(NamedTuple):
    """A document that is to be released: its time, and what the log says of it."""

    timestamp_ms: int | None
    trace: Trace


@dataclass(slots=True)
class ManyReleased:
    """What was done with how many documents; `refused`: why some cannot be released."""

    found: int = 0
    before: int = 0
    written: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def left(self) -> int:
        """How many would be written, were it not for a dry run."""
        return self.found - self.before - self.written - self.refused.total()


def release_many(
    settings: Settings, positions: Iterable[str], around: OrderDependencies, *, dry_run: bool
) -> ManyReleased:
    """Release the documents at positions in `documents`, each once, however often this is run.

    Raises:
        ConfigurationError: a topic is missing, or the log is another's.
        InputError: a line is no position; then nothing was written.
        BrokerError: Kafka failed; run it again, it goes on.
    """
    order = ReleaseOrder(settings, around, dry_run=dry_run)
    places = _places(order, positions)
    result = ManyReleased(found=len(places))
    order.begin()
    try:
        dropped = list(_read(order, places, result))
        order.trace([one.trace for one in dropped])
        ready = list(_releasable(order, dropped, result))
        # Those that a killed run left halfway come first: only for them `unique` is read far back.
        ready.sort(key=lambda one: not one.trace.releases)
        for first in range(0, len(ready), _AT_ONCE):
            _carry_out(order, ready[first : first + _AT_ONCE], result, dry_run=dry_run)
    finally:
        order.close()
    return result


def _places(order: ReleaseOrder, positions: Iterable[str]) -> list[tuple[int, int]]:
    """Return the partitions and offsets that lines name, each once, in the order of the lines."""
    found = dict.fromkeys(_place(order, line.strip()) for line in positions if line.strip())
    return list(found)


def _place(order: ReleaseOrder, line: str) -> tuple[int, int]:
    at = POSITION_FORM.match(line)
    if at is None or at["topic"] not in (None, order.names.documents):
        raise InputError(
            f"The line {printable(line, 80)!r} is no position in {order.names.documents}, such as "
            f"{order.names.documents}-3@8812. Nothing was written."
        )
    return int(at["partition"]), int(at["offset"])


def _read(
    order: ReleaseOrder, places: Sequence[tuple[int, int]], result: ManyReleased
) -> Iterator[Dropped]:
    """Yield the documents at these places; count those that are gone."""
    for first in range(0, len(places), _AT_ONCE):
        part = places[first : first + _AT_ONCE]
        sources = _sources(order, part)
        for partition, offset in part:
            message = sources.get((partition, offset))
            if message is None:
                result.refused[f"{order.names.documents} does not hold it"] += 1
            else:
                trace = Trace(partition, offset, value_digest(message.value))
                yield Dropped(message.timestamp_ms, trace)


def _releasable(
    order: ReleaseOrder, dropped: Sequence[Dropped], result: ManyReleased
) -> Iterator[Dropped]:
    """Yield what may be released, or was and may not be on `unique` yet; count the others with
    their reason.
    """
    names, new = order.names, [one for one in dropped if not one.trace.releases]
    kept, gone = (_decided_on(order, topic, new) for topic in (names.unique, names.duplicates))
    for one in dropped:
        if one.trace.releases:
            yield one
        elif not one.trace.judged:
            result.refused["the log has no verdict on it"] += 1
        elif one.trace.verdicts_at & kept:
            result.refused[f"it left on {names.unique}"] += 1
        elif not one.trace.verdicts_at & gone:
            result.refused[f"it is not in {names.duplicates}"] += 1
        else:
            yield one


def _decided_on(order: ReleaseOrder, topic: str, dropped: Sequence[Dropped]) -> set[str]:
    """Return the places in the log that decided what an output holds, as far back as these
    documents were.
    """
    since: defaultdict[int, list[int]] = defaultdict(list)
    for one in dropped:
        since[one.trace.partition].append(one.timestamp_ms or 0)
    found = set()
    for partition, times in since.items():
        records = order.around.read_partition(order.settings, topic, partition, since_ms=min(times))
        found |= {headers.text_of(one.headers, headers.LOG) for one in records}
    return found


def _carry_out(
    order: ReleaseOrder, part: Sequence[Dropped], result: ManyReleased, *, dry_run: bool
) -> None:
    """Release a part, or say what would be."""
    if dry_run:
        result.before += sum(bool(one.trace.releases) for one in part)
        return
    sources = _sources(order, [(one.trace.partition, one.trace.offset) for one in part])
    documents = [
        (sources[one.trace.partition, one.trace.offset], one.trace)
        for one in part
        if _is_there(one, sources)
    ]
    if len(documents) < len(part):
        result.refused[f"{order.names.documents} does not hold it any more"] += len(part) - len(
            documents
        )
    if not documents:
        return
    try:
        written = order.carry_out(documents)
    except (ConfigurationError, InputError) as error:
        if len(part) > 1:  # one of them: each goes alone
            for one in part:
                _carry_out(order, [one], result, dry_run=dry_run)
            return
        result.refused[str(error)] += 1
        return
    result.written += written
    result.before += len(documents) - written


def _sources(
    order: ReleaseOrder, places: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], Message]:
    """Return the records in `documents` at these places, by partition and offset; those that are
    gone are missing.
    """
    topic, spans = order.names.documents, defaultdict[tuple[str, int], list[tuple[int, int]]](list)
    for partition, offset in sorted(places):
        if partition < order.partitions:
            spans[topic, partition].append((offset, offset + 1))
    for key, (low, high) in order.admin.ends(list(spans)).items():
        spans[key] = [span for span in spans[key] if low <= span[0] < high]
    return {(one.partition, one.offset): one for one in sample(order.settings, spans)}


def _is_there(one: Dropped, sources: dict[tuple[int, int], Message]) -> bool:
    found = sources.get((one.trace.partition, one.trace.offset))
    return found is not None and value_digest(found.value) == one.trace.value_digest
