"""What the errors of a producer mean: a record is refused, a time-out passed, a transaction is lost, or it is the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaError, KafkaException

from stream_dedup.ground.errors import AbortableError, BrokerError
from stream_dedup.kafka.client import translate

# A broker that was killed in mid-transaction and came back left librdkafka waiting for 15 s and more in one step, while a
# new producer went on within a second: so a step is given up soon.
STEP_SECONDS = 5.0
REFUSALS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)


# What a later step says of a transaction in which a record was refused; the commit counts them, and says no more.
_UNDELIVERED = REFUSALS | {KafkaError._INCONSISTENT}
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
TIMED_OUT = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT})
# Broker and client disagree on what has been; seen when a coordinator comes back from a SIGKILL. Nobody else has our id then:
# who has been replaced is told that he is fenced.
_FORGOTTEN = frozenset(
    {
        KafkaError.INVALID_TXN_STATE,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)


class StuckError(AbortableError):
    """Nobody knows what the broker made of a step of a transaction, and only a new producer gets further."""


class UndeliveredError(AbortableError):
    """A record was not delivered, of which a later step tells; `is_refused`: for what it is, which that step knows too."""

    def __init__(self, text: str, *, is_refused: bool) -> None:
        super().__init__(text)
        self.is_refused = is_refused


class BrokenError(UndeliveredError):
    """A record that was written before has failed already, so librdkafka takes no more of this transaction."""


class UnwrittenError(AbortableError):
    """Outputs were not written in time."""


def told_by(error: KafkaException | SystemError) -> KafkaError | None:
    """Return what the client raised, if Python was being called back meanwhile: it may be lost on the way.

    The client raises a fatal error inside its call, and then still gives its reports: Python calls that a SystemError, whose
    cause is the fatal error, or nothing.
    """
    raised = error if isinstance(error, KafkaException) else error.__cause__
    return raised.args[0] if isinstance(raised, KafkaException) else None


def write_acls(topics: Iterable[str]) -> str:
    """Return the ACLs for writing to these topics."""
    return " or ".join(f"Write on topic {topic}" for topic in sorted(topics))


def translated(error: KafkaError, doing: str, needs: str = "") -> BrokerError:
    """Return what an error means for a transaction; `needs` are the ACLs for what was done."""
    if error.code() in _UNDELIVERED:
        text = f"While {doing}, Kafka said: {error.str()} ({error.name()})."
        return UndeliveredError(text, is_refused=error.code() in REFUSALS)
    if error.code() in _FORGOTTEN:
        return StuckError(f"While {doing}, Kafka said: {error.str()} ({error.name()}).")
    return translate(error, doing, needs)


def failure_of(errors: Sequence[tuple[str, KafkaError]]) -> BrokerError:
    """Return what failed outputs mean: a refusal or a time-out aborts, anything else (an ACL, a fence) is the end.

    Outputs queued behind the one that failed are purged, and may be reported before it.
    """
    causes = [(topic, error) for topic, error in errors if error.code() not in PURGED] or list(errors)
    for topic, error in causes:
        if error.code() not in REFUSALS and error.code() not in TIMED_OUT and error.code() not in PURGED:
            return translated(error, f"writing to {topic}", f"Write on topic {topic}")
    first = causes[0][1]
    kind = UnwrittenError if first.code() in TIMED_OUT else AbortableError
    return kind(f"An output was not written: {first.str()} ({first.name()}).")
