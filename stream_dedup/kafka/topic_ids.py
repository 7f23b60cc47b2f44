"""Detect topics that were deleted and created again: they have another id.

The client does not report this: librdkafka continues in the new topic at the offset that it had
reached in the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from structlog.typing import FilteringBoundLogger

from stream_dedup.domain.errors import BrokerError, GoneError
from stream_dedup.domain.threads import SideThread
from stream_dedup.kafka.admin import Admin, ExistingTopic

POLL_SECONDS = 30.0
SOON_SECONDS = 3.0

TopicIds = Mapping[str, ExistingTopic]
"""The topics that exist, by name."""


class TopicIdWatcher:
    """Requests topic ids in a second thread, because the controller may take long to answer.

    `fetch_ids` requests the ids of the topics that the role reads and writes.
    """

    def __init__(
        self,
        fetch_ids: Callable[[], TopicIds],
        thread: SideThread,
        monotonic: Callable[[], float],
        logger: FilteringBoundLogger,
    ) -> None:
        self._fetch_ids = fetch_ids
        self._thread = thread
        self._monotonic = monotonic
        self._logger = logger
        self._is_asking = False
        self._asked_at = monotonic()

    def poll(self, *, soon: bool = False) -> TopicIds:
        """Return the last answer if it is new, otherwise {}. Send a request every half minute, or
        every 3 s if `soon`.
        """
        if self._is_asking:
            if not self._thread.ended(0.0):
                return {}
            self._is_asking = False
            topic_ids: TopicIds = self._thread.take_result()
            return topic_ids
        if self._monotonic() >= self._asked_at + (SOON_SECONDS if soon else POLL_SECONDS):
            self._asked_at = self._monotonic()
            self._is_asking = True
            self._thread.start(self.fetch)
        return {}

    def fetch(self) -> TopicIds:
        """Request the ids and wait for them; return {} if Kafka does not answer."""
        try:
            return self._fetch_ids()
        except BrokerError as error:
            self._logger.warning("the topics could not be checked", reason=str(error))
            return {}


def is_recreated(topic_ids: TopicIds, name: str, topic_id: bytes) -> bool:
    """Return whether the topic exists with another id, because it was created again."""
    return name in topic_ids and topic_ids[name].topic_id != topic_id


def require_topics(admin: Admin, names: Sequence[str]) -> TopicIds:
    """Return the ids of topics.

    Raises:
        GoneError: one of them does not exist.
    """
    topic_ids = admin.topic_ids(names)
    missing = [name for name in names if name not in topic_ids]
    if len(missing) > 1:
        raise GoneError(
            f"The topics {' and '.join(missing)} do not exist; create them with: "
            "stream-dedup topics apply"
        )
    if missing:
        raise GoneError(
            f"The topic {missing[0]} does not exist; create it with: stream-dedup topics apply"
        )
    return topic_ids
