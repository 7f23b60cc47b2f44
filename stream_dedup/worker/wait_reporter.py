"""Report that the worker waits for an index, or for the topic of its answers."""

from __future__ import annotations

from typing import Final

from stream_dedup.domain.printable import counted
from stream_dedup.serving.wait_reports import Waits
from stream_dedup.worker.flow import Flow

# A replay after an index's restart is usually shorter; a document that waits longer is late for its
# readers.
_REPORT_AFTER_SECONDS: Final = 10.0
_INDEX: Final = "an index"
_ANSWERS: Final = "the topic of answers"


class WaitReporter:
    """Updates the worker's waits; its loop calls `report` every second."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def report(self, flow: Flow, read_error: str, now: float) -> float:
        """Report a silent index once the oldest question is old, and withdraw that once it is not.

        `read_error` is the reason why answers cannot be read, or "". Return how many seconds the
        oldest question has waited, 0 if there is none.
        """
        if read_error:
            self._waits.report(_ANSWERS, read_error)
        else:
            self._waits.end(_ANSWERS)
        oldest = flow.oldest_unanswered
        waited = 0.0 if oldest is None else now - oldest.waiting_since
        if oldest is None or waited < _REPORT_AFTER_SECONDS:
            if not flow.is_failed_open:  # else documents are delivered unjudged, and none waits
                self._waits.end(_INDEX)
            return waited
        log_offset = flow.unanswered_offset
        where = (
            "they are not in the log yet"
            if log_offset is None
            else f"log offset {log_offset} has not been answered for {waited:.0f} s"
        )
        self._waits.report(
            _INDEX,
            f"{counted(flow.documents_in_flight, 'document')} without a verdict: {where}. Is an index "
            "running (stream-dedup run index), and is it ready?",
            since=oldest.waiting_since,
        )
        return waited
