"""Why a document is a duplicate or not; and what was decided on a log record, as `log.decisions`
has it.

That is made of verdicts, and made into what was found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.document import SAME_TEXT, Reason
from stream_dedup.ground.errors import InvariantError
from stream_dedup.ground.sketch import NOT_COMPARED
from stream_dedup.index.tables.rows import (
    OUTCOME_DIGEST,
    OUTCOME_NEAR,
    OUTCOME_NEW,
    OUTCOME_SHORT,
    Found,
)
from stream_dedup.index.volume.layout import STATE_DIGEST_ONLY
from stream_dedup.log.answers import CHAIN_BYTES, Verdicts
from stream_dedup.log.decisions import NOT_JUDGED, LogDecision


def reason_of_duplicate(*, same_text: bool, same_id: bool) -> Reason:
    """Return why a document is a duplicate, given whether it has the text and the id of its
    representative.

    Of all representatives in a document's scope, the one with its text digest wins over all that
    are near; else, of those within the plan's reach, the earliest in the log; else the document is
    unique and becomes a representative. Naming the earliest, not the nearest, keeps a redelivered
    document's verdict in place: an earlier one can never appear later. (`neighbours` finds them.) A
    duplicate of the same text is never called near; an empty id is nobody's, so never the same.
    """
    if same_text:
        return Reason.UNCHANGED if same_id else Reason.EXACT
    return Reason.REVISED if same_id else Reason.NEAR


def reason_of_state(state: int) -> Reason:
    """Return why an entry became a representative, by its state on disk."""
    return Reason.TOO_SHORT if state == STATE_DIGEST_ONLY else Reason.NEW


class JudgedBatch(NamedTuple):
    """The verdicts on a batch, or on some one after another; which of the documents were `fresh`
    (n,), so compared with others; and which `entries` those of them name that are duplicates, (n,).
    """

    verdicts: Verdicts
    fresh: NDArray[np.bool_]
    entries: NDArray[np.int64]


def decision_on(log_offset: int, chain: bytes, judged: JudgedBatch, own: slice) -> LogDecision:
    """Return the decision on a batch whose `own` documents were judged; `chain` is that of its
    answer.
    """
    verdicts, fresh = judged.verdicts, np.zeros(len(judged.fresh), np.bool_)
    fresh[own] = judged.fresh[own]
    found = fresh & verdicts.names_another
    reasons = np.where(found, verdicts.reasons, np.uint8(NOT_JUDGED))
    told = judged.entries, verdicts.distances, verdicts.similarity, verdicts.copies, verdicts.better
    columns: list[Any] = [column[found] for column in told]
    return LogDecision(log_offset, chain, (fresh & ~found)[own], reasons[own], *columns)


def decision_on_seed(log_offset: int, chain: bytes, made: NDArray[np.bool_]) -> LogDecision:
    """Return the decision on a seed, of whose documents some were `made` representatives, (n,);
    `chain`: see `seed_chain`.
    """
    small = np.zeros(0, np.uint8)
    reasons = np.full(len(made), NOT_JUDGED, np.uint8)
    return LogDecision(
        log_offset,
        chain,
        made,
        reasons,
        np.zeros(0, np.int64),
        small,
        small,
        np.zeros(0, np.uint32),
        small,
    )


def seed_chain(chain: bytes, log_offset: int, made: NDArray[np.bool_]) -> bytes:
    """Return what a decision on a seed carries, which has no answer: a digest of it and of the
    chain of answers before.
    """
    said = log_offset.to_bytes(8, "little") + np.packbits(made, bitorder="little").tobytes()
    return hashlib.blake2b(chain + said, digest_size=CHAIN_BYTES).digest()


def found_before(
    decision: LogDecision, places: NDArray[np.int64], short: NDArray[np.bool_], entries: int
) -> Found:
    """Return what a decision says was found of the documents at `places` (k,), which are `short`
    (k,) or not.

    Raises:
        InvariantError: it says nothing of one of them, or names an entry that is not among the
        `entries` and what it makes.
    """
    made, reasons = decision.made[places], decision.reasons[places]
    duplicates = reasons != NOT_JUDGED
    at = (np.cumsum(decision.reasons != NOT_JUDGED) - 1)[places[duplicates]]
    of = decision.of[at]
    if (made == duplicates).any() or ((of < 0) | (of >= entries + np.count_nonzero(made))).any():
        raise InvariantError(
            "A decision does not say what became of a document, or of which one it is a duplicate."
        )
    found = Found(
        np.where(short, np.uint8(OUTCOME_SHORT), np.uint8(OUTCOME_NEW)),
        np.full(len(places), -1, np.int64),
        np.zeros(len(places), np.uint8),
        np.full(len(places), NOT_COMPARED, np.uint8),
    )
    is_same = np.isin(reasons[duplicates], SAME_TEXT)
    found.outcome[duplicates] = np.where(is_same, np.uint8(OUTCOME_DIGEST), np.uint8(OUTCOME_NEAR))
    found.entry[duplicates] = of
    found.distance[duplicates], found.similarity[duplicates] = (
        decision.distances[at],
        decision.similarity[at],
    )
    return found


def joined_decision(decisions: Sequence[LogDecision | None]) -> LogDecision | None:
    """Return decisions on some log records as one on all their documents; None where there is
    none.
    """
    known = [one for one in decisions if one is not None]
    if len(known) < 2:
        return known[0] if known else None
    columns = (
        np.concatenate([getattr(one, name) for one in known]) for name in LogDecision.__slots__[2:]
    )
    return LogDecision(known[0].log_offset, known[-1].chain, *columns)
