"""What the commands share that write to the log: its topic checked, its recipe, one record appended."""

from __future__ import annotations

from collections.abc import Iterable

from stream_dedup.ground.errors import BrokerError, ConfigurationError
from stream_dedup.ground.topics import TopicNames, log_problems
from stream_dedup.kafka import Admin, LogAppender
from stream_dedup.settings.settings import Settings


def log_names(settings: Settings, more: Iterable[str] = ()) -> TopicNames:
    """Return the topics' names, once the log (and `more`) exist and Kafka keeps the log as it must be kept.

    Raises:
        ConfigurationError: a topic is missing, or the log would be trimmed.
        BrokerError: Kafka does not answer.
    """
    names = settings.topic_names
    found = Admin(settings).describe([names.fingerprints, *more])
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
    offsets: list[int] = []
    appender = LogAppender(settings, names.fingerprints, "order")
    appender.send(raw, None, offsets.append)
    appender.flush()
    if not offsets:
        raise BrokerError(f"A record of {names.fingerprints} was sent and not acknowledged; run the same command again.")
    return offsets[0]
