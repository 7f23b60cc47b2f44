"""Shared parts of the commands that change the filter: dependencies, appending to the log, and
finding documents.

An operator names a dropped document by its position in `documents`, by that of its record on
`duplicates`, or by its id. A record on `duplicates` contains its source position (`dedup.position`),
which may be of a topic that this filter no longer reads. For an id, the log is searched, and of the
documents with that id the one on `duplicates` is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Self

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import BrokerError, ConfigurationError, InputError
from stream_dedup.domain.failpoints import VARIABLE
from stream_dedup.domain.printable import printable
from stream_dedup.domain.terminal import progress
from stream_dedup.domain.topics import TopicNames, log_problems
from stream_dedup.fingerprinting import Recipe
from stream_dedup.kafka import (
    Admin,
    LogAppender,
    TransactionalOutput,
    read_partition,
    read_whole_log,
)
from stream_dedup.log import headers
from stream_dedup.log.records import Batch, LogRecord
from stream_dedup.orders.forget import id_in_log
from stream_dedup.orders.rewind import POSITION_PATTERN
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class OrderDependencies:
    """The dependencies of a command that changes the filter: Kafka clients, the recipe, a progress
    bar. Tests replace them.
    """

    failpoint: str | None = None
    make_admin: Callable[[Settings], Admin] = Admin
    make_transactions: Callable[[Settings, str, str], TransactionalOutput] = TransactionalOutput
    read_whole_log: Callable[..., Iterator[tuple[int, LogRecord | None]]] = read_whole_log
    read_partition: Callable[..., Iterator[Message]] = read_partition
    recipe_of: Callable[[Settings], Recipe] = recipe_of
    progress: Callable[[str, int | None], AbstractContextManager[Advance]] = progress

    @classmethod
    def of_process(cls) -> Self:
        """Return the dependencies of this process."""
        return cls(os.environ.get(VARIABLE))


def check_log_topics(
    settings: Settings, more: Iterable[str] = (), make_admin: Callable[[Settings], Admin] = Admin
) -> TopicNames:
    """Check that the log and the topics `more` exist, and that Kafka keeps the log forever; return the
    names of the filter's topics.

    Raises:
        ConfigurationError: a topic is missing, or the log would be trimmed.
        BrokerError: Kafka does not answer.
    """
    names = settings.topic_names
    topics = make_admin(settings).describe([names.fingerprints, *more])
    for name in (names.fingerprints, *more):
        if name not in topics:
            raise ConfigurationError(
                f"The topic {name} does not exist; create it with: stream-dedup topics apply"
            )
    problems = log_problems(names.fingerprints, topics[names.fingerprints])
    if problems:
        raise ConfigurationError("\n".join(problems))
    return names


def append(settings: Settings, names: TopicNames, raw: bytes) -> int:
    """Append a record to the log and return its offset.

    Raises:
        BrokerError: Kafka did not acknowledge it; it may have been written.
    """
    return append_all(settings, names, [raw])[0]


def append_all(settings: Settings, names: TopicNames, raws: Sequence[bytes]) -> list[int]:
    """Append records to the log in their order, and return their offsets.

    Raises:
        BrokerError: Kafka did not acknowledge all; the others may have been written.
    """
    offsets: list[int] = []
    appender = LogAppender(settings, names.fingerprints, "order")
    for raw in raws:
        appender.send(raw, None, offsets.append)
    appender.flush()
    if len(offsets) != len(raws):
        raise BrokerError(
            f"A record of {names.fingerprints} was sent but not acknowledged; run the same "
            "command again."
        )
    return offsets


_LISTED_MAX = 10


class SourcePlace(NamedTuple):
    """The position of a document in the source topic."""

    partition: int
    offset: int


def find_source(
    dependencies: OrderDependencies, settings: Settings, text: str, topic_id: bytes, key: bytes
) -> SourcePlace:
    """Return the position of the document that `text` names; `key` is the recipe's, `topic_id` that
    of `documents`.

    Raises:
        InputError: there is no such document, or several dropped documents have this id.
    """
    names = settings.topic_names
    match = POSITION_PATTERN.match(text)
    if match is not None and match["topic"] in (None, names.documents):
        return SourcePlace(int(match["partition"]), int(match["offset"]))
    if match is not None and match["topic"] == names.duplicates:
        return _find_by_output_position(
            dependencies, settings, int(match["partition"]), int(match["offset"])
        )
    return _find_by_id(dependencies, settings, text, topic_id, key)


def record_at(
    dependencies: OrderDependencies,
    settings: Settings,
    topic: str,
    partition: int,
    offset: int,
    remedy: str,
) -> Message:
    """Return the committed record at a position; `remedy` is added to the error if it was deleted.

    Raises:
        InputError: there is no record, or it was deleted.
    """
    name = f"{topic}-{partition}@{offset}"
    admin = dependencies.make_admin(settings)
    existing = admin.topic_ids([topic])
    if topic not in existing:
        raise InputError(f"The topic {topic} does not exist, so there is no record {name}.")
    partitions = existing[topic].partitions
    if partition >= partitions:
        raise InputError(
            f"{topic}-{partition} does not exist: the partitions of {topic} are 0 to "
            f"{partitions - 1}."
        )
    low, high = admin.bounds([(topic, partition)])[topic, partition]
    if offset < low:
        raise InputError(
            f"{name} is no longer in the topic: the first remaining offset is {low}. {remedy}"
        )
    if offset >= high:
        raise InputError(f"{name} does not exist yet: the partition ends at {high}.")
    message = next(dependencies.read_partition(settings, topic, partition, offset), None)
    if message is None or message.offset != offset:
        raise InputError(
            f"{name} contains no record: its transaction was aborted, or the topic is compacted."
        )
    return message


def find_on_output(
    dependencies: OrderDependencies,
    settings: Settings,
    topic: str,
    message: Message,
    log_places: set[str],
) -> Message | None:
    """Return the record of an output whose `dedup.log` is one of these log places, or None. The search
    starts at the timestamp of `message`, because its output has the same timestamp.
    """
    for record in dependencies.read_partition(
        settings, topic, message.partition, since_ms=message.timestamp_ms
    ):
        if headers.text_of(record.headers, headers.LOG) in log_places:
            return record
    return None


def _find_by_output_position(
    dependencies: OrderDependencies, settings: Settings, partition: int, offset: int
) -> SourcePlace:
    names = settings.topic_names
    name = f"{names.duplicates}-{partition}@{offset}"
    dropped = record_at(
        dependencies,
        settings,
        names.duplicates,
        partition,
        offset,
        "Name the document by its position in documents.",
    )
    position = headers.text_of(dropped.headers, headers.POSITION)
    match = POSITION_PATTERN.match(position)
    if match is None:
        raise InputError(
            f"{name} is not a record of this filter: it has no header {headers.POSITION}. Nothing "
            "was written."
        )
    if match["topic"] != names.documents:
        raise InputError(
            f"{name} has the source position {printable(position)}, but this filter reads "
            f"{names.documents}: the record belongs to another filter. Nothing was written."
        )
    return SourcePlace(int(match["partition"]), int(match["offset"]))


def _find_by_id(
    dependencies: OrderDependencies, settings: Settings, text: str, topic_id: bytes, key: bytes
) -> SourcePlace:
    names = settings.topic_names
    logged_id = id_in_log(text.encode("utf-8", "surrogateescape"), settings.log_ids, key)
    with dependencies.progress("searching the log for the id", None) as advance:
        log_places = find_by_id_in_log(
            logged_id, topic_id, dependencies.read_whole_log(settings, names.fingerprints, advance)
        )
    if not log_places:
        raise InputError(
            f"{printable(text)!r} is not a position in {names.documents} or {names.duplicates}, "
            "which this filter reads and writes, and the log contains no document with this id. "
            "An id is the whole key of the record, or the whole value of STREAM_DEDUP_ID_FIELD. "
            "Nothing was written."
        )
    return select_dropped(
        text,
        names,
        log_places,
        lambda source: _is_dropped(dependencies, settings, source, log_places[source]),
    )


def find_by_id_in_log(
    logged_id: bytes, topic_id: bytes, log: Iterable[tuple[int, LogRecord | None]]
) -> dict[SourcePlace, set[str]]:
    """Return the source positions of documents with an id, in log order, and for each the log
    places at which it may have been judged.
    """
    log_places: dict[SourcePlace, set[str]] = {}
    for log_offset, record in log:
        for place, identifier in enumerate(record.ids if isinstance(record, Batch) else ()):
            if (
                identifier == logged_id
                and isinstance(record, Batch)
                and record.position(place).topic_id == topic_id
            ):
                position = record.position(place)
                log_places.setdefault(SourcePlace(position.partition, position.offset), set()).add(
                    f"{log_offset}/{place}"
                )
    return log_places


def select_dropped(
    text: str,
    names: TopicNames,
    sources: Iterable[SourcePlace],
    is_dropped: Callable[[SourcePlace], bool],
) -> SourcePlace:
    """Return the only dropped document among these.

    Raises:
        InputError: none was dropped, or several, which the message names.
    """
    dropped = [source for source in sources if is_dropped(source)]
    if not dropped:
        raise InputError(
            f"No document with the id {printable(text)!r} is in {names.duplicates}: it was not "
            "dropped, its verdict has not been delivered yet, or the topic no longer contains it. "
            "Nothing was written."
        )
    if len(dropped) > 1:
        shown = ", ".join(
            f"{names.documents}-{candidate.partition}@{candidate.offset}"
            for candidate in dropped[-_LISTED_MAX:]
        )
        more = (
            f" and {len(dropped) - _LISTED_MAX:,} earlier ones"
            if len(dropped) > _LISTED_MAX
            else ""
        )
        raise InputError(
            f"{len(dropped):,} documents with the id {printable(text)!r} were dropped: "
            f"{shown}{more}. Name one of them. Nothing was written."
        )
    return dropped[0]


def _is_dropped(
    dependencies: OrderDependencies, settings: Settings, source: SourcePlace, log_places: set[str]
) -> bool:
    names = settings.topic_names
    try:
        message = record_at(dependencies, settings, names.documents, *source, "")
    except InputError:
        return False  # a deleted record could not be released
    return find_on_output(dependencies, settings, names.duplicates, message, log_places) is not None
