"""Retry requests to Kafka: while a leader moves, while Kafka is unavailable, and a few times more.

Invariant: members of a group do not ask for committed offsets, because the request of a member
waits behind its JoinGroup until all other members have joined.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from stream_dedup.domain.document import TopicPartitionKey
from stream_dedup.domain.errors import BrokerError
from stream_dedup.kafka.client import MOVES, Acl, is_denied, translate

ANSWER_SECONDS = 20.0
_AGAIN_SECONDS = 0.1
_QUESTION_SECONDS = 8.0
_QUESTIONS = 8

Answer = TypeVar("Answer")


class Patience:
    """Decides how long a role retries a request.

    `is_silent` returns whether Kafka is unavailable, `stop` is set when the role is to end, and
    `beat` is called after each attempt. Without them only the number of attempts counts.
    """

    def __init__(
        self,
        is_silent: Callable[[], bool] = bool,
        stop: threading.Event | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_silent = is_silent
        self._stop = stop
        self._beat = beat

    def begin(self, times: int) -> Callable[[], bool]:
        """Return a function that returns, after a request without an answer, whether to retry:
        `times` in a row, and for as long as Kafka is unavailable.
        """
        remaining = times

        def asks_again() -> bool:
            nonlocal remaining
            self._beat()
            if self.is_silent():
                remaining = times
                return self._stop is None or not self._stop.is_set()
            remaining -= 1
            return remaining > 0

        return asks_again

    def insist(
        self, times: int, question: Callable[[], Answer], passes: Callable[[Exception], bool]
    ) -> Answer:
        """Return the result of `question`, retried as in `begin` after errors for which `passes` is
        true.
        """
        asks_again = self.begin(times)
        while True:
            try:
                return question()
            except (KafkaException, BrokerError) as error:
                if not passes(error) or not asks_again():
                    raise


IMPATIENT = Patience()


def ask(
    question: Callable[[float], Any], doing: str, seconds: float = 30.0, needs: Acl = ""
) -> Any:
    """Return `question(timeout)`, retried as in `ask_again`; translate its error, if it fails.

    Raises:
        BrokerError: the request failed while `doing` something.
    """
    try:
        return ask_again(question, seconds)
    except KafkaException as error:
        raise translate(error, doing, needs) from error


def ask_again(
    question: Callable[[float], Any],
    seconds: float,
    pause: Callable[[float], Any] = time.sleep,
    codes: frozenset[int] = MOVES,
) -> Any:
    """Return `question(timeout)`, retried for `seconds` in total after errors of `codes`; the
    question must be idempotent.

    By default these are the errors while a leader or a coordinator moves or starts: the brokers
    learn of that one after another, and librdkafka passes such an answer on.

    Raises:
        KafkaException: another error, or still one of `codes` at the end.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return question(max(_AGAIN_SECONDS, until - time.monotonic()))
        except KafkaException as error:
            if error.args[0].code() not in codes or time.monotonic() > until:
                raise
        pause(_AGAIN_SECONDS)


class OwnedOffset(NamedTuple):
    """A committed offset as the broker stores it; offset None means that there is none."""

    offset: int | None
    metadata: str | None


def ask_committed(
    consumer: Consumer,
    wanted: list[TopicPartition],
    whose: str,
    needs: Acl = "",
    patience: Patience = IMPATIENT,
) -> dict[TopicPartitionKey, OwnedOffset]:
    """Return the committed offset and metadata of each partition, once no transaction on them is
    open.

    The request is retried without an answer: after a broker's restart one request can hang while the
    next is answered. The consumer has the group's id, but is not a member.

    Raises:
        BrokerError: the coordinator did not answer in time, or denied the request; `whose` names the
        offsets in the message.
    """
    doing = f"reading the committed offsets {whose}, which a transaction that is left open can hold back"

    def question() -> list[TopicPartition]:
        partitions: list[TopicPartition] = ask_again(
            lambda seconds: consumer.committed(wanted, timeout=seconds), _QUESTION_SECONDS
        )
        return partitions

    try:
        committed = patience.insist(_QUESTIONS, question, lambda error: not is_denied(error))
    except KafkaException as error:
        raise translate(error, doing, needs) from error
    return _owned_offsets(committed, doing, needs)


def _owned_offsets(
    partitions: Iterable[TopicPartition], doing: str, needs: Acl
) -> dict[TopicPartitionKey, OwnedOffset]:
    result = {}
    for partition in partitions:
        if partition.error is not None:
            raise translate(partition.error, doing, needs)
        result[partition.topic, partition.partition] = OwnedOffset(
            partition.offset if partition.offset >= 0 else None, partition.metadata
        )
    return result
