"""Find in Kafka what needs attention: roles that do not run, dead letters, events of hosts.

Invariants: nothing joins a group or commits; the newest `LETTERS` dead letters and `SIGNALS` host
signals are read, each once; results are kept for `KEEP_SECONDS`, for all readers; a check that
fails is a remark.
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
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

from stream_dedup.console.outputs import all_of, ends_of, waiting
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
_ROLE_WEIGHT: Final = 1 << 40  # a role that is not at work comes before what documents did
_SHOWN_BYTES: Final = 300
_DAY_MS: Final = 86_400_000

T = TypeVar("T")


def time_ms() -> int:
    """Return the time now, in milliseconds since 1970."""
    return int(time.time() * 1000)


class Attention:
    """The problems of one deployment that Kafka shows."""

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
        self._letters = _Tail(
            settings, LETTERS, lambda message: _listed(message, id_of(message), documents)
        )
        self._signals = _Tail(settings, SIGNALS, _signal)
        self.waiting: _Kept[dict[int, int]] = _Kept(lambda: kafka.ask(partial(waiting, settings)))
        """The number of source records of each partition that no worker has committed. Raises
        StreamDedupError."""
        self.letters = _Kept(self._read_letters)
        """The dead letters. Raises StreamDedupError: they cannot be read."""
        self.events = _Kept(self._read_events)
        """The events of each host by the signals of the last day; None without any signal. Raises as
        `letters`."""
        self.unwatched = _Kept(self._read_unwatched)
        """A sentence if insights ran before and does not run now; else empty. Raises as `letters`."""
        self.remarks = _Kept(self._look)
        """The remarks, the most important first; a check that fails is a remark."""

    def _look(self) -> Sequence[Remark]:
        remarks: list[Remark] = []
        checks: tuple[Callable[[], Sequence[Remark]], ...] = (
            self._of_roles,
            self._of_letters,
            self._of_hosts,
        )
        for check in checks:
            try:
                remarks += check()
            except StreamDedupError as error:
                remarks.append(Remark("not checked", str(error)))
        return sorted(remarks, key=lambda remark: (_LEVELS.get(remark.level, 0), -remark.weight))

    def _of_roles(self) -> Sequence[Remark]:
        settings, count = self._settings, sum(self.waiting().values())
        facts = self._kafka.ask(lambda admin: read_roles(admin, settings, count))
        findings = check_roles(settings, settings.topic_names, facts)
        return [
            Remark(finding.state.value, finding.sentence, weight=_ROLE_WEIGHT)
            for finding in findings
            if finding.state is not CheckState.OK
        ]

    def _of_letters(self) -> Sequence[Remark]:
        letters = self.letters()
        count = len(letters.open_stages)
        if not count:
            return []
        stages = ", ".join(dict(Counter(letters.open_stages).most_common()))
        many = f"{'' if letters.is_whole else 'of the newest '}{count:,}"
        return [
            Remark(
                "warning",
                f"Dead letters that were not sent back: {many} (stage {stages}).",
                "dead-letters",
                count,
            )
        ]

    def _of_hosts(self) -> Sequence[Remark]:
        events = {
            host: host_events for host, host_events in (self.events() or {}).items() if host_events
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
        if unwatched := self.unwatched():
            remarks.append(Remark("warning", unwatched, weight=_ROLE_WEIGHT))
        return remarks

    def _read_letters(self) -> DeadLetters:
        topic, group = self._settings.topic_names.dead_letters, redrive_group(self._settings.group)
        ends = self._kafka.ask(partial(ends_of, (topic,)))
        committed = self._kafka.ask(lambda admin: admin.committed_or_last_known(group))
        starts = {key: committed.get(key, (0, None))[0] for key in ends}
        read = self._letters.read(ends)
        letters = [
            replace(letter, is_sent_back=offset < starts[key] and letter.can_be_sent_back)
            for key, offset, letter in read
        ]
        letters.sort(key=lambda letter: letter.time_ms, reverse=True)
        counts = Counter((letter.stage, letter.error_class) for letter in letters)
        open_counts = Counter(
            (letter.stage, letter.error_class, letter.can_be_sent_back)
            for letter in letters
            if not letter.is_sent_back
        )
        kinds = tuple(
            LetterKind(
                stage=stage,
                error_class=kind,
                count=count,
                waiting=open_counts[stage, kind, True],
                command=_redrive(stage, kind),
                staying=open_counts[stage, kind, False],
            )
            for (stage, kind), count in counts.most_common()
        )
        return DeadLetters(
            read=len(letters),
            is_whole=all(high - low <= _share(LETTERS, ends) for low, high in ends.values()),
            kinds=kinds,
            letters=tuple(letters[:_LISTED]),
            open_stages=tuple(
                letter.stage or "-" for key, offset, letter in read if offset >= starts[key]
            ),
        )

    def _read_unwatched(self) -> str:
        group = reading_group(self._settings.group)
        has_run = self._kafka.ask(lambda admin: admin.committed_or_last_known(group))
        if not has_run or self._kafka.ask(lambda admin: admin.group_members(group)):
            return ""
        return (
            f"Signals of hosts are not updated: the group {group} has no member. Start one with: "
            "stream-dedup run insights --set http_port=8082"
        )

    def _read_events(self) -> Mapping[str, tuple[HostEvent, ...]] | None:
        topic = self._settings.topic_names.host_signals
        ends = self._kafka.ask(
            lambda admin: ends_of((topic,), admin) if admin.topic_ids([topic]) else {}
        )
        since = self._now_ms() - _DAY_MS
        events_of_hosts: dict[str, tuple[HostEvent, ...]] = {}
        signals = self._signals.read(ends)
        for _, _, (host, time_ms, events) in signals:
            events_of_hosts.pop(host, None)
            if time_ms >= since and events:
                events_of_hosts[host] = events
        return events_of_hosts if signals else None


class _Kept(Generic[T]):
    """The result of `make`, kept for `KEEP_SECONDS`. One thread at a time renews it; meanwhile the
    others get the last result, or wait if that is twice as old.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._kept: tuple[float, T] | None = None

    def __call__(self) -> T:
        kept = self._kept
        if kept is not None and self._lock.locked() and time.monotonic() < kept[0] + KEEP_SECONDS:
            return kept[1]
        with self._lock:
            if self._kept is None or time.monotonic() >= self._kept[0]:
                try:
                    made = self._make()
                except BaseException:
                    self._kept = None
                    raise
                self._kept = time.monotonic() + KEEP_SECONDS, made
            return self._kept[1]


