"""Report that the worker waits for an index, or for the topic of its answers."""

from __future__ import annotations

from typing import Final

from stream_dedup.domain.printable import counted
from stream_dedup.serving.wait_reports import Waits
from stream_dedup.worker.flow import Flow

# A restarting index usually answers sooner; a document that waits longer is late for its readers.
_REPORT_AFTER_SECONDS: Final = 10.0
_INDEX: Final = "an index"
_ANSWERS: Final = "the topic of answers"


class WaitReporter:
    """Updates the worker's waits; its loop calls `report` every second."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def report(self, flow: Flow, read_error: str, now: float) -> float:
        """Report an index that does not answer, or a topic of answers that cannot be read (then
        `read_error` is the reason, otherwise ""); end a report whose cause has ended.

        Return how many seconds the oldest question has waited, 0 if there is none.
        """
        if read_error:
            self._waits.report(_ANSWERS, read_error)
        else:
            self._waits.end(_ANSWERS)
        oldest = flow.oldest_unanswered
        waited = 0.0 if oldest is None else now - oldest.waiting_since
        if oldest is None or waited < _REPORT_AFTER_SECONDS:
            # While the flow fails open, no question waits, although the index does not answer.
            if not flow.is_failed_open:
                self._waits.end(_INDEX)
            return waited
        log_offset = flow.unanswered_offset
        progress = (
            "their batches are not in the log yet"
            if log_offset is None
            else f"log offset {log_offset} has not been answered for {waited:.0f} s"
        )
        self._waits.report(
            _INDEX,
            f"{counted(flow.documents_in_flight, 'document')} without a verdict: {progress}. Is an "
            "index running (stream-dedup run index), and is it ready?",
            since=oldest.waiting_since,
        )
        return waited
