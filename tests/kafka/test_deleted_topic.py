"""What is said when a topic was deleted while a role used it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream_dedup.ground.errors import AbortableError, BrokerError, ConfigurationError, StreamDedupError
from stream_dedup.kafka import taking
from stream_dedup.kafka.client import translate, wait_for

CODES = [
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
]


def says_what_to_do(error: StreamDedupError) -> bool:
    return "deleted" in str(error) and "restore it" in str(error).lower() and "stream-dedup topics apply" in str(error)


@pytest.mark.parametrize("code", CODES)
def test_the_remedy_is_named_whoever_meets_it(code: int) -> None:
    """A reader, a writer, a transaction that can be aborted, and whoever asks: that it was deleted, and what to do."""

    def asks(_: float) -> None:
        raise KafkaException(KafkaError(code))

    with pytest.raises(ConfigurationError) as read:
        taking.raise_unless_passing(KafkaError(code), "documents")
    with pytest.raises(BrokerError) as asked:
        wait_for(asks, "asking for the end of fingerprints")
    written = translate(KafkaError(code), "writing to unique")
    aborted = translate(KafkaError(code, "gone", txn_requires_abort=True), "committing")

    assert "documents" in str(read.value)
    assert type(written) is BrokerError
    assert isinstance(aborted, AbortableError)
    assert all(says_what_to_do(one) for one in (read.value, asked.value, written, aborted))
