"""What a worker waits for, but for Kafka: an index that answers."""

from __future__ import annotations

from typing import Final

from stream_dedup.serving.waits import Waits
from stream_dedup.worker.flow import Flow

# A replay after an index's restart is shorter as a rule; a document that waits for longer is late
# for its readers.
_PATIENCE_SECONDS: Final = 10.0
_INDEX: Final = "an index"
_ANSWERS: Final = "the topic of answers"


class Awaited:
    """Looked at by the worker's loop every second."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def look(self, flow: Flow, deaf: str, now: float) -> float:
        """Say that no index answers, once the oldest question is old; and that one does, once it is
        not.

        `deaf` says why answers cannot be read, if they cannot. Returns how many seconds the oldest
        question has waited, 0 if none does.
        """
        if deaf:
            self._waits.on(_ANSWERS, deaf)
        else:
            self._waits.over(_ANSWERS)
        oldest = flow.oldest_unanswered
        waited = 0.0 if oldest is None else now - oldest.taken
        if oldest is None or waited < _PATIENCE_SECONDS:
            if not flow.is_open:  # while it is, documents leave unjudged, so that none waits
                self._waits.over(_INDEX)
            return waited
        at = flow.unanswered_offset
        where = (
            "they are not in the log yet"
            if at is None
            else f"log offset {at} is without an answer for {waited:.0f} s"
        )
        self._waits.on(
            _INDEX,
            f"{flow.documents_in_flight} documents wait for their verdicts: {where}. Does an index "
            "run (stream-dedup run "
            "index), and is it ready?",
            since=oldest.taken,
        )
        return waited
