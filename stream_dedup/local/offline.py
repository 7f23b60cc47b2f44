"""The filter without Kafka: documents in, verdicts out, through the very same fingerprints, log records and index.

Invariants: the verdicts are those of a log that holds the same documents in the same order, with one partition; nothing
is kept on disk, unless a store on disk is given; memory grows with the representatives (their prints and ids), never with the
texts. On a store that stays, a document judged again gets its first verdict, as a redelivered record does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from stream_dedup.fingerprinting import Content, Fingerprinter, Prints, Recipe
from stream_dedup.ground.document import NO_TOPIC_ID, NONCE_BYTES, Mode, Reason, Verdict, shorten_id
from stream_dedup.ground.errors import ConfigurationError, InvariantError
from stream_dedup.ground.plan import Plan, parse_similarity, plan_for
from stream_dedup.ground.plan import parse as parse_plan
from stream_dedup.ground.sketch import share
from stream_dedup.index.contract import Store
from stream_dedup.index.index import LogIndex
from stream_dedup.index.memory import MemoryStore
from stream_dedup.log import answers, records

BATCH_DOCUMENTS = records.DOCUMENTS_MAX
_TOPIC = "file"
_NONCE = bytes(NONCE_BYTES)


@dataclass(frozen=True, slots=True)
class OfflineDocument:
    """A document to judge: a text, or the vector of a recipe that takes vectors.

    `scope`: judged only against documents with the same one; 0 is the common scope.
    """

    id: bytes
    text: Content
    scope: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict. `number` counts the documents from 0; of a duplicate, `of_number` and `of_id` name the kept one.

    `similarity`, 0 to 1, is told of what is near by a recipe with sketches.
    """

    number: int
    id: bytes
    reason: Reason
    fingerprint: str | None
    distance: int | None = None
    of_number: int | None = None
    of_id: bytes | None = None
    similarity: float | None = None

    @property
    def verdict(self) -> Verdict:
        """Unique or duplicate."""
        verdict = self.reason.verdict
        if verdict is None:
            raise InvariantError(f"Document {self.number} was answered {self.reason.label}, which is no outcome.")
        return verdict


def plan_of(plan: Plan | str | None, similarity: float | None, recipe: Recipe) -> Plan:
    """Return the plan to judge by: as it is given or written, or that of those who name none.

    `similarity`: a share from 0 to 1, in hundredths, that takes the place of the plan's own.

    Raises:
        ConfigurationError: there is no such plan or similarity, or the plan compares no sketches.
    """
    chosen = parse_plan(plan) if isinstance(plan, str) else plan or plan_for(has_sketches=bool(recipe.sketch_bytes))
    return chosen if similarity is None else chosen.with_similarity(parse_similarity(str(similarity)))


def check_widths(recipe: Recipe, plan: Plan) -> None:
    """Raise ConfigurationError if the plan judges more than the recipe makes: more bits, or sketches."""
    if plan.width > recipe.width:
        raise ConfigurationError(
            f"The plan {plan.id} judges {plan.width} bits, and the recipe {recipe.id} makes {recipe.width}; choose a plan of "
            "at most that width with STREAM_DEDUP_PLAN, such as classic for 64 bits."
        )
    if plan.needs_sketch and not recipe.sketch_bytes:
        raise ConfigurationError(
            f"The plan {plan.name} compares sketches, and the recipe {recipe.id} makes none; choose a plan without them with "
            "STREAM_DEDUP_PLAN, such as wide."
        )


class MakesPrints(Protocol):
    """What fingerprints a batch: a `Fingerprinter`, or whoever has its prints already."""

    recipe: Recipe

    def fingerprint(self, contents: Sequence[Content]) -> Prints:
        """Return one row for each, in their order."""
        ...


