"""All errors, one small tree.

    StreamDedupError
    |-- ConfigurationError      settings, topics or state that cannot serve: exit 78, an operator must act
    |   |-- FirstStartError     a partition that was begun has no committed offset
    |   `-- GoneError           a topic, or what is to be read of it, is not there: a role waits for it at its start
    |-- InputError              a file or argument of a command cannot be read as asked: exit 1
    |-- UsageError              options of a command that say nothing, or not together: exit 2
    |-- FormatError             bytes on a topic or on disk that are not ours, or are damaged
    |   `-- OtherFormatError    ours and whole, of a format that this version does not read: exit 78, an operator must act
    |-- StoreError              the index's volume failed to open, read or write: the role stops, a restart recovers
    |   `-- VolumeError         it is damaged, foreign, or no directory of ours: exit 78, an operator must act
    |-- BrokerError             Kafka refused or failed for good: the role stops, a restart recovers
    |   |-- AbortableError      the transaction must be aborted; the process may go on
    |   |-- NoAnswerError       Kafka gave no answer in time: the same may be asked again
    |   `-- FencedError         another worker uses the same transactional id
    |-- InvariantError          something that must always hold does not: stop and alarm, never commit past it
    |   `-- DivergedError       two index replicas gave different answers for one log offset
    |-- AwayError               what a record cannot be read without is away: a worker holds its records and asks again
    |   |-- RegistryAwayError   the schema registry does not answer
    |   |-- TextAwayError       the text lies elsewhere, and its store does not answer
    |   `-- ExtractorAwayError  the process that extracts the texts of pages cannot be started
    `-- LocalBrokerError        the embedded broker could not be set up or did not start

Catch `ConfigurationError` to tell an operator what to change; catch `StreamDedupError` at the edge
of a program. A document that cannot be decoded is not an error of this tree: it is a value,
`document.DeadLetter`, and goes to its own topic. Every message is a sentence that says what
happened, to what, and what to do.
"""

from __future__ import annotations

UPGRADE = "upgrade this role to the version that wrote it (docs/reference/compatibility.md)."


class StreamDedupError(Exception):
    """The root: anything this package raises on purpose."""

    exit_code = 1


class ConfigurationError(StreamDedupError):
    """Settings, topics or state that cannot serve as they are; the sentence names the remedy."""

    exit_code = 78  # EX_CONFIG of sysexits.h


class FirstStartError(ConfigurationError):
    """A partition that was begun has no committed offset any more."""


class GoneError(ConfigurationError):
    """A topic, or the record that is to be read next, is not there: not yet, or not any more."""


class InputError(StreamDedupError):
    """A file or argument given to a command cannot be read as asked."""


class UsageError(StreamDedupError):
    """Options of a command that say nothing, or cannot be given together."""

    exit_code = 2


class AwayError(StreamDedupError):
    """What a record cannot be read without is away now; nothing is decided of the record, and the
    same question comes later.
    """

    away = "what the records need is"
    back = "what the records need is there"


class RegistryAwayError(AwayError):
    """The schema registry gives no answer now."""

    away = "the schema registry is"
    back = "the schema registry answers"


class TextAwayError(AwayError):
    """The text of a record lies elsewhere, and cannot be had now."""

    away = "texts that lie elsewhere are"
    back = "texts that lie elsewhere come"


class ExtractorAwayError(AwayError):
    """The process that extracts the texts of pages cannot be started now."""

    away = "the extractor of pages is"
    back = "the extractor of pages answers"


class FormatError(StreamDedupError):
    """Bytes that do not follow the format they claim: wrong magic, length or checksum."""


class OtherFormatError(FormatError):
    """Bytes of ours, and whole, in a format that this version does not read: nearly always a newer
    one, so upgrade.
    """

    exit_code = ConfigurationError.exit_code


class StoreError(StreamDedupError):
    """The index's volume failed; nothing was answered from the failed step, and a restart replays
    it.
    """


class VolumeError(StoreError):
    """The index's volume is damaged, another program's, or no directory that can be used; a restart
    meets the same.
    """

    exit_code = ConfigurationError.exit_code


class BrokerError(StreamDedupError):
    """Kafka refused or failed for good; the role stops and a restart recovers."""


class TopicExistsError(BrokerError):
    """A topic that was missing a moment ago cannot be made: somebody else has made it, or it is
    being deleted.
    """


class AbortableError(BrokerError):
    """The open transaction must be aborted; the process may go on from the committed offset."""


class NoAnswerError(BrokerError):
    """Kafka gave no answer in time; it may be away, or on its way back, so the same may be asked
    again.
    """


class FencedError(BrokerError):
    """Another producer with the same transactional id has taken over, or the transaction took too
    long.
    """


class InvariantError(StreamDedupError):
    """What must always hold does not. Stop and alarm; never commit past it."""


class DivergedError(InvariantError):
    """Two index replicas gave different answers for the same log offset."""


class LocalBrokerError(StreamDedupError):
    """The embedded broker could not be set up or did not start."""
