"""Read decisions and texts from Kafka: the newest records of the outputs as they arrive, and single
records by position.

Invariants: nothing joins a group or commits; a turn reads at most `TURN_RECORDS` records (the first
as many as are remembered), the newest of each partition in the same share, so a flood costs no more;
only records of the source and the two outputs can be opened.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Final

import structlog

from stream_dedup.console.recent_decisions import KEEP, Recent
from stream_dedup.console.values import Decision, Opened, similarity_of
from stream_dedup.domain.document import DeadLetter, Message, Reason, TopicPartitionKey
from stream_dedup.domain.errors import ConfigurationError, InputError, StreamDedupError
from stream_dedup.domain.hosts import HostNames
from stream_dedup.inputs.decoder import NOT_FETCHED, Decoder
from stream_dedup.insights.signals import reading_group
from stream_dedup.kafka import (
    Admin,
    Bounds,
    ReusedAdmin,
    count_records,
    read_spans,
    require_topics,
    unread_spans,
)
from stream_dedup.log import headers
from stream_dedup.settings.settings import Settings

_logger = structlog.get_logger("stream_dedup.console")

TURN_RECORDS: Final = 1_000
TURN_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 1.5
_HEADERS_MAX: Final = 40
_HEADER_CHARACTERS_MAX: Final = 500


def decision_of(
    message: Message, identifier: bytes, host: str, seen_ms: int, *, is_live: bool = False
) -> Decision:
    """Return the decision in a record of an output; missing or invalid headers are left out."""
    all_headers = message.headers or []
    text = partial(headers.text_of, all_headers)
    time_ms = message.timestamp_ms or 0
    return Decision(
        at=message.position,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        id=identifier.decode("utf-8", "replace"),
        host=host,
        verdict=text(headers.VERDICT) or "unknown",
        reason=text(headers.REASON) or "unknown",
        time_ms=time_ms,
        size=len(message.value or b""),
        distance=_whole(text(headers.DISTANCE)),
        similarity=similarity_of(text(headers.REASON), _share(text(headers.SIMILARITY))),
        copies=_whole(text(headers.COPIES)),
        better=text(headers.BETTER),
        position=text(headers.POSITION),
        of_position=text(headers.OF_POSITION),
        of_id=text(headers.OF_ID),
        sibling_position=text(headers.SIBLING_POSITION),
        sibling_id=text(headers.SIBLING_ID),
        sibling_similarity=_share(text(headers.SIBLING_SIMILARITY)),
        log=text(headers.LOG),
        recipe=text(headers.RECIPE),
        fingerprint=text(headers.FINGERPRINT),
        headers=tuple(
            (
                name[:200],
                (value or b"")[: 4 * _HEADER_CHARACTERS_MAX].decode("utf-8", "replace")[
                    :_HEADER_CHARACTERS_MAX
                ],
            )
            for name, value in all_headers[-_HEADERS_MAX:]  # the headers of the filter come last
        ),
        seen_ms=seen_ms,
        latency_ms=seen_ms - time_ms if is_live and 0 < time_ms <= seen_ms else None,
    )


class OutputRecords:
    """The records of one deployment. `kafka`: the shared admin client."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.kafka = ReusedAdmin(settings)
        self._names = settings.topic_names
        self._hosts = HostNames()
        self._lock = threading.Lock()
        self._decoder: Decoder | None = None

    def silence(self) -> str:
        """Return why Kafka does not answer within `ANSWER_SECONDS`; empty if it does."""
        try:
            why = self.kafka.ask(lambda admin: admin.silence(self._names.unique, ANSWER_SECONDS))
        except ConfigurationError as error:
            return str(error)
        return why and f"Kafka at {self._settings.kafka_bootstrap_servers} does not answer ({why})."

    def decision(self, message: Message, seen_ms: int, *, is_live: bool = False) -> Decision:
        """Return the decision in a record of an output, with host and title."""
        identifier, *_, title = self._decoded(message)
        decision = decision_of(
            message, identifier, self._hosts.of(identifier), seen_ms, is_live=is_live
        )
        return replace(decision, title=title[:_HEADER_CHARACTERS_MAX])

    def id_of(self, message: Message) -> str:
        """Return the document's id in a record, also in one that cannot be judged."""
        with self._lock:
            return (self._decoding().id_of(message) or b"").decode("utf-8", "replace")

    def opened(self, at: str) -> Opened:
        """Return the record at a position such as `duplicates-3@17`, with its text or why there is
        none.

        Raises:
            InputError: it is not a position in the source or an output.
            BrokerError: Kafka failed.
        """
        key, offset = self._place(at)
        low, high = self.kafka.ask(lambda admin: admin.bounds([key])[key])
        spans = {key: [(offset, offset + 1)]} if low <= offset < high else {}
        message = next(iter(all_of(read_spans(self._settings, spans))), None)
        if message is None:
            contents = f"{key[0]}-{key[1]} contains {f'offsets {low} to {high - 1}' if low < high else 'nothing'}"
            return Opened(
                at, "", "", f"{contents}; {offset} was deleted (retention), or never existed."
            )
        identifier, text, why, site, title = self._decoded(message)
        decision = None
        if key[0] != self._names.documents:
            decision = decision_of(
                message, identifier, self._hosts.of(identifier), message.timestamp_ms or 0
            )
        return Opened(
            at,
            identifier.decode("utf-8", "replace"),
            text,
            why,
            decision,
            message.timestamp_ms or 0,
            site=site,
            title=title,
        )

    def _place(self, at: str) -> tuple[TopicPartitionKey, int]:
        front, _, offset = at.rpartition("@")
        topic, _, partition = front.rpartition("-")
        topics = (self._names.documents, self._names.unique, self._names.duplicates)
        if topic not in topics:
            raise InputError(
                f"{at:.300} is in none of {', '.join(topics)}; the console opens only records of these."
            )
        if (
            not partition.isdecimal()
            or not offset.isdecimal()
            or int(partition) >= 1 << 31
            or int(offset) >= 1 << 62
        ):
            raise InputError(
                f"{at:.300} is not a position; write one such as {self._names.duplicates}-3@17."
            )
        _, partitions = self.kafka.ask(lambda admin: require_topics(admin, [topic]))[topic]
        if int(partition) >= partitions:
            raise InputError(
                f"{topic} has {partitions} partitions, counted from 0, and no partition {partition}."
            )
        return (topic, int(partition)), int(offset)

    def _decoding(self) -> Decoder:
        if self._decoder is None:
            self._decoder = Decoder(self._settings, fetches=False)
        return self._decoder

    def _decoded(self, message: Message) -> tuple[bytes, str, str, str, str]:
        """Return id, text, why there is no text, site and title. The decoder is for one thread at a
        time.
        """
        with self._lock:
            decoder = self._decoding()
            decoded = decoder.decode(message)
            is_elsewhere = isinstance(decoded, DeadLetter) and decoded.error_class == NOT_FETCHED
            identifier = decoder.id_of(message) if is_elsewhere else message.key
        if isinstance(decoded, DeadLetter):
            return (
                identifier or b"",
                "",
                decoded.message
                if is_elsewhere
                else f"It cannot be read ({decoded.stage}): {decoded.message}",
                "",
                "",
            )
        if isinstance(decoded, Reason):
            why = f"It was passed on without being judged ({decoded.label})."
            return message.key or b"", "", why, "", ""
        if not isinstance(decoded.text, str):
            return decoded.id, "", "The recipe compares vectors, so there is no text.", "", ""
        why = "" if decoded.text else "The record's text is empty."
        return decoded.id, decoded.text, why, decoded.site, decoded.title


