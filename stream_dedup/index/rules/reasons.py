"""The reasons for verdicts: a document is a duplicate, or became a representative."""

from __future__ import annotations

from stream_dedup.domain.document import Reason
from stream_dedup.index.storage.columns import SHORT


def reason_of_duplicate(*, same_text: bool, same_id: bool) -> Reason:
    """Return the reason of a duplicate, which may have the same text or id as its representative.

    Of all representatives in a document's scope, the one with its text digest wins over all that
    are near; else, of those within the plan's reach, the earliest in the log; else the document is
    unique and becomes a representative. Naming the earliest, not the nearest, keeps a redelivered
    document's verdict: an earlier one can never appear later. (`neighbours` finds them.) A
    duplicate with the same text is never called near; an empty id is never the same.
    """
    if same_text:
        return Reason.UNCHANGED if same_id else Reason.EXACT
    return Reason.REVISED if same_id else Reason.NEAR


def reason_of_state(state: int) -> Reason:
    """Return the reason for which an entry became a representative, from its stored state."""
    return Reason.TOO_SHORT if state == SHORT else Reason.NEW
