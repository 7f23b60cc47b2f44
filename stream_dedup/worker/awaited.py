"""What a worker waits for, but for Kafka: an index that answers."""

from __future__ import annotations

from typing import Final

from stream_dedup.service.waits import Waits
from stream_dedup.worker.flow import Flow

# A replay after an index's restart is shorter as a rule; a document that waits for longer is late for whoever waits for it.
_PATIENCE_SECONDS: Final = 10.0
_INDEX: Final = "an index"


class Awaited:
    """Looked at by the worker's loop every second."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def look(self, flow: Flow, now: float) -> None:
        """Say that no index answers, once the oldest question is old; and that one does, once it is not."""
        oldest = flow.oldest_unanswered
        if oldest is None or now - oldest.taken < _PATIENCE_SECONDS:
            if not flow.is_open:  # while it is, documents leave unjudged, so that none waits
                self._waits.over(_INDEX)
            return
        self._waits.on(
            _INDEX,
            f"{flow.documents_in_flight} documents wait for their verdicts, and none has come. Does an index run (stream-dedup "
            "run index), and is it ready?",
            since=oldest.taken,
        )
