"""Turn unexpected errors on a record into its dead letter and at most one log line a minute."""

from __future__ import annotations

import logging
import time
from typing import Final

from stream_dedup.domain.document import DeadLetter, Message, Stage
from stream_dedup.domain.printable import printable

_QUIET_SECONDS: Final = 60.0
_logger = logging.getLogger("stream_dedup.unforeseen")


class Unforeseen:
    """Makes dead letters for one stage, such as `decode`; `component` is its name for people, such
    as `decoder`.
    """

    def __init__(self, stage: Stage, component: str) -> None:
        self._stage = stage
        self._component = component
        self._quiet_until = 0.0

    def letter(self, message: Message, error: Exception) -> DeadLetter:
        """Return the dead letter of a record. The cause is unknown, so another worker may have
        judged the record.
        """
        kind = type(error).__name__
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET_SECONDS
            _logger.warning(
                "the %s failed on a record with an unexpected error; the record becomes a dead "
                "letter. Please report the error (it is logged at most once a minute)",
                self._component,
                extra={"position": message.position},
                exc_info=error,
            )
        reason = printable(str(error).rstrip(".") or kind)
        sentence = f"The {self._component} failed with an unexpected error: {reason}."
        return DeadLetter(self._stage, kind, sentence, can_vary=True)
