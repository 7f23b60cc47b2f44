"""Read decisions and texts from Kafka: new records of the outputs as they arrive, and single records
by position.

Invariants: nothing joins a consumer group or commits offsets; the first turn reads at most `KEEP`
records, every later one at most `TURN_RECORDS`, so that a burst does not increase the load; a turn
reads the same share of each partition, the newest records; only records of the
source and of the two outputs can be read by position.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from operator import itemgetter, methodcaller
from typing import Final, NamedTuple

import structlog

from stream_dedup.console.recent_decisions import KEEP, Recent
from stream_dedup.console.values import Decision, OpenedRecord, similarity_of
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


def decision_of(message: Message, identifier: bytes, host: str = "", read_ms: int = 0) -> Decision:
    """Return the decision in a record of an output; missing and invalid headers leave fields empty.
    `read_ms`: when the record was read, 0 if long after it was written.
    """
    all_headers = message.headers or []
    text = partial(headers.text_of, all_headers)
    time_ms = message.timestamp_ms or 0
    return Decision(
        output_position=message.position,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        id=identifier.decode("utf-8", "replace"),
        host=host,
        verdict=text(headers.VERDICT) or "unknown",
        reason=text(headers.REASON) or "unknown",
        time_ms=time_ms,
        size=len(message.value or b""),
        distance=_parse_count(text(headers.DISTANCE)),
        similarity=similarity_of(text(headers.REASON), _parse_share(text(headers.SIMILARITY))),
        copies=_parse_count(text(headers.COPIES)),
        better=text(headers.BETTER),
        source_position=text(headers.POSITION),
        kept_position=text(headers.OF_POSITION),
        kept_id=text(headers.OF_ID),
        sibling_position=text(headers.SIBLING_POSITION),
        sibling_id=text(headers.SIBLING_ID),
        sibling_similarity=_parse_share(text(headers.SIBLING_SIMILARITY)),
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
            for name, value in all_headers[-_HEADERS_MAX:]  # the filter appends its headers
        ),
        latency_ms=read_ms - time_ms if 0 < time_ms <= read_ms else None,
    )


class _DecodedRecord(NamedTuple):
    """The document in a record. `missing_reason`: why `text` is empty."""

    id: bytes
    text: str = ""
    missing_reason: str = ""
    site: str = ""
    title: str = ""


class OutputRecords:
    """Reads records of one deployment. `kafka`: the shared admin client."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.kafka = ReusedAdmin(settings)
        self._names = settings.topic_names
        self._hosts = HostNames()
        self._lock = threading.Lock()
        self._decoder: Decoder | None = None

    def kafka_problem(self) -> str:
        """Return why Kafka does not answer within `ANSWER_SECONDS`; empty if it does."""
        try:
            reason = self.kafka.ask(
                lambda admin: admin.find_silence_reason(self._names.unique, ANSWER_SECONDS)
            )
        except ConfigurationError as error:
            return str(error)
        return (
            reason
            and f"Kafka at {self._settings.kafka_bootstrap_servers} does not answer ({reason})."
        )

    def decision_in(self, message: Message, read_ms: int) -> Decision:
        """Return the decision in a record of an output, with host and title."""
        document = self._decode(message)
        decision = decision_of(message, document.id, self._hosts.of(document.id), read_ms)
        return replace(decision, title=document.title[:_HEADER_CHARACTERS_MAX])

    def id_of(self, message: Message) -> str:
        """Return the id of the document in a record, also if the record cannot be judged."""
        with self._lock:
            return (self._get_decoder().id_of(message) or b"").decode("utf-8", "replace")

    def read_record(self, position: str) -> OpenedRecord:
        """Return the record at a position such as `duplicates-3@17`, with its text or why that is
        missing.

        Raises:
            InputError: `position` is not a position in the source or an output.
            BrokerError: Kafka failed.
        """
        key, offset = self._parse_position(position)
        low, high = self.kafka.ask(lambda admin: admin.bounds([key])[key])
        spans = {key: [(offset, offset + 1)]} if low <= offset < high else {}
        message = next(iter(read_all(read_spans(self._settings, spans))), None)
        if message is None:
            contents = f"{key[0]}-{key[1]} contains {f'offsets {low} to {high - 1}' if low < high else 'nothing'}"
            return OpenedRecord(
                position,
                "",
                "",
                f"{contents}; offset {offset} was deleted by retention, or never existed.",
            )
        document = self._decode(message)
        decision = None
        if key[0] != self._names.documents:
            decision = decision_of(message, document.id, self._hosts.of(document.id))
        return OpenedRecord(
            position,
            document.id.decode("utf-8", "replace"),
            document.text,
            document.missing_reason,
            decision,
            message.timestamp_ms or 0,
            site=document.site,
            title=document.title,
        )

    def _parse_position(self, position: str) -> tuple[TopicPartitionKey, int]:
        front, _, offset = position.rpartition("@")
        topic, _, partition = front.rpartition("-")
        topics = (self._names.documents, self._names.unique, self._names.duplicates)
        if topic not in topics:
            raise InputError(
                f"{position:.300} is not in {', '.join(topics)}; the console shows only records of these "
                "topics."
            )
        if (
            not partition.isdecimal()
            or not offset.isdecimal()
            or int(partition) >= 1 << 31
            or int(offset) >= 1 << 62
        ):
            raise InputError(
                f"{position:.300} is not a position; enter one such as {self._names.duplicates}-3@17."
            )
        _, partitions = self.kafka.ask(lambda admin: require_topics(admin, [topic]))[topic]
        if int(partition) >= partitions:
            raise InputError(
                f"{topic} has no partition {partition}; its partitions are 0 to {partitions - 1}."
            )
        return (topic, int(partition)), int(offset)

    def _get_decoder(self) -> Decoder:
        if self._decoder is None:
            self._decoder = Decoder(self._settings, fetches=False)
        return self._decoder

    def _decode(self, message: Message) -> _DecodedRecord:
        """Return the document in a record."""
        with self._lock:  # only one thread at a time may use the decoder
            decoder = self._get_decoder()
            decoded = decoder.decode(message)
            is_stored_elsewhere = (
                isinstance(decoded, DeadLetter) and decoded.error_class == NOT_FETCHED
            )
            identifier = decoder.id_of(message) if is_stored_elsewhere else message.key
        if isinstance(decoded, DeadLetter):
            reason = f"The record cannot be decoded ({decoded.stage}): {decoded.message}"
            return _DecodedRecord(
                identifier or b"", missing_reason=decoded.message if is_stored_elsewhere else reason
            )
        if isinstance(decoded, Reason):
            reason = f"The record was delivered without being judged ({decoded.label})."
            return _DecodedRecord(message.key or b"", missing_reason=reason)
        if not isinstance(decoded.text, str):
            return _DecodedRecord(
                decoded.id, missing_reason="The recipe compares vectors, so there is no text."
            )
        return _DecodedRecord(
            decoded.id,
            decoded.text,
            missing_reason="" if decoded.text else "The record's text is empty.",
            site=decoded.site,
            title=decoded.title,
        )


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
        self._next_offsets: dict[TopicPartitionKey, int] = {}
        self._members: dict[str, frozenset[str]] = {}
        self._problem = "the outputs have not been read yet."

    def problem(self) -> str:
        """Return why no decisions arrive; empty if they do."""
        return self._problem

    def run(self) -> None:
        """Read new records every `TURN_SECONDS` until `stop` is set."""
        while not self._stop_event.is_set():
            try:
                self.read_new_records()
                self._problem = ""
            except StreamDedupError as error:
                self._problem = str(error)
            except Exception as error:
                self._problem = f"an internal error, {type(error).__name__}; see the role's log."
                _logger.exception("the console cannot read the outputs", error=str(error))
            self._stop_event.wait(TURN_SECONDS)

    def read_new_records(self) -> None:
        """Add the decisions in the records since the last turn.

        Raises:
            ConfigurationError: a topic is missing.
            BrokerError: Kafka failed; the next turn reads the same records.
        """
        names = self._settings.topic_names
        ends = self._records.kafka.ask(partial(read_bounds, (names.unique, names.duplicates)))
        # If an end is below the last one, the topic was created again: read it from its beginning.
        unread_from = {
            key: self._next_offsets[key] if self._next_offsets.get(key, high + 1) <= high else low
            for key, (low, high) in ends.items()
        }
        # Read the same share of each partition, so that unique and duplicates are counted alike.
        stored_from = {key: max(low, unread_from[key]) for key, (low, _) in ends.items()}
        unread = sum(high - stored_from[key] for key, (_, high) in ends.items())
        # Each share is rounded up, so all are at most KEEP records.
        limit = TURN_RECORDS if self._next_offsets else max(1, KEEP - len(ends))
        share = min(1.0, limit / max(1, unread))
        spans = {
            key: [(high - math.ceil((high - stored_from[key]) * share), high)]
            for key, (_, high) in ends.items()
            if stored_from[key] < high
        }
        group = self._settings.group
        for role, group_id in (("Workers", group), ("Replicas of insights", reading_group(group))):
            members = self._records.kafka.ask(methodcaller("member_ids", group_id))
            if self._members.get(role, members) != members:
                self._recent.add_mark(f"{role} joined or left; their number is {len(members)}.")
            self._members[role] = members
        now_ms = int(time.time() * 1000)
        read_ms = now_ms if self._next_offsets else 0
        messages = read_all(read_spans(self._settings, spans))
        skipped = {key for key, [(first, _)] in spans.items() if first > unread_from[key]}
        self._next_offsets = {key: high for key, (_, high) in ends.items()}
        first_ms: dict[TopicPartitionKey, int] = {}
        newest_ms: dict[TopicPartitionKey, int] = {}
        written: list[tuple[int, Decision]] = []
        for message in messages:
            decision = self._records.decision_in(message, read_ms)
            key = (message.topic, message.partition)
            first_ms.setdefault(key, decision.time_ms)
            # A release has an old time, but must stay after the records that precede it.
            newest_ms[key] = max(newest_ms.get(key, 0), decision.time_ms)
            written.append((newest_ms[key], decision))
        self._recent.add(
            [decision for _, decision in sorted(written, key=itemgetter(0))],
            max((first_ms.get(key, now_ms) for key in skipped), default=0),
        )


def read_bounds(topics: Sequence[str], admin: Admin) -> dict[TopicPartitionKey, Bounds]:
    """Return the bounds of each partition of the topics.

    Raises:
        GoneError: one of the topics does not exist.
    """
    known_topics = require_topics(admin, topics)
    return admin.bounds(
        [
            (topic, partition)
            for topic in topics
            for partition in range(known_topics[topic].partitions)
        ]
    )


def count_uncommitted(settings: Settings, admin: Admin) -> dict[int, int]:
    """Return the number of source records of each partition that no worker has committed."""
    ends = read_bounds((settings.topic_names.documents,), admin)
    spans = unread_spans(ends, admin.committed_or_last_known(settings.group))
    return {key[1]: count for key, count in count_records(settings, spans).items()}


def read_all(records: object) -> list[Message]:
    """Return all messages of a generator of records, and close it."""
    with closing(records) as messages:  # type: ignore[type-var]
        return list(messages)  # type: ignore[call-overload, no-any-return]


def _parse_count(text: str) -> int | None:
    """Return the whole number in a header; None if it contains none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else None


def _parse_share(text: str) -> float | None:
    """Return the number from 0 to 1 in a header; None if it contains none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None
