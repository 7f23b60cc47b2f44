"""What the commands share that change the filter: what they depend on, records appended to the log,
documents that are named.

A dropped document is named by its position in `documents`, by that of its record on `duplicates`,
or by its id. A position counts in the topic that it names: this filter may have printed it before
its source was given another name. A record on `duplicates` says where it lay (`dedup.position`). An
id is looked for in the log, which names every document with it; the one that is on `duplicates` is
meant.
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
from stream_dedup.kafka import Admin, LogAppender, TransactionalOutput, read_partition, read_whole
from stream_dedup.log import headers
from stream_dedup.log.records import Batch, LogRecord
from stream_dedup.orders.forget import log_form
from stream_dedup.orders.rewind import POSITION_FORM
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class OrderDependencies:
    """What a command that changes the filter depends on: Kafka, the recipe, a progress bar. A test
    hands in its own.
    """

    failpoint: str | None = None
    make_admin: Callable[[Settings], Admin] = Admin
    make_transactions: Callable[[Settings, str, str], TransactionalOutput] = TransactionalOutput
    read_whole: Callable[..., Iterator[tuple[int, LogRecord | None]]] = read_whole
    read_partition: Callable[..., Iterator[Message]] = read_partition
    recipe_of: Callable[[Settings], Recipe] = recipe_of
    progress: Callable[[str, int | None], AbstractContextManager[Advance]] = progress

    @classmethod
    def of_process(cls) -> Self:
        """Return those of this process."""
        return cls(os.environ.get(VARIABLE))


def log_names(
    settings: Settings, more: Iterable[str] = (), make_admin: Callable[[Settings], Admin] = Admin
) -> TopicNames:
    """Return the topics' names, once the log (and `more`) exist and Kafka keeps the log as it must
    be kept.

    Raises:
        ConfigurationError: a topic is missing, or the log would be trimmed.
        BrokerError: Kafka does not answer.
    """
    names = settings.topic_names
    found = make_admin(settings).describe([names.fingerprints, *more])
    for name in (names.fingerprints, *more):
        if name not in found:
            raise ConfigurationError(
                f"The topic {name} does not exist; create it with: stream-dedup topics apply"
            )
    problems = log_problems(names.fingerprints, found[names.fingerprints])
    if problems:
        raise ConfigurationError("\n".join(problems))
    return names


def append(settings: Settings, names: TopicNames, raw: bytes) -> int:
    """Append one record to the log and return its offset.

    Raises:
        BrokerError: Kafka did not acknowledge it; whether it is there is not known.
    """
    return append_all(settings, names, [raw])[0]


def append_all(settings: Settings, names: TopicNames, raws: Sequence[bytes]) -> list[int]:
    """Append records to the log, in their order, and return their offsets.

    Raises:
        BrokerError: Kafka did not acknowledge all; which of the others are there is not known.
    """
    offsets: list[int] = []
    appender = LogAppender(settings, names.fingerprints, "order")
    for raw in raws:
        appender.send(raw, None, offsets.append)
    appender.flush()
    if len(offsets) != len(raws):
        raise BrokerError(
            f"A record of {names.fingerprints} was sent and not acknowledged; run the same command "
            "again."
        )
    return offsets


_NAMED_MAX = 10


class SourcePlace(NamedTuple):
    """Where a document lies in the source topic."""

    partition: int
    offset: int


def source_of(
    around: OrderDependencies, settings: Settings, text: str, topic_id: bytes, key: bytes
) -> SourcePlace:
    """Return where the document lies that `text` names; `key` is the recipe's, `topic_id` that of
    `documents`.

    Raises:
        InputError: nothing is there, or several dropped documents have this id.
    """
    names = settings.topic_names
    found = POSITION_FORM.match(text)
    if found is not None and found["topic"] in (None, names.documents):
        return SourcePlace(int(found["partition"]), int(found["offset"]))
    if found is not None and found["topic"] == names.duplicates:
        return _of_output(around, settings, int(found["partition"]), int(found["offset"]))
    return _of_id(around, settings, text, topic_id, key)


def record_at(
    around: OrderDependencies,
    settings: Settings,
    topic: str,
    partition: int,
    offset: int,
    gone: str,
) -> Message:
    """Return the committed record at a position; `gone` says what to do if it is not held any more.

    Raises:
        InputError: there is none, or none any more.
    """
    name = f"{topic}-{partition}@{offset}"
    admin = around.make_admin(settings)
    topics = admin.topic_ids([topic])
    if topic not in topics:
        raise InputError(f"The topic {topic} does not exist, so {name} is nowhere.")
    partitions = topics[topic][1]
    if partition >= partitions:
        raise InputError(
            f"{topic}-{partition} does not exist: the partitions of {topic} are 0 to "
            f"{partitions - 1}."
        )
    low, high = admin.ends([(topic, partition)])[topic, partition]
    if offset < low:
        raise InputError(
            f"{name} is not in the topic any more: the first record still held is {low}. {gone}"
        )
    if offset >= high:
        raise InputError(f"{name} does not exist yet: the partition ends at {high}.")
    found = next(around.read_partition(settings, topic, partition, offset), None)
    if found is None or found.offset != offset:
        raise InputError(
            f"{name} holds no record: its transaction was aborted, or the topic is compacted."
        )
    return found


def on_output(
    around: OrderDependencies, settings: Settings, topic: str, message: Message, places: set[str]
) -> Message | None:
    """Return the record of an output that one of these places in the log decided; outputs keep
    timestamps.
    """
    for one in around.read_partition(
        settings, topic, message.partition, since_ms=message.timestamp_ms
    ):
        if headers.text_of(one.headers, headers.LOG) in places:
            return one
    return None


def _of_output(
    around: OrderDependencies, settings: Settings, partition: int, offset: int
) -> SourcePlace:
    names = settings.topic_names
    where = f"{names.duplicates}-{partition}@{offset}"
    dropped = record_at(
        around,
        settings,
        names.duplicates,
        partition,
        offset,
        "Name the document by its position in documents.",
    )
    said = headers.text_of(dropped.headers, headers.POSITION)
    found = POSITION_FORM.match(said)
    if found is None:
        raise InputError(
            f"{where} is no record of this filter: it has no header {headers.POSITION}. Nothing "
            "was written."
        )
    if found["topic"] != names.documents:
        raise InputError(
            f"{where} says that the document lies at {printable(said)}, and this filter reads "
            f"{names.documents}: the record is "
            "another filter's. Nothing was written."
        )
    return SourcePlace(int(found["partition"]), int(found["offset"]))


def _of_id(
    around: OrderDependencies, settings: Settings, text: str, topic_id: bytes, key: bytes
) -> SourcePlace:
    names = settings.topic_names
    wanted = log_form(text.encode("utf-8", "surrogateescape"), settings.log_ids, key)
    with around.progress("looking for the id in the log", None) as advance:
        places = judged_with(
            wanted, topic_id, around.read_whole(settings, names.fingerprints, advance)
        )
    if not places:
        raise InputError(
            f"{printable(text)!r} is no position in {names.documents} or {names.duplicates}, which "
            "this filter reads and "
            "writes, and the log has no document with this id. An id is the record's key, or what "
            "stands at "
            "STREAM_DEDUP_ID_FIELD, written exactly so. Nothing was written."
        )
    return the_dropped(
        text, names, places, lambda place: _is_dropped(around, settings, place, places[place])
    )


def judged_with(
    wanted: bytes, topic_id: bytes, log: Iterable[tuple[int, LogRecord | None]]
) -> dict[SourcePlace, set[str]]:
    """Return where documents with an id lie, and of each the places in the log that may have
    decided on it; in log order.
    """
    found: dict[SourcePlace, set[str]] = {}
    for log_offset, record in log:
        for place, one in enumerate(record.ids if isinstance(record, Batch) else ()):
            if (
                one == wanted
                and isinstance(record, Batch)
                and record.position(place).topic_id == topic_id
            ):
                position = record.position(place)
                found.setdefault(SourcePlace(position.partition, position.offset), set()).add(
                    f"{log_offset}/{place}"
                )
    return found


def the_dropped(
    text: str,
    names: TopicNames,
    places: Iterable[SourcePlace],
    is_dropped: Callable[[SourcePlace], bool],
) -> SourcePlace:
    """Return the only one of these documents that was dropped.

    Raises:
        InputError: none was, or several were, which are named.
    """
    dropped = [place for place in places if is_dropped(place)]
    if not dropped:
        raise InputError(
            f"No document with the id {printable(text)!r} is in {names.duplicates}: none was "
            "dropped, its verdict has not left "
            "yet, or that topic does not hold it any more. Nothing was written."
        )
    if len(dropped) > 1:
        shown = ", ".join(
            f"{names.documents}-{one.partition}@{one.offset}" for one in dropped[-_NAMED_MAX:]
        )
        more = (
            f" and {len(dropped) - _NAMED_MAX:,} before them" if len(dropped) > _NAMED_MAX else ""
        )
        raise InputError(
            f"{len(dropped):,} documents with the id {printable(text)!r} were dropped: "
            f"{shown}{more}. Name one of them. "
            "Nothing was written."
        )
    return dropped[0]


def _is_dropped(
    around: OrderDependencies, settings: Settings, place: SourcePlace, decided: set[str]
) -> bool:
    names = settings.topic_names
    try:
        message = record_at(around, settings, names.documents, *place, "")
    except InputError:
        return False  # not held any more, so it could not be released either
    return on_output(around, settings, names.duplicates, message, decided) is not None