def judge_documents(
    documents: Iterable[OfflineDocument],
    recipe: Recipe,
    plan: Plan,
    fingerprinter: MakesPrints | None = None,
    *,
    store: Store | None = None,
    first: int = 0,
    safe: Callable[[], int] | None = None,
) -> Iterator[Judged]:
    """Yield a verdict for each document, in order; documents are taken in as verdicts are taken out, a batch at a time.

    `fingerprinter`: of that recipe, made here if there is none. `store`: where the index lives, in memory if there is none;
    it is not closed. `first`: the number of the first document. `safe`: says up to which number nobody will ask again; verdicts
    on those behind it are kept in the store.

    Raises:
        ConfigurationError: the plan judges more bits than the recipe's prints have.
    """
    check_widths(recipe, plan)
    fingerprinter = Fingerprinter(recipe) if fingerprinter is None else fingerprinter
    index = LogIndex(MemoryStore() if store is None else store)
    index.bind("documents judged without Kafka")
    declaration = {
        "recipe": recipe.id,
        "width": 64 * recipe.limbs,
        "floor": recipe.floor,
        "plan": plan.to_fields(),
        "group": "offline",
        "mode": int(Mode.ENFORCE),
    }
    if index.declared is None:
        index.apply([(0, 0, records.encode_control(records.Control("declare", declaration)))])
    source = iter(documents)
    while batch := list(islice(source, BATCH_DOCUMENTS)):
        yield from _judge(batch, first, first if safe is None else safe(), fingerprinter, index)
        first += len(batch)


def _judge(
    batch: Sequence[OfflineDocument], first: int, safe: int, fingerprinter: MakesPrints, index: LogIndex
) -> Iterator[Judged]:
    prints = fingerprinter.fingerprint([document.text for document in batch])
    ids = [shorten_id(document.id) for document in batch]
    rows = [row for row, is_empty in enumerate(prints.empty.tolist()) if not is_empty]
    judgements: dict[int, answers.Judgement] = {}
    start = 0
    for count in records.split_sizes(
        [len(ids[row]) for row in rows], 64 * fingerprinter.recipe.limbs, fingerprinter.recipe.sketch_bytes, 1
    ):
        part = rows[start : start + count]
        start += count
        raw = records.encode_batch(_log_record(batch, ids, prints, part, (first, safe), fingerprinter.recipe))
        ((_, answer_raw),) = index.apply([(index.applied, 0, raw)])
        answer = answers.decode(answer_raw, "An answer of the index in memory")
        if not isinstance(answer, answers.LogAnswer):
            raise InvariantError(f"The index in memory did not judge a batch: {answer!r}.")
        judgements.update(zip(part, answer.judgements, strict=True))
        # Nothing is ever sent, so nothing needs to be stored for sending again.
        index.answered(index.applied)
    for row, identifier in enumerate(ids):
        judgement = judgements.get(row)
        if judgement is None:
            yield Judged(first + row, identifier, Reason.EMPTY, None)
            continue
        fingerprint = fingerprinter.recipe.format(prints.prints[row].tolist())
        if judgement.of is None:
            yield Judged(first + row, identifier, judgement.reason, fingerprint)
        else:
            of, alike = judgement.of, share(judgement.similarity)
            kept = of.position.offset, of.id
            yield Judged(first + row, identifier, judgement.reason, fingerprint, judgement.distance, *kept, alike)


def _log_record(
    batch: Sequence[OfflineDocument],
    ids: Sequence[bytes],
    prints: Prints,
    rows: Sequence[int],
    numbers: tuple[int, int],
    recipe: Recipe,
) -> records.Batch:
    first, safe = numbers
    chosen = np.asarray(rows, dtype=np.intp)
    count = len(rows)
    digests = (hashlib.blake2b(_bytes_of(batch[row].text), digest_size=8).digest() for row in rows)
    return records.Batch(
        recipe=recipe.id,
        mode=Mode.ENFORCE,
        nonce=_NONCE,
        number=first + rows[0],
        # As a worker says what it committed: the index keeps the verdicts behind that, and no others.
        sources=(records.Source(_TOPIC, NO_TOPIC_ID, 0, 0, safe),),
        source=np.zeros(count, np.uint16),
        offset=chosen.astype(np.int64) + first,
        value_digest=np.fromiter((int.from_bytes(digest, "little") for digest in digests), np.uint64, count),
        text_digest=prints.digests[chosen],
        prints=prints.prints[chosen],
        sketches=prints.sketches[chosen],
        features=prints.features[chosen],
        scope=np.fromiter((batch[row].scope for row in rows), np.uint64, count),
        time_ms=np.zeros(count, np.int64),
        ids=tuple(ids[row] for row in rows),
    )


def _bytes_of(content: Content) -> bytes:
    return content.encode("utf-8", "replace") if isinstance(content, str) else content.tobytes()
