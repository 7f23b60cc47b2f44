"""The tree of all errors.

    StreamDedupError
    |-- ConfigurationError      settings, topics or state are unusable: exit 78, an operator acts
    |   |-- FirstStartError     a partition from which documents were read has no committed offset
    |   `-- GoneError           a topic or its next record is missing: a starting role waits
    |-- InputError              a file or argument of a command cannot be read: exit 1
    |-- UsageError              options of a command are useless or exclude each other: exit 2
    |-- FormatError             bytes in a topic or on disk are damaged, or another program's
    |   `-- OtherFormatError    this version cannot read the format: exit 78, an operator must act
    |-- StoreError              the index's volume failed to open, read or write: the role stops, a restart recovers
    |   `-- VolumeError         the volume is damaged or not ours: exit 78, an operator must act
    |-- BrokerError             Kafka refused or failed for good: the role stops, a restart recovers
    |   |-- TopicExistsError    a topic was created by another program, or is being deleted
    |   |-- AbortableError      the transaction must be aborted; the process may continue
    |   |-- NoAnswerError       Kafka did not answer in time: the request may be retried
    |   `-- FencedError         another worker uses the same transactional id
    |-- InvariantError          an invariant is violated: stop and alarm, never commit past it
    |   `-- DivergedError       two index replicas gave different answers for one log offset
    |-- AwayError               a service that a record needs is unavailable: a worker retries
    |   |-- RegistryAwayError   the schema registry does not answer
    |   |-- TextAwayError       the store of the record's text does not answer
    |   `-- ExtractorAwayError  the process that extracts the texts of pages cannot be started
    `-- LocalBrokerError        the embedded broker could not be set up or did not start

Catch `ConfigurationError` to show an operator what to change; catch `StreamDedupError` at the top
level of a program. A document that cannot be decoded raises no error: it becomes a value,
`document.DeadLetter`, that is written to a topic. Every message is a sentence: what happened, to
what, and what to do.
"""

from __future__ import annotations

UPGRADE = "upgrade this role to the version that wrote it (docs/reference/compatibility.md)."


class StreamDedupError(Exception):
    """Base class of all errors that this package raises on purpose."""

    exit_code = 1


class ConfigurationError(StreamDedupError):
    """Settings, topics or state cannot be used as they are; the message names the remedy."""

    exit_code = 78  # EX_CONFIG of sysexits.h


class FirstStartError(ConfigurationError):
    """A partition from which documents were read has no committed offset any more."""


class GoneError(ConfigurationError):
    """A topic, or the record to be read next, does not exist: not yet, or not any more."""


class InputError(StreamDedupError):
    """A file or argument of a command cannot be read."""


class UsageError(StreamDedupError):
    """Options of a command have no effect, or exclude each other."""

    exit_code = 2


class AwayError(StreamDedupError):
    """A service that a record needs is unavailable; the record is not judged, and the request is
    retried later. Log messages append "unavailable" to `away`, and "again" to `back`.
    """

    away = "a service that the records need is"
    back = "the service that the records need answers"


class RegistryAwayError(AwayError):
    """The schema registry does not answer."""

    away = "the schema registry is"
    back = "the schema registry answers"


class TextAwayError(AwayError):
    """The text of a record is stored outside Kafka, and its store does not answer."""

    away = "the store of the texts is"
    back = "the store of the texts answers"


class ExtractorAwayError(AwayError):
    """The process that extracts the texts of pages cannot be started."""

    away = "the extractor of pages is"
    back = "the extractor of pages answers"


class FormatError(StreamDedupError):
    """Bytes do not follow their format: the magic, length or checksum is wrong."""


class OtherFormatError(FormatError):
    """Bytes that this program wrote are intact, but this version cannot read their format: nearly
    always a newer one, so upgrade.
    """

    exit_code = ConfigurationError.exit_code


class StoreError(StreamDedupError):
    """The index's volume failed. The failed step produced no answers, and a restart replays it."""


class VolumeError(StoreError):
    """The index's volume is damaged, another program's, or not a usable directory; a restart does
    not help.
    """

    exit_code = ConfigurationError.exit_code


class BrokerError(StreamDedupError):
    """Kafka refused a request or failed for good; the role stops and a restart recovers."""


class TopicExistsError(BrokerError):
    """A topic that was missing a moment ago cannot be created: another program has created it, or
    it is being deleted.
    """


class AbortableError(BrokerError):
    """The open transaction must be aborted; the process may continue from the committed offset."""


class NoAnswerError(BrokerError):
    """Kafka did not answer in time. It may be unavailable or restarting, so the request may be
    retried.
    """


class FencedError(BrokerError):
    """Another producer with the same transactional id has taken over, or the transaction took too
    long.
    """


class InvariantError(StreamDedupError):
    """An invariant is violated. Stop and alarm; never commit past it."""


class DivergedError(InvariantError):
    """Two index replicas gave different answers for the same log offset."""


class LocalBrokerError(StreamDedupError):
    """The embedded broker could not be set up or did not start."""
