"""Find problems that need attention: roles that do not run, dead letters, events of hosts.

Invariants: nothing joins a consumer group or commits offsets; only the newest `LETTERS` dead letters
and `SIGNALS` host signals are read, each record once; results are cached for `KEEP_SECONDS`; a check
that fails is reported as a remark.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from stream_dedup.console.outputs import count_uncommitted, read_all, read_bounds
from stream_dedup.console.values import (
    DeadLetters,
    HostEvent,
    LetterKind,
    ListedLetter,
    Remark,
)
from stream_dedup.domain.document import Message, TopicPartitionKey
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.insights.signals import reading_group
from stream_dedup.kafka import ReusedAdmin, read_spans
from stream_dedup.log.dead_letters import letter_of, redrive_group
from stream_dedup.preflight.finding import CheckState
from stream_dedup.preflight.roles import check_roles, read_roles
from stream_dedup.settings.settings import Settings

LETTERS: Final = 2_000
SIGNALS: Final = 1_000
KEEP_SECONDS: Final = 1.5
_LISTED: Final = 50
_LEVELS: Final = {"refused": 0, "warning": 1, "not checked": 2}
_ROLE_WEIGHT: Final = 1 << 40  # remarks about roles are listed before those about documents
_SHOWN_BYTES: Final = 300
_DAY_MS: Final = 86_400_000

T = TypeVar("T")


def time_ms() -> int:
    """Return the current time, in milliseconds since 1970."""
    return int(time.time() * 1000)


class Attention:
    """Finds the problems of one deployment that can be seen in Kafka."""

    def __init__(
        self,
        settings: Settings,
        kafka: ReusedAdmin,
        now_ms: Callable[[], int] = time_ms,
        id_of: Callable[[Message], str] = lambda _: "",
    ) -> None:
        """Read through `kafka`; `id_of` returns the id of the document in a dead letter."""
        self._settings = settings
        self._kafka = kafka
        self._now_ms = now_ms
        documents = settings.topic_names.documents
        self._letters = _NewestRecords(
            settings, LETTERS, lambda message: _listed_letter(message, id_of(message), documents)
        )
        self._signals = _NewestRecords(settings, SIGNALS, _parse_signal)
        self.lag: _Cached[dict[int, int]] = _Cached(
            lambda: kafka.ask(partial(count_uncommitted, settings))
        )
        """Returns the number of source records that no worker has committed, by partition. Raises
        StreamDedupError: Kafka failed."""
        self.dead_letters = _Cached(self._read_letters)
        """Returns the dead letters. Raises StreamDedupError: they cannot be read."""
        self.host_events = _Cached(self._read_events)
        """Returns the events of each host in the signals of the last day; None if there are no
        signals. Raises StreamDedupError: the signals cannot be read."""
        self.insights_problem = _Cached(self._find_insights_problem)
        """Returns a sentence if insights ran before and does not run now; else empty. Raises
        StreamDedupError: Kafka failed."""
        self.remarks = _Cached(self._run_checks)
        """Returns the remarks, the most important first."""

    def _run_checks(self) -> Sequence[Remark]:
        remarks: list[Remark] = []
        checks: tuple[Callable[[], Sequence[Remark]], ...] = (
            self._check_roles,
            self._check_letters,
            self._check_hosts,
        )
        for check in checks:
            try:
                remarks += check()
            except StreamDedupError as error:
                remarks.append(Remark("not checked", str(error)))
        return sorted(remarks, key=lambda remark: (_LEVELS.get(remark.level, 0), -remark.weight))

    def _check_roles(self) -> Sequence[Remark]:
        settings, count = self._settings, sum(self.lag().values())
        facts = self._kafka.ask(lambda admin: read_roles(admin, settings, count))
        findings = check_roles(settings, settings.topic_names, facts)
        return [
            Remark(finding.state.value, finding.sentence, weight=_ROLE_WEIGHT)
            for finding in findings
            if finding.state is not CheckState.OK
        ]

    def _check_letters(self) -> Sequence[Remark]:
        letters = self.dead_letters()
        count = len(letters.unsent_stages)
        if not count:
            return []
        stages = ", ".join(dict(Counter(letters.unsent_stages).most_common()))
        number = f"{count:,}" if letters.is_whole else f"{count:,} of the newest {letters.count:,}"
        return [
            Remark(
                "warning",
                f"Dead letters that were not sent back: {number} (stage {stages}).",
                "dead-letters",
                count,
            )
        ]

    def _check_hosts(self) -> Sequence[Remark]:
        events = {
            host: host_events
            for host, host_events in (self.host_events() or {}).items()
            if host_events
        }
        remarks = [
            Remark(
                "warning",
                f"{host}: {'; '.join(event.text for event in host_events)}",
                _link(host, host_events),
                max(event.documents for event in host_events),
                host,
            )
            for host, host_events in events.items()
        ]
        if insights_problem := self.insights_problem():
            remarks.append(Remark("warning", insights_problem, weight=_ROLE_WEIGHT))
        return remarks

    def _read_letters(self) -> DeadLetters:
        topic, group = self._settings.topic_names.dead_letters, redrive_group(self._settings.group)
        ends = self._kafka.ask(partial(read_bounds, (topic,)))
        committed = self._kafka.ask(lambda admin: admin.committed_or_last_known(group))
        redriven_to = {key: committed.get(key, (0, None))[0] for key in ends}
        read = self._letters.read(ends)
        letters = [
            replace(letter, is_sent_back=offset < redriven_to[key] and letter.can_be_sent_back)
            for key, offset, letter in read
        ]
        letters.sort(key=lambda letter: letter.time_ms, reverse=True)
        counts = Counter((letter.stage, letter.error_class) for letter in letters)
        unsent_counts = Counter(
            (letter.stage, letter.error_class, letter.can_be_sent_back)
            for letter in letters
            if not letter.is_sent_back
        )
        kinds = tuple(
            LetterKind(
                stage=stage,
                error_class=error_class,
                count=count,
                not_sent_back=unsent_counts[stage, error_class, True],
                command=_redrive_command(stage, error_class),
                cannot_be_sent_back=unsent_counts[stage, error_class, False],
            )
            for (stage, error_class), count in counts.most_common()
        )
        return DeadLetters(
            count=len(letters),
            is_whole=all(
                high - low <= _records_per_partition(LETTERS, ends) for low, high in ends.values()
            ),
            kinds=kinds,
            letters=tuple(letters[:_LISTED]),
            unsent_stages=tuple(
                letter.stage or "-" for key, offset, letter in read if offset >= redriven_to[key]
            ),
        )

    def _find_insights_problem(self) -> str:
        group = reading_group(self._settings.group)
        has_run = self._kafka.ask(lambda admin: admin.committed_or_last_known(group))
        if not has_run or self._kafka.ask(lambda admin: admin.group_members(group)):
            return ""
        return (
            f"Host signals are not updated: the group {group} has no member. Start insights with: "
            "stream-dedup run insights --set http_port=8082"
        )

    def _read_events(self) -> Mapping[str, tuple[HostEvent, ...]] | None:
        topic = self._settings.topic_names.host_signals
        ends = self._kafka.ask(
            lambda admin: read_bounds((topic,), admin) if admin.topic_ids([topic]) else {}
        )
        since = self._now_ms() - _DAY_MS
        events_of_hosts: dict[str, tuple[HostEvent, ...]] = {}
        signals = self._signals.read(ends)
        for *_, signal in signals:  # the last signal of a host replaces the earlier ones
            events_of_hosts.pop(signal.host, None)
            if signal.time_ms >= since and signal.events:
                events_of_hosts[signal.host] = signal.events
        return events_of_hosts if signals else None


class _Cached(Generic[T]):
    """Returns the result of `make`, cached for `KEEP_SECONDS`. Only one thread at a time calls `make`;
    meanwhile the other threads get the cached result, or wait if it is older than twice that time.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._cached: tuple[float, T] | None = None  # (time at which it expires, result)

    def __call__(self) -> T:
        cached = self._cached
        is_renewing = self._lock.locked()
        if cached is not None and is_renewing and time.monotonic() < cached[0] + KEEP_SECONDS:
            return cached[1]
        with self._lock:
            if self._cached is None or time.monotonic() >= self._cached[0]:
                try:
                    result = self._make()
                except BaseException:
                    self._cached = None
                    raise
                self._cached = time.monotonic() + KEEP_SECONDS, result
            return self._cached[1]