class OutputsFollower(threading.Thread):
    """Adds the newest records of the outputs to `recent` every `TURN_SECONDS`, until `stop` is set."""

    def __init__(
        self, settings: Settings, records: OutputRecords, recent: Recent, stop: threading.Event
    ) -> None:
        super().__init__(name="console", daemon=True)
        self._settings = settings
        self._records = records
        self._recent = recent
        self._stop_event = stop
        self._seen: dict[TopicPartitionKey, int] = {}
        self._members: dict[str, frozenset[str]] = {}
        self._trouble = "the outputs have not been read yet."

    def trouble(self) -> str:
        """Return why no decisions arrive; empty if they do."""
        return self._trouble

    def run(self) -> None:
        """Read in turns until `stop` is set."""
        while not self._stop_event.is_set():
            try:
                self.turn()
                self._trouble = ""
            except StreamDedupError as error:
                self._trouble = str(error)
            except Exception as error:
                self._trouble = f"an internal error, {type(error).__name__}; see the role's log."
                _logger.exception("the console cannot read the outputs", error=str(error))
            self._stop_event.wait(TURN_SECONDS)

    def turn(self) -> None:
        """Read the records since the last turn.

        Raises:
            ConfigurationError: a topic is missing.
            BrokerError: Kafka failed; the next turn reads these records.
        """
        names = self._settings.topic_names
        ends = self._records.kafka.ask(partial(ends_of, (names.unique, names.duplicates)))
        # An end below the last one: the topic was created again, and is read from its beginning.
        begins = {
            key: self._seen[key] if self._seen.get(key, high + 1) <= high else low
            for key, (low, high) in ends.items()
        }
        # Of each partition the same share, or unique and duplicates would be counted unequally.
        starts = {key: max(low, begins[key]) for key, (low, _) in ends.items()}
        unread = sum(high - starts[key] for key, (_, high) in ends.items())
        share = min(1.0, (TURN_RECORDS if self._seen else KEEP) / max(1, unread))
        spans = {
            key: [(high - math.ceil((high - starts[key]) * share), high)]
            for key, (_, high) in ends.items()
            if starts[key] < high
        }
        group = self._settings.group
        for role, group_id in (("Workers", group), ("Replicas of insights", reading_group(group))):
            members = self._records.kafka.ask(methodcaller("member_ids", group_id))
            if self._members.get(role, members) != members:
                self._recent.mark(f"{role} joined or left; {len(members)} now.")
            self._members[role] = members
        is_live = bool(self._seen)
        seen_ms = int(time.time() * 1000)
        messages = all_of(read_spans(self._settings, spans))
        passed_over = {key for key, [(first, _)] in spans.items() if first > begins[key]}
        self._seen = {key: high for key, (_, high) in ends.items()}
        decisions = [
            self._records.decision(
                message, seen_ms if is_live else message.timestamp_ms or seen_ms, is_live=is_live
            )
            for message in messages
        ]
        oldest: dict[TopicPartitionKey, int] = dict.fromkeys(passed_over, seen_ms)
        for decision in decisions:
            if (key := (decision.topic, decision.partition)) in oldest:
                oldest[key] = min(oldest[key], decision.seen_ms)
        whole_since_ms = max(oldest.values(), default=0)
        if not is_live:  # the newest of all partitions, not of each
            decisions = [decision for decision in decisions if decision.seen_ms >= whole_since_ms]
        self._recent.saw(sorted(decisions, key=lambda decision: decision.time_ms), whole_since_ms)


def ends_of(topics: Sequence[str], admin: Admin) -> dict[TopicPartitionKey, Bounds]:
    """Return the bounds of each partition of the topics.

    Raises:
        GoneError: one of them does not exist.
    """
    known_topics = require_topics(admin, topics)
    return admin.bounds(
        [
            (topic, partition)
            for topic in topics
            for partition in range(known_topics[topic].partitions)
        ]
    )


def waiting(settings: Settings, admin: Admin) -> dict[int, int]:
    """Return the number of source records of each partition that no worker has committed."""
    ends = ends_of((settings.topic_names.documents,), admin)
    spans = unread_spans(ends, admin.committed_or_last_known(settings.group))
    return {key[1]: count for key, count in count_records(settings, spans).items()}


def all_of(records: object) -> list[Message]:
    """Return all messages of a generator, and close it."""
    with closing(records) as messages:  # type: ignore[type-var]
        return list(messages)  # type: ignore[call-overload, no-any-return]


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else None


def _share(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None
