"""Apply one log record to the state, and return its answer. The state collects the writes.

Every record first moves log time and drops the generations whose window has passed (`window`). Then
a batch is judged (`judging`) and answered, or rejected if it breaks a rule of the log; an order is
applied (`orders`). The running digest covers each answer.

Invariants: the answer depends on the log's prefix alone; no record can make a step fail, because all
fields are checked before anything changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from stream_dedup.domain.document import NONCE_BYTES
from stream_dedup.domain.errors import FormatError, InvariantError
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.sketch import SKETCH_BYTES
from stream_dedup.index.rules import orders
from stream_dedup.index.rules.judging import LoggedBatch, judge_batch
from stream_dedup.index.rules.state import IndexState
from stream_dedup.log.answers import LogAnswer, Rejected, encode
from stream_dedup.log.controls import OFFSET_MAX, Declaration
from stream_dedup.log.records import Batch, Control, LogRecord, Seed

_UNDECLARED: Final = (
    "No record before this batch declares recipe and plan, so the batch cannot be judged. The "
    "log must begin with the declaration that the first worker appends."
)


def step(
    state: IndexState,
    log_offset: int,
    append_ms: int,
    record: LogRecord | FormatError,
    open_stores: Callable[[IndexState], object],
) -> bytes | None:
    """Apply one log record; return the bytes of its answer, None for orders, seeds and releases.

    If a record could not be decoded, `record` is the error. `open_stores(state)` is called at the
    first batch, which shows the width of prints, to create `entries` and `neighbours`.
    """
    state.generations.advance(append_ms, state.window)
    state.expire()
    if isinstance(record, FormatError):
        return _reject(state, log_offset, bytes(NONCE_BYTES), 0, str(record))
    if isinstance(record, Control):
        if not orders.apply_control(state, log_offset, record):
            state.ignored += 1
        return None
    batch = record if isinstance(record, Batch) else record.batch
    refusal = find_refusal(
        state.declared, state.plan, (state.print_limbs, state.sketch_bytes), batch
    )
    if refusal is None and not state.print_limbs:
        state.print_limbs, state.sketch_bytes = batch.prints.shape[1], batch.sketches.shape[1]
        open_stores(state)
    if not isinstance(record, Batch):
        if refusal is not None or state.declared is None:
            state.ignored += 1
        elif isinstance(record, Seed):
            orders.seed(state, log_offset, append_ms, batch, state.declared.floor)
        else:
            orders.release(state, log_offset, append_ms, batch, state.declared.floor)
        return None
    if refusal is not None or state.declared is None:
        return _reject(state, log_offset, record.nonce, record.number, refusal or _UNDECLARED)
    verdicts = judge_batch(state, LoggedBatch(log_offset, append_ms, record), state.declared.floor)
    answer, state.chain = encode(
        LogAnswer(log_offset, record.nonce, record.number, verdicts), state.chain, state.format
    )
    return answer


def _reject(state: IndexState, log_offset: int, nonce: bytes, number: int, refusal: str) -> bytes:
    state.rejected, state.rejected_at = state.rejected + 1, log_offset
    answer, state.chain = encode(
        Rejected(log_offset, nonce, number, refusal), state.chain, state.format
    )
    return answer


def find_refusal(
    declared: Declaration | None, plan: Plan | None, sizes: tuple[int, int], batch: Batch
) -> str | None:
    """Return why a batch breaks a rule of the log, as a sentence; None if it does not.

    `sizes` are (limbs of the log's prints, bytes of its sketches), 0 before the first batch.
    """
    print_limbs, sketch_bytes = sizes
    if declared is None or plan is None:
        return _UNDECLARED
    if batch.recipe != declared.recipe:
        return (
            f"The batch has fingerprints of the recipe {batch.recipe!r}, but the log declares "
            f"{declared.recipe!r}, and they cannot be compared. Set the declared recipe for the "
            "worker, or start a new log with another STREAM_DEDUP_TOPIC_PREFIX."
        )
    if batch.mode.delivers is not declared.mode.delivers:
        return (
            f"The batch was written in mode {batch.mode.name.lower()!r}, but the log declares "
            f"{declared.mode.name.lower()!r}. Set the declared mode for the worker, or start a "
            "new log with another STREAM_DEDUP_TOPIC_PREFIX."
        )
    bits = batch.prints.shape[1] * 64
    if bits < plan.width:
        return (
            f"The batch has fingerprints of {bits} bits, but the plan {plan.name} compares "
            f"{plan.width}."
        )
    if bits != (width := declared.width or print_limbs * 64 or bits):
        return (
            f"The batch has fingerprints of {bits} bits, but those of the log's recipe have "
            f"{width}."
        )
    size = batch.sketches.shape[1]
    if plan.needs_sketch and size != SKETCH_BYTES:
        return (
            f"The batch has sketches of {size} bytes, but the plan {plan.name} compares "
            f"{SKETCH_BYTES}. Declare a plan without sketches, such as blocks, or start a new log "
            "with a recipe that computes sketches."
        )
    if print_limbs and size != sketch_bytes:
        return (
            f"The batch has sketches of {size} bytes, but those of the log's recipe have "
            f"{sketch_bytes}."
        )
    if batch.offset[batch.offset.argmin()] < 0 or any(
        source.committed > OFFSET_MAX for source in batch.sources
    ):
        return (
            "The batch contains an offset that no Kafka partition can have. Please report "
            "this bug of the worker."
        )
    return None


def check_offsets(expected: int, records: Sequence[tuple[int, int, bytes | None]]) -> None:
    """Check that records, each beginning with its log offset, have consecutive offsets from
    `expected` on.

    Raises:
        InvariantError: some are missing, or applied already.
    """
    for log_offset, _, _ in records:
        if log_offset < expected:
            raise InvariantError(
                f"The index received log offset {log_offset} again, but has applied all records "
                f"below {expected}; this is an internal error."
            )
        if log_offset > expected:
            raise InvariantError(
                f"Log offset {expected} is missing before {log_offset}: records of the log were "
                "deleted or skipped. Restore the log from a backup, or restore a snapshot of the "
                "index."
            )
        expected += 1
