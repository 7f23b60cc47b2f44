"""The reasons for verdicts: a document is a duplicate, or became a representative."""

from __future__ import annotations

from stream_dedup.domain.document import Reason
from stream_dedup.index.storage.columns import SHORT


def reason_of_duplicate(*, same_text: bool, same_id: bool) -> Reason:
    """Return the reason of a duplicate, which may have the same text or id as its representative.

    `neighbours` finds the representative in the document's scope: one with the same text, otherwise
    the earliest in the log that is near. If neither exists, the document is unique. The earliest is
    chosen, not the nearest: no earlier one can be appended later, so the choice stays the same. A
    duplicate with the same text is never near, and an empty id never counts as the same.
    """
    if same_text:
        return Reason.UNCHANGED if same_id else Reason.EXACT
    return Reason.REVISED if same_id else Reason.NEAR


def reason_of_state(state: int) -> Reason:
    """Return the reason for which an entry became a representative, from its stored state."""
    return Reason.TOO_SHORT if state == SHORT else Reason.NEW
