"""One log record applied: state and record in, answer out; what is to be written is gathered in the
state's rooms.

Every record first moves log time, and drops the generations whose window has passed (`window`). A
batch is refused if it breaks a rule of the log, and else judged (`judging`) and answered; the
answer is chained to the one before. What operators tell the log is carried out (`orders`).

Invariants: the answer is a function of the log's prefix alone; no record can make a step fail: what
its fields may hold is checked before anything changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from stream_dedup.ground.document import NONCE_BYTES
from stream_dedup.ground.errors import FormatError, InvariantError
from stream_dedup.ground.plan import Plan
from stream_dedup.ground.sketch import SKETCH_BYTES
from stream_dedup.index.rules import orders
from stream_dedup.index.rules.decided import JudgedBatch, decision_on, decision_on_seed, seed_chain
from stream_dedup.index.rules.declaration import Declaration
from stream_dedup.index.rules.judging import LoggedBatch, judge_batch, judge_together
from stream_dedup.index.rules.positions import WholeRecord, spans_of
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.tables.rows import Columns, no_columns
from stream_dedup.log.answers import Head, Rejected, encode, encode_verdicts
from stream_dedup.log.decisions import LogDecision
from stream_dedup.log.records import Batch, Control, LogRecord, Seed

DOCUMENTS_TOGETHER: Final = 1 << 14
"""Of how many documents log records are applied at once, about, where all is decided."""
_OFFSET_MAX: Final = (1 << 63) - 1
_UNDECLARED: Final = (
    "No record before this batch declares recipe and plan, so it cannot be judged; the log must "
    "begin with a "
    "declaration, which a worker appends at its first start."
)


class Step(NamedTuple):
    """What a log record led to: the bytes of its answer, if it gets one; and what makes the
    decision on its documents, if any were judged.
    """

    answer: bytes | None = None
    decide: Callable[[], LogDecision] | None = None


def step(
    state: IndexState,
    log_offset: int,
    append_ms: int,
    record: LogRecord | FormatError,
    open_rooms: Callable[[IndexState], object],
    decision: LogDecision | None = None,
) -> Step:
    """Apply one log record; only batches, and what is malformed, get an answer.

    With the `decision` on its documents nothing is looked up. A record that could not be decoded is
    given as its error. `open_rooms(state)` makes `entries` and `neighbours` when the first batch
    tells how wide prints are.
    """
    state.generations.advance(append_ms, state.window)
    state.expire()
    if isinstance(record, FormatError):
        return _reject(state, log_offset, bytes(NONCE_BYTES), 0, str(record))
    if isinstance(record, Control):
        if not orders.carry_out(state, log_offset, record):
            state.ignored += 1
        return Step()
    batch = record if isinstance(record, Batch) else record.batch
    why = refusal(state.declared, state.plan, (state.print_limbs, state.sketch_bytes), batch)
    if why is None and not state.print_limbs:
        state.print_limbs, state.sketch_bytes = batch.prints.shape[1], batch.sketches.shape[1]
        open_rooms(state)
    if not isinstance(record, Batch):
        if why is not None or state.declared is None:
            state.ignored += 1
        elif isinstance(record, Seed):
            made = orders.seed(state, log_offset, append_ms, batch, state.declared.floor, decision)
            chain = seed_chain(state.chain, log_offset, made)
            _hold(chain, log_offset, decision)
            return Step(None, partial(decision_on_seed, log_offset, chain, made))
        else:
            orders.release(state, log_offset, append_ms, batch, state.declared.floor)
        return Step()
    if why is not None or state.declared is None:
        return _reject(state, log_offset, record.nonce, record.number, why or _UNDECLARED)
    logged = LoggedBatch(log_offset, append_ms, record, decision)
    return _answered(state, [logged], judge_batch(state, logged, state.declared.floor))[0]


def gather(
    state: IndexState,
    records: Iterable[tuple[int, int, LogRecord | FormatError]],
    decisions: Mapping[int, LogDecision],
) -> list[tuple[LoggedBatch, WholeRecord]]:
    """Return the first of some log records that can be applied at once, by `step_together`, which
    is owed for them from now on: batches of new documents on all of which is decided, within one
    generation.
    """
    found: list[tuple[LoggedBatch, WholeRecord]] = []
    documents = 0
    if state.entries is None or (state.window is not None and state.window.refresh):
        return found
    columns = no_columns(state.print_limbs, 0)
    for log_offset, append_ms, record in records:
        decision = decisions.get(log_offset)
        if not isinstance(record, Batch) or decision is None or documents > DOCUMENTS_TOGETHER:
            break
        logged = LoggedBatch(log_offset, append_ms, record, decision)
        whole = _joined(state, logged, decision, columns)
        if whole is None:
            break
        found.append((logged, whole))
        documents += len(record)
    return found


def _joined(
    state: IndexState, logged: LoggedBatch, decision: LogDecision, columns: Columns
) -> WholeRecord | None:
    """Let a batch join those before it, if it can: log time and watermarks move. `columns` are
    empty, and filled in.
    """
    log_offset, append_ms, batch, _ = logged
    if (
        len(decision) != len(batch)
        or np.count_nonzero(decision.made) + len(decision.of) != len(batch)
        or not state.generations.stays(append_ms, state.window)
        or refusal(state.declared, state.plan, (state.print_limbs, state.sketch_bytes), batch)
        is not None
    ):
        return None
    positions, numbers = state.positions, state.numbers(batch)
    if any(
        positions.rises(number, source.epoch)
        for number, source in zip(numbers, batch.sources, strict=True)
    ):
        return None  # what was kept before is looked at
    columns = columns._replace(
        sources=np.array(numbers, np.uint32)[batch.source],
        offsets=batch.offset,
        values=batch.value_digest,
    )
    spans = spans_of(columns)
    for number, source in zip(numbers, batch.sources, strict=True):
        positions.raise_watermark(number, source.epoch, source.committed)
        epoch, committed = positions.watermark(number)
        if (
            spans is None
            or source.epoch < epoch
            or (number in spans and spans[number][0] < committed)
        ):
            return None
    if spans is None or not positions.none_near(columns, spans):
        return None
    state.generations.advance(append_ms, state.window)
    return positions.keep_whole(log_offset, columns, spans)


def step_together(
    state: IndexState, batches: Sequence[tuple[LoggedBatch, WholeRecord]]
) -> list[Step]:
    """Apply batches that `gather` returned."""
    if state.declared is None:
        raise InvariantError(
            "Batches are applied together before a recipe was declared; this is a fault of the "
            "program."
        )
    logged = [one for one, _ in batches]
    return _answered(
        state,
        logged,
        judge_together(state, logged, [whole for _, whole in batches], state.declared.floor),
    )


def _answered(state: IndexState, batches: Sequence[LoggedBatch], judged: JudgedBatch) -> list[Step]:
    """Answer batches; `judged` are all their documents, one batch after another."""
    ends = list(itertools.accumulate(len(one.batch) for one in batches))
    heads = [Head(one.log_offset, one.batch.nonce, one.batch.number) for one in batches]
    answers = encode_verdicts(heads, judged.verdicts, ends, state.chain, state.format)
    steps = []
    for one, (answer, chain), end in zip(batches, answers, ends, strict=True):
        _hold(chain, one.log_offset, one.decision)
        steps.append(
            Step(
                answer,
                partial(
                    decision_on, one.log_offset, chain, judged, slice(end - len(one.batch), end)
                ),
            )
        )
    state.chain = answers[-1][1]
    return steps


def _hold(chain: bytes, log_offset: int, decision: LogDecision | None) -> None:
    """Hold what a decision led to against what it must lead to.

    Raises:
        InvariantError: it is not the decision on this log record.
    """
    if decision is not None and decision.chain != chain:
        raise InvariantError(
            f"The decision on log record {log_offset} does not lead to the answer that was given."
        )


def _reject(state: IndexState, log_offset: int, nonce: bytes, number: int, why: str) -> Step:
    state.rejected, state.rejected_at = state.rejected + 1, log_offset
    answer, state.chain = encode(
        Rejected(log_offset, nonce, number, why), state.chain, state.format
    )
    return Step(answer)


def refusal(
    declared: Declaration | None, plan: Plan | None, held: tuple[int, int], batch: Batch
) -> str | None:
    """Return the sentence that refuses a batch, or None.

    `held`: of how many limbs the log's prints are, 0 as long as no batch told, and of how many
    bytes its sketches.
    """
    print_limbs, sketch_bytes = held
    if declared is None or plan is None:
        return _UNDECLARED
    if batch.recipe != declared.recipe:
        return (
            f"The batch was fingerprinted under the recipe {batch.recipe!r}, and this log was "
            "declared for "
            f"{declared.recipe!r}: their prints cannot be compared. Give the worker the declared "
            "recipe, or a log of "
            "its own."
        )
    if batch.mode.delivers is not declared.mode.delivers:
        return (
            f"The batch is for mode {batch.mode.name.lower()!r}, and this log was declared for "
            f"{declared.mode.name.lower()!r}: what one delivered says nothing of the other. Give "
            "that mode its own log."
        )
    bits = batch.prints.shape[1] * 64
    if bits < plan.width:
        return f"The batch carries prints of {bits} bits, and the plan {plan.name} judges {plan.width}."
    if bits != (width := declared.width or print_limbs * 64 or bits):
        return f"The batch carries prints of {bits} bits, and under this log's recipe they have {width}."
    size = batch.sketches.shape[1]
    if plan.needs_sketch and size != SKETCH_BYTES:
        return (
            f"The batch carries sketches of {size} bytes, and the plan {plan.name} compares "
            f"{SKETCH_BYTES}: change "
            "to a plan without sketches, such as blocks, or begin a log with a recipe that makes "
            "them."
        )
    if print_limbs and size != sketch_bytes:
        return f"The batch carries sketches of {size} bytes, and under this log's recipe they have {sketch_bytes}."
    if batch.offset[batch.offset.argmin()] < 0 or any(
        source.committed > _OFFSET_MAX for source in batch.sources
    ):
        return "The batch names an offset that no Kafka partition can have; its worker is broken."
    return None


def check_offsets(expected: int, records: Sequence[tuple[int, int, bytes | None]]) -> None:
    """Make sure that records, each with its log offset first, follow on what was applied: that the
    next one is `expected`.

    Raises:
        InvariantError: some were trimmed, skipped, or applied before.
    """
    for log_offset, _, _ in records:
        if log_offset < expected:
            raise InvariantError(
                f"Log offset {log_offset} was given to the index again, and it has applied "
                "everything below "
                f"{expected}; its reader must begin at {expected}."
            )
        if log_offset > expected:
            raise InvariantError(
                f"Log offset {expected} is missing before {log_offset}: the log was trimmed, or "
                "records were "
                "skipped. The log must be kept for ever; restore it, or rebuild from a log that "
                "begins at 0."
            )
        expected += 1
