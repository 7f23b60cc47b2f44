"""What is said when a topic was deleted while a role used it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream_dedup.ground.errors import AbortableError, BrokerError, GoneError, NoAnswerError, StreamDedupError
from stream_dedup.kafka import taking
from stream_dedup.kafka.asking import ask
from stream_dedup.kafka.client import WENT_ON, translate

CODES = [
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
]


def says_what_to_do(error: StreamDedupError) -> bool:
    return "deleted" in str(error) and "restore it" in str(error).lower() and "stream-dedup topics apply" in str(error)


@pytest.mark.parametrize("code", CODES)
def test_the_remedy_is_named_whoever_meets_it(code: int) -> None:
    """A reader, a writer, a transaction that can be aborted, and whoever asks: that it was deleted, and what to do."""

    def asks(_: float) -> None:
        raise KafkaException(KafkaError(code))

    with pytest.raises(GoneError) as read:
        taking.raise_unless_passing(KafkaError(code), "documents")
    with pytest.raises(BrokerError) as asked:
        ask(asks, "asking for the end of fingerprints")
    written = translate(KafkaError(code), "writing to unique")
    aborted = translate(KafkaError(code, "gone", txn_requires_abort=True), "committing")

    assert "documents" in str(read.value)
    assert type(written) is BrokerError
    assert isinstance(aborted, AbortableError)
    assert all(says_what_to_do(one) for one in (read.value, asked.value, written, aborted))


def test_a_partition_that_is_new_is_waited_for() -> None:
    """Nothing was deleted: a reader goes on, and a transaction is tried again."""
    taking.raise_unless_passing(KafkaError(KafkaError._UNKNOWN_PARTITION), "documents")
    written = translate(KafkaError(KafkaError._UNKNOWN_PARTITION), "writing to unique")

    assert isinstance(written, AbortableError)
    assert "has grown" in str(written)
    assert "deleted" not in str(written)


@pytest.mark.parametrize("code", sorted(WENT_ON))
def test_a_group_that_went_on_ends_no_reader(code: int) -> None:
    """The client joins it again by itself."""
    taking.raise_unless_passing(KafkaError(code), "documents")


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_a_broker_that_does_not_answer_is_not_called_a_missing_acl(code: int) -> None:
    """Who meets it may wait, because the error says which kind it is."""
    error = translate(KafkaError(code), "reading the first and last offset of verdicts")
    taking.raise_unless_passing(KafkaError(code), "documents")

    assert isinstance(error, NoAnswerError)
    assert "is its broker up?" in str(error)
    assert "ACL" not in str(error)
