"""Errors that nobody foresaw, which one record led the program to: its dead letter, and one line of
log a minute.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from stream_dedup.domain.document import DeadLetter, Message, Stage
from stream_dedup.domain.printable import printable

_QUIET_SECONDS: Final = 60.0
_logger = logging.getLogger("stream_dedup.unforeseen")


class Unforeseen:
    """Makes such letters for one stage, such as `decode`, which is the business of `doer`, such as
    `decoder`.
    """

    def __init__(self, stage: Stage, doer: str) -> None:
        self._stage = stage
        self._doer = doer
        self._quiet_until = 0.0

    def letter(self, message: Message, error: Exception) -> DeadLetter:
        """Return the dead letter of a record; what led to the error is not known, so another worker
        may have judged it.
        """
        kind = type(error).__name__
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET_SECONDS
            _logger.warning(
                "a record led the %s to an error that it does not know, and becomes a dead letter; "
                "please report it (the like "
                "is not logged again for a minute)",
                self._doer,
                extra={"position": message.position},
                exc_info=error,
            )
        why = printable(str(error).rstrip(".") or kind)
        sentence = f"The record led the {self._doer} to an error that it does not know: {why}."
        return DeadLetter(self._stage, kind, sentence, is_timed=True)
