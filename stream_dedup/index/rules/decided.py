"""What was decided on a log record, as the topic `decisions` has it (`log.decisions`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stream_dedup.index.rules.judging import JudgedBatch
from stream_dedup.log.decisions import NOT_JUDGED, LogDecision


def decision_on(log_offset: int, chain: bytes, judged: JudgedBatch) -> LogDecision:
    """Return the decision on a batch that was judged; `chain` is that of its answer."""
    verdicts = judged.verdicts
    found = judged.fresh & verdicts.names_another
    reasons = np.where(found, verdicts.reasons, np.uint8(NOT_JUDGED))
    return LogDecision(
        log_offset,
        chain,
        judged.fresh & ~found,
        reasons,
        judged.entries[found],
        verdicts.distances[found],
        verdicts.similarity[found],
        verdicts.copies[found],
        verdicts.better[found],
    )


def decision_on_seed(log_offset: int, chain: bytes, made: NDArray[np.bool_]) -> LogDecision:
    """Return the decision on a seed, of whose documents some were `made` representatives, (n,)."""
    small = np.zeros(0, np.uint8)
    reasons = np.full(len(made), NOT_JUDGED, np.uint8)
    return LogDecision(log_offset, chain, made, reasons, np.zeros(0, np.int64), small, small, np.zeros(0, np.uint32), small)
