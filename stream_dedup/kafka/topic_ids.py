"""Which topics there are, asked now and then beside a role's loop: a topic that was deleted and
created again has another id.

A client does not say it: librdkafka reads on in the new topic from the offset that it had reached
in the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stream_dedup.domain.errors import BrokerError
from stream_dedup.domain.threads import SideThread

LOOK_SECONDS = 30.0
SOON_SECONDS = 3.0

Lives = Mapping[str, tuple[bytes, int]]
"""Topic name to (topic id, number of partitions), of those that exist."""


class TopicLives:
    """Asks in a thread of its own, because the controller is asked, and it may be away.

    `ask` returns the `Lives` of what the role reads and writes; what it cannot tell is asked again
    later.
    """

    def __init__(
        self,
        ask: Callable[[], Lives],
        thread: SideThread,
        monotonic: Callable[[], float],
        logger: Any,
    ) -> None:
        self._ask = ask
        self._thread = thread
        self._monotonic = monotonic
        self._logger = logger
        self._is_asking = False
        self._asked_at = monotonic()

    def look(self, *, soon: bool = False) -> Lives:
        """Return what was found, once, or nothing where nothing new is known. Asks every half
        minute, or `soon`.
        """
        if self._is_asking:
            if not self._thread.ended(0.0):
                return {}
            self._is_asking = False
            found: Lives = self._thread.take_result()
            return found
        if self._monotonic() >= self._asked_at + (SOON_SECONDS if soon else LOOK_SECONDS):
            self._asked_at = self._monotonic()
            self._is_asking = True
            self._thread.start(self.now)
        return {}

    def now(self) -> Lives:
        """Ask, and wait for the answer; return nothing where Kafka does not give one."""
        try:
            return self._ask()
        except BrokerError as error:
            self._logger.warning("the topics could not be checked", reason=str(error))
            return {}


def is_another(found: Lives, name: str, topic_id: bytes) -> bool:
    """Return whether a topic was created again: it was found, and has not this id."""
    return name in found and found[name][0] != topic_id