def _share(records_max: int, ends: Mapping[TopicPartitionKey, tuple[int, int]]) -> int:
    """Return how many records of each partition are read, `records_max` in all."""
    return max(1, records_max // max(1, len(ends)))


class _Tail(Generic[T]):
    """The newest records of a topic, `records_max` in all, each converted by `make`; each call
    reads on from the end of the last one.
    """

    def __init__(self, settings: Settings, records_max: int, make: Callable[[Message], T]) -> None:
        self._settings = settings
        self._records_max = records_max
        self._make = make
        self._read: dict[TopicPartitionKey, int] = {}
        self._kept: list[tuple[TopicPartitionKey, int, T]] = []

    def read(
        self, ends: Mapping[TopicPartitionKey, tuple[int, int]]
    ) -> Sequence[tuple[TopicPartitionKey, int, T]]:
        """Return (partition, offset, made) of the newest records, by (first offset, end) of each
        partition.

        Raises:
            BrokerError: Kafka failed; the next look reads on from the same place.
        """
        share = _share(self._records_max, ends)
        first = {key: max(low, high - share) for key, (low, high) in ends.items()}
        if any(self._read.get(key, 0) > high for key, (_, high) in ends.items()):
            self._read, self._kept = {}, []  # another topic of the same name
        begins = {key: max(begin, self._read.get(key, 0)) for key, begin in first.items()}
        spans = {
            key: [(begins[key], high)] for key, (_, high) in ends.items() if begins[key] < high
        }
        new = all_of(read_spans(self._settings, spans)) if spans else []
        self._kept += [
            ((message.topic, message.partition), message.offset, self._make(message))
            for message in new
        ]
        self._kept = [
            (key, offset, made)
            for key, offset, made in self._kept
            if key in first and offset >= first[key]
        ]
        self._read = {key: high for key, (_, high) in ends.items()}
        return self._kept


def _redrive(stage: str, error_class: str) -> str:
    options = [("--stage", stage), ("--class", error_class)]
    return shlex.join(
        ["stream-dedup", "dlq", "redrive", *(part for pair in options if pair[1] for part in pair)]
    )


def _listed(message: Message, identifier: str, documents: str) -> ListedLetter:
    letter = letter_of(message)
    return ListedLetter(
        at=message.position,
        source=letter.source,
        stage=letter.stage,
        error_class=letter.error_class,
        why=letter.why,
        size=letter.size,
        time_ms=message.timestamp_ms or 0,
        is_sent_back=False,
        is_cut=letter.is_cut,
        key=(message.key or b"")[:_SHOWN_BYTES].decode("utf-8", "replace"),
        id=identifier,
        beginning=(message.value or b"")[:_SHOWN_BYTES].decode("utf-8", "replace"),
        can_be_sent_back=letter.can_be_sent_to(documents),
    )


def _signal(message: Message) -> tuple[str, int, tuple[HostEvent, ...]]:
    host = (message.key or b"").decode("utf-8", "replace")
    return host, message.timestamp_ms or 0, _events(message.value)


def _events(raw: bytes | None) -> tuple[HostEvent, ...]:
    """Return the events of a signal; none of one with another format, as of a newer version."""
    try:
        events = json.loads(raw or b"{}").get("events", [])
        return tuple(
            _event(event["event"], int(event["documents"]), str(event.get("position", "")))
            for event in events
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()


def _link(host: str, events: Sequence[HostEvent]) -> str:
    """Return the page of the document that a host repeats, or else the host's decisions."""
    position = next((event.position for event in events if event.position), "")
    return (
        f"group?{urlencode({'at': position})}"
        if position
        else f"decisions?{urlencode({'host': host})}"
    )


def _event(kind: str, documents: int, position: str) -> HostEvent:
    if kind == "vanishing":
        text = f"{documents:,} documents, nearly all of this host, were dropped as copies"
    elif kind == "one-page":
        text = f"about {documents:,} pages were dropped as copies of one page"
    elif kind == "template":
        text = (
            f"about {documents:,} pages resemble one page and were kept because of their site or "
            "title"
        )
    else:
        text = f"{kind:.40} ({documents:,} documents)"
    return HostEvent(text, documents, position[:300])