def _records_per_partition(
    records_max: int, ends: Mapping[TopicPartitionKey, tuple[int, int]]
) -> int:
    """Return how many records of each partition to read, so that all are at most `records_max`."""
    return max(1, records_max // max(1, len(ends)))


class _NewestRecords(Generic[T]):
    """The newest records of a topic, at most `records_max`, each converted by `convert`. Each call of
    `read` reads only the records since the last call.
    """

    def __init__(
        self, settings: Settings, records_max: int, convert: Callable[[Message], T]
    ) -> None:
        self._settings = settings
        self._records_max = records_max
        self._convert = convert
        self._read_ends: dict[TopicPartitionKey, int] = {}
        self._records: list[tuple[TopicPartitionKey, int, T]] = []

    def read(
        self, ends: Mapping[TopicPartitionKey, tuple[int, int]]
    ) -> Sequence[tuple[TopicPartitionKey, int, T]]:
        """Return (partition, offset, converted) of each of the newest records. `ends`: the first
        stored offset and the end of each partition.

        Raises:
            BrokerError: Kafka failed; the next call reads the same records.
        """
        per_partition = _records_per_partition(self._records_max, ends)
        first = {key: max(low, high - per_partition) for key, (low, high) in ends.items()}
        if any(self._read_ends.get(key, 0) > high for key, (_, high) in ends.items()):
            self._read_ends, self._records = {}, []  # the topic was deleted and created again
        begins = {key: max(begin, self._read_ends.get(key, 0)) for key, begin in first.items()}
        spans = {
            key: [(begins[key], high)] for key, (_, high) in ends.items() if begins[key] < high
        }
        new = read_all(read_spans(self._settings, spans)) if spans else []
        self._records += [
            ((message.topic, message.partition), message.offset, self._convert(message))
            for message in new
        ]
        self._records = [
            (key, offset, converted)
            for key, offset, converted in self._records
            if key in first and offset >= first[key]
        ]
        self._read_ends = {key: high for key, (_, high) in ends.items()}
        return self._records


def _redrive_command(stage: str, error_class: str) -> str:
    options = [("--stage", stage), ("--class", error_class)]
    return shlex.join(
        ["stream-dedup", "dlq", "redrive", *(part for pair in options if pair[1] for part in pair)]
    )


def _listed_letter(message: Message, identifier: str, source_topic: str) -> ListedLetter:
    letter = letter_of(message)
    return ListedLetter(
        position=message.position,
        source_position=letter.source,
        stage=letter.stage,
        error_class=letter.error_class,
        error_message=letter.why,
        size=letter.size,
        time_ms=message.timestamp_ms or 0,
        is_sent_back=False,
        is_cut=letter.is_cut,
        key=(message.key or b"")[:_SHOWN_BYTES].decode("utf-8", "replace"),
        id=identifier,
        beginning=(message.value or b"")[:_SHOWN_BYTES].decode("utf-8", "replace"),
        can_be_sent_back=letter.can_be_sent_to(source_topic),
    )


class _HostSignal(NamedTuple):
    """The events in a record of `host-signals`, and its time."""

    host: str
    time_ms: int
    events: tuple[HostEvent, ...]


def _parse_signal(message: Message) -> _HostSignal:
    host = (message.key or b"").decode("utf-8", "replace")
    return _HostSignal(host, message.timestamp_ms or 0, _parse_events(message.value))


def _parse_events(raw: bytes | None) -> tuple[HostEvent, ...]:
    """Return the events of a signal; none if it has another format, such as that of a newer version."""
    try:
        events = json.loads(raw or b"{}").get("events", [])
        return tuple(
            _host_event(event["event"], int(event["documents"]), str(event.get("position", "")))
            for event in events
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()


def _link(host: str, events: Sequence[HostEvent]) -> str:
    """Return the address of the repeated page's group; without one, of the host's decisions."""
    position = next((event.position for event in events if event.position), "")
    return (
        f"group?{urlencode({'document': position})}"
        if position
        else f"decisions?{urlencode({'host': host})}"
    )


def _host_event(kind: str, documents: int, position: str) -> HostEvent:
    if kind == "vanishing":
        text = f"nearly all documents of this host ({documents:,}) were dropped as copies"
    elif kind == "one-page":
        text = f"about {documents:,} pages were dropped as copies of one page"
    elif kind == "template":
        text = (
            f"about {documents:,} pages are similar to one page, but were kept because of their "
            "site or title"
        )
    else:
        text = f"{kind:.40} ({documents:,} documents)"
    return HostEvent(text, documents, position[:300])
