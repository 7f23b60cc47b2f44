"""What the commands share that change the filter: what stands around them, the log's topic checked, one record appended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from stream_dedup.fingerprinting import Recipe
from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import BrokerError, ConfigurationError
from stream_dedup.ground.failpoints import VARIABLE
from stream_dedup.ground.terminal import progress
from stream_dedup.ground.topics import TopicNames, log_problems
from stream_dedup.kafka import Admin, LogAppender, TransactionalOutput, read_partition, read_whole
from stream_dedup.log.records import LogRecord
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class OrderDependencies:
    """What a command that changes the filter depends on: Kafka, the recipe, a progress bar. A test hands in its own."""

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


def log_names(settings: Settings, more: Iterable[str] = (), make_admin: Callable[[Settings], Admin] = Admin) -> TopicNames:
    """Return the topics' names, once the log (and `more`) exist and Kafka keeps the log as it must be kept.

    Raises:
        ConfigurationError: a topic is missing, or the log would be trimmed.
        BrokerError: Kafka does not answer.
    """
    names = settings.topic_names
    found = make_admin(settings).describe([names.fingerprints, *more])
    for name in (names.fingerprints, *more):
        if name not in found:
            raise ConfigurationError(f"The topic {name} does not exist; create it with: stream-dedup topics apply")
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
        raise BrokerError(f"A record of {names.fingerprints} was sent and not acknowledged; run the same command again.")
    return offsets
