"""Questions to Kafka that are asked anew: while a leader moves, for as long as Kafka is away, and
some times once it answers.

Invariant: a member's question for committed offsets waits behind its JoinGroup until all others
have joined, so no member asks.
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
    """What a role knows of Kafka and of itself while one of its calls waits.

    `is_silent` says whether Kafka is away, `stop` that the role is to end, and `beat` is called
    while it waits. Without them a question is asked that many times.
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
        """Return a function that says, after a question that was not answered, whether to ask once
        more.
        """
        left = times

        def lasts() -> bool:
            nonlocal left
            self._beat()
            if self.is_silent():
                left = times
                return self._stop is None or not self._stop.is_set()
            left -= 1
            return left > 0

        return lasts

    def insist(
        self, times: int, question: Callable[[], Answer], passes: Callable[[Exception], bool]
    ) -> Answer:
        """Return what a question gives, asked anew after errors that pass: `times`, and for as long
        as Kafka is away.
        """
        lasts = self.begin(times)
        while True:
            try:
                return question()
            except (KafkaException, BrokerError) as error:
                if not passes(error) or not lasts():
                    raise


IMPATIENT = Patience()


def ask(
    question: Callable[[float], Any], doing: str, seconds: float = 30.0, needs: Acl = ""
) -> Any:
    """Return `question(timeout)`, asked anew as `ask_anew` does, or raise what it raised as one of
    ours.
    """
    try:
        return ask_anew(question, seconds)
    except KafkaException as error:
        raise translate(error, doing, needs) from error


def ask_anew(
    question: Callable[[float], Any],
    seconds: float,
    pause: Callable[[float], Any] = time.sleep,
    codes: frozenset[int] = MOVES,
) -> Any:
    """Return `question(timeout)`, which changes nothing, so it is asked anew for `seconds` in all
    where waiting can help.

    It can while a leader or a coordinator moves, or has just started: the brokers learn of that one
    after another, and librdkafka hands such an answer on. What else is raised than one of `codes`
    is raised at once.
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
    """A committed offset as the broker has it; offset None means that there is none."""

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

    Asked anew when no answer comes: after a broker's restart one question can hang while the next
    is answered. The consumer is of the group, and no member of it.

    Raises:
        BrokerError: the coordinator did not answer in time, or not for this user; `whose` stands in
        its sentence.
    """
    doing = f"reading the committed offsets {whose}, which a transaction that is left open can hold back"

    def question() -> list[TopicPartition]:
        told: list[TopicPartition] = ask_anew(
            lambda seconds: consumer.committed(wanted, timeout=seconds), _QUESTION_SECONDS
        )
        return told

    try:
        found = patience.insist(_QUESTIONS, question, lambda error: not is_denied(error))
    except KafkaException as error:
        raise translate(error, doing, needs) from error
    return _owned_offsets(found, doing, needs)


def _owned_offsets(
    found: Iterable[TopicPartition], doing: str, needs: Acl
) -> dict[TopicPartitionKey, OwnedOffset]:
    result = {}
    for one in found:
        if one.error is not None:
            raise translate(one.error, doing, needs)
        result[one.topic, one.partition] = OwnedOffset(
            one.offset if one.offset >= 0 else None, one.metadata
        )
    return result
