"""Retry requests to Kafka: while a leader moves, while Kafka is unavailable, and a few times otherwise.

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
from stream_dedup.kafka.client import LEADER_MOVES, Acl, is_denied, translate

ANSWER_SECONDS = 20.0
_PAUSE_SECONDS = 0.1
_ATTEMPT_SECONDS = 8.0
_ATTEMPTS_MAX = 8

Answer = TypeVar("Answer")


class RetryPolicy:
    """Decides how long a role retries a request: a number of times, and without limit while Kafka is
    unavailable.

    `is_silent` returns whether Kafka is unavailable. Once `stop` is set, a request is not retried
    while Kafka is unavailable. `beat` is called after each attempt, so that the role counts as
    alive. By default only the number of attempts matters.
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

    def limit_attempts(self, times: int) -> Callable[[], bool]:
        """Return a function to call after each failed attempt; it returns whether to retry.

        It allows `times` attempts in a row, and any number while Kafka is unavailable.
        """
        remaining = times

        def may_retry() -> bool:
            nonlocal remaining
            self._beat()
            if self.is_silent():
                remaining = times
                return self._stop is None or not self._stop.is_set()
            remaining -= 1
            return remaining > 0

        return may_retry

    def retry(
        self, times: int, call: Callable[[], Answer], is_transient: Callable[[Exception], bool]
    ) -> Answer:
        """Return the result of `call`. After a transient error, retry it as long as `limit_attempts`
        allows.

        Raises:
            KafkaException, BrokerError: the last attempt failed, or the error is not transient.
        """
        may_retry = self.limit_attempts(times)
        while True:
            try:
                return call()
            except (KafkaException, BrokerError) as error:
                if not is_transient(error) or not may_retry():
                    raise


ATTEMPTS_ONLY = RetryPolicy()
"""Limits the number of attempts, also while Kafka is unavailable."""


def request(
    call: Callable[[float], Any], doing: str, seconds: float = 30.0, needs: Acl = ""
) -> Any:
    """Return `call(timeout)`, retried as in `retry_request`; translate its error, if it fails.

    Raises:
        BrokerError: the request failed while `doing` something.
    """
    try:
        return retry_request(call, seconds)
    except KafkaException as error:
        raise translate(error, doing, needs) from error


def retry_request(
    call: Callable[[float], Any],
    seconds: float,
    pause: Callable[[float], Any] = time.sleep,
    codes: frozenset[int] = LEADER_MOVES,
) -> Any:
    """Return `call(timeout)`, retried for `seconds` in total after errors of `codes`; the request
    must be idempotent.

    By default these are the errors while a leader or a coordinator moves or starts: not all brokers
    know of that at the same time, and librdkafka reports the error of the first one asked.

    Raises:
        KafkaException: another error, or still one of `codes` at the end.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call(max(_PAUSE_SECONDS, deadline - time.monotonic()))
        except KafkaException as error:
            if error.args[0].code() not in codes or time.monotonic() > deadline:
                raise
        pause(_PAUSE_SECONDS)


class CommittedOffset(NamedTuple):
    """A committed offset as the broker stores it; offset None means that there is none."""

    offset: int | None
    metadata: str | None


def fetch_committed(
    consumer: Consumer,
    requested: list[TopicPartition],
    owner: str,
    needs: Acl = "",
    retry_policy: RetryPolicy = ATTEMPTS_ONLY,
) -> dict[TopicPartitionKey, CommittedOffset]:
    """Return the committed offset and metadata of each partition, once no transaction on them is
    open.

    A request without an answer is retried: after a broker's restart one request can hang while the
    next is answered. The consumer has the group's id, but is not a member.

    Raises:
        BrokerError: the coordinator did not answer in time, or denied the request; `owner` is the
            topic or group in the message, such as `of group g`.
    """
    doing = f"reading the committed offsets {owner}, which an open transaction can delay"

    def request_offsets() -> list[TopicPartition]:
        partitions: list[TopicPartition] = retry_request(
            lambda seconds: consumer.committed(requested, timeout=seconds), _ATTEMPT_SECONDS
        )
        return partitions

    try:
        committed = retry_policy.retry(
            _ATTEMPTS_MAX, request_offsets, lambda error: not is_denied(error)
        )
    except KafkaException as error:
        raise translate(error, doing, needs) from error
    return _committed_offsets(committed, doing, needs)


def _committed_offsets(
    partitions: Iterable[TopicPartition], doing: str, needs: Acl
) -> dict[TopicPartitionKey, CommittedOffset]:
    result = {}
    for partition in partitions:
        if partition.error is not None:
            raise translate(partition.error, doing, needs)
        result[partition.topic, partition.partition] = CommittedOffset(
            partition.offset if partition.offset >= 0 else None, partition.metadata
        )
    return result
