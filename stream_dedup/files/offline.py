"""Judge documents without Kafka, with the same fingerprints, log records and index as the roles.

Invariants: the verdicts are those of a filter that reads the same documents in the same order from
one partition; nothing is written to disk, unless the index is on disk; memory grows with the
representatives (their fingerprints and ids), not with the texts; if a run with a lasting index
judges a document again, the document gets its first verdict, like a redelivered record.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.argument_types import checked
from stream_dedup.domain.document import (
    DIGEST_BYTES,
    NO_TOPIC_ID,
    NONCE_BYTES,
    Mode,
    Reason,
    Verdict,
    shorten_id,
)
from stream_dedup.domain.errors import ConfigurationError, InvariantError, StoreError
from stream_dedup.domain.hosts import site_of
from stream_dedup.domain.plan import Plan, parse_similarity, plan_for
from stream_dedup.domain.plan import parse as parse_plan
from stream_dedup.domain.printable import printable
from stream_dedup.fingerprinting import (
    Content,
    Fingerprinter,
    Prints,
    Recipe,
    SiteHasher,
    format_prints,
)
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.log import answers, records
from stream_dedup.log.schema import Judgement

BATCH_DOCUMENTS = records.DOCUMENTS_MAX
_BATCH_CHARACTERS = 16 << 20
LIBRARY_LOG, _TOPIC = "a library's index", "library"
_NONCE = bytes(NONCE_BYTES)


@dataclass(frozen=True, slots=True)
class OfflineDocument:
    """A document to judge: a text, or a vector for a recipe that takes vectors.

    `scope`: only documents of one scope are compared; 0 is the common scope. `site` and `title`:
    empty if unknown. `time_ms`: 0 if unknown. `rank`: see `judge_ranked`.
    """

    id: bytes
    text: Content
    scope: int = 0
    rank: float = 0.0
    site: str = ""
    title: str = ""
    time_ms: int = 0


class Sibling(NamedTuple):
    """An earlier page of the same site whose similarity is below the threshold of copies.

    `number`: its number, None for a page of another run; `similarity`: from 0 to 1.
    """

    number: int | None
    id: bytes
    similarity: float


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on the document `number`, counted from 0. For a duplicate, `kept_number` and
    `kept_id` name the kept document; `kept_number` is None if another run judged it.

    `similarity`: from 0 to 1; 1 for the same text, None for a near text without sketches.
    `sibling`: the earliest similar page of its site, if the document was kept only because of its
    site or title.
    """

    number: int
    id: bytes
    reason: Reason
    fingerprint: str | None
    distance: int | None = None
    kept_number: int | None = None
    kept_id: bytes | None = None
    similarity: float | None = None
    sibling: Sibling | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict that belongs to the reason."""
        verdict = self.reason.verdict
        if verdict is None:
            raise InvariantError(
                f"Document {self.number} has the reason {self.reason.label}, which is not a verdict."
            )
        return verdict


def exceeds_one_percent(count: int, documents: int) -> bool:
    """Return whether `count` is more than one per cent of all documents."""
    return 100 * count > documents


@dataclass(slots=True)
class RepeatedIds:
    """Count documents that were judged as new versions of a document in another file, because both
    have the same id and the id is not a URL. Such ids may be unique only within a file.
    """

    _documents: int = 0
    _files: list[str] = field(default_factory=list)
    _firsts: list[int] = field(default_factory=list)
    _repeated: int = 0
    _first: bytes = b""

    def begin(self, number: int) -> None:
        """Set the number of the next document; the files of earlier documents are unknown."""
        self._documents = number
        self._files, self._firsts = [], []

    def add_document(self, file: str) -> None:
        """Add the next document, which `file` contains."""
        if not self._files or self._files[-1] != file:
            self._files.append(file)
            self._firsts.append(self._documents)
        self._documents += 1

    def count(self, judged: Judged) -> None:
        """Count the document of a verdict, if it repeats the id of a document of another file."""
        if judged.kept_number is None or judged.id != judged.kept_id or site_of(judged.id):
            return
        if self._file_of(judged.kept_number) not in ("", self._file_of(judged.number)):
            self._repeated += 1
            self._first = self._first or judged.id

    def _file_of(self, number: int) -> str:
        index = bisect_right(self._firsts, number)
        return self._files[index - 1] if index else ""

    def note(self) -> str:
        """Return a sentence about the counted documents; empty if there are none."""
        if not self._repeated:
            return ""
        name = printable(self._first, 60)
        if self._repeated == 1:
            subject = (
                f"1 document has the id of a document in another file, {name!r}, so it is "
                "judged as that document's"
            )
        else:
            subject = (
                f"{self._repeated:,} documents have the id of a document in another file, the "
                f"first {name!r}, so each is judged as that document's"
            )
        return (
            f"{subject} next version: unchanged, returned or revised. If ids are only unique "
            "within a file, name another field (STREAM_DEDUP_ID_FIELD, --id-field, id=)."
        )


def short_texts_note(short: int, documents: int, floor: int) -> str:
    """Return a sentence about texts with fewer features than `floor`; empty for fewer than 20
    documents, or if at most a tenth of them is short.
    """
    if documents < 20 or 10 * short <= documents:
        return ""
    return (
        f"{short:,} of {documents:,} texts have fewer than {floor} features (words and pairs of "
        "words), so they were only compared for equality. A lower floor compares them too "
        "(STREAM_DEDUP_FLOOR, --floor, Recipe(floor=))."
    )


def plan_of(plan: Plan | str | None, recipe: Recipe, **similarities: float | str | None) -> Plan:
    """Return the plan that `plan`, a `Plan` or a string, names; for None the default of the recipe.

    `similarities`: `similarity`, `unsure`, `same_site` and `other_title`, thresholds from 0 to 1 in
    hundredths that replace those of the plan.

    Raises:
        ConfigurationError: there is no such plan or similarity, or the plan compares no sketches.
        InputError: `plan` has another type.
    """
    if plan is None:
        chosen = plan_for(recipe.width, has_sketches=bool(recipe.sketch_bytes))
    elif isinstance(plan, str):
        chosen = parse_plan(plan)
    else:
        chosen = checked(plan, Plan, "A plan", "a Plan or its string, such as 'bands'")
    return chosen.with_similarity(
        **{
            name: parse_similarity(str(share))
            for name, share in similarities.items()
            if share is not None
        }
    )


def check_widths(recipe: Recipe, plan: Plan) -> None:
    """Raise ConfigurationError if the plan compares more bits than the recipe computes, or sketches
    that the recipe does not compute.
    """
    if plan.width > recipe.width:
        raise ConfigurationError(
            f"The plan {plan.id} compares {plan.width} bits, but fingerprints of the recipe "
            f"{recipe.id} have {recipe.width}; choose a plan of at most that width, such as classic "
            "for 64 bits."
        )
    if plan.needs_sketch and not recipe.sketch_bytes:
        raise ConfigurationError(
            f"The plan {plan.name} compares sketches, but the recipe {recipe.id} computes none; "
            "choose a plan without sketches, such as blocks."
        )


def open_store(path: str | os.PathLike[str] | None) -> Store:
    """Return the store at a path; a store in memory if `path` is None.

    Raises:
        StoreError: the store cannot be opened, or another process has it open.
    """
    if path is None:
        return MemoryStore()
    from stream_dedup.index.storage.store import RocksStore  # noqa: PLC0415 - an index in memory needs no RocksDB

    try:
        return RocksStore(os.fspath(path))
    except StoreError as error:
        cause, setting, _ = str(error).partition("STREAM_DEDUP_STATE_DIR")
        if not setting:
            raise
        remedy = (
            "Close it there, or name another folder"
            if "another process" in cause
            else "Name a folder that can be written"
        )
        raise type(error)(
            f"{cause.partition('; ')[0]}. {remedy} with --index, --to or Index(path)."
        ) from error


def open_index(
    store: Store,
    recipe: Recipe,
    plan: Plan | str | None = None,
    **similarities: float | str | None,
) -> LogIndex:
    """Return the index on a store, or create it with this recipe and plan.

    An existing index must have this recipe. `plan`: the plan for later documents; None keeps the plan
    of an existing index, and is the recipe's default plan for a new one. `similarities`: as for
    `plan_of`.

    Raises:
        ConfigurationError: the existing index has another recipe, or belongs to a filter on Kafka;
        or the plan compares more bits than the recipe computes, or sketches that it does not compute.
        StoreError: the index is damaged.
    """
    index = LogIndex(store)
    index.bind(LIBRARY_LOG)
    if index.declared is not None and index.plan is not None:
        if index.declared.recipe != recipe.id:
            raise ConfigurationError(
                f"The index contains prints of the recipe {index.declared.recipe}, and {recipe.id} "
                "is set; open it with the recipe and the key of its first run."
            )
        chosen = plan_of(index.plan if plan is None else plan, recipe, **similarities)
        if chosen != index.plan:
            check_widths(recipe, chosen)
            apply_record(
                index, records.encode_control(records.Control("plan", {"plan": chosen.to_fields()}))
            )
        return index
    chosen = plan_of(plan, recipe, **similarities)
    check_widths(recipe, chosen)
    fields = {
        "recipe": recipe.id,
        "width": 64 * recipe.limbs,
        "floor": recipe.floor,
        "plan": chosen.to_fields(),
        "group": _TOPIC,
        "mode": int(Mode.ENFORCE),
    }
    apply_record(index, records.encode_control(records.Control("declare", fields)))
    return index


def apply_record(index: LogIndex, raw: bytes) -> bytes | None:
    """Apply one record and return its answer. The index does not store the answer, because nobody
    reads it later.
    """
    index.mark_delivered(index.applied + 1)
    applied = index.apply([(index.applied, 0, raw)])
    return applied[0][1] if applied else None


class FingerprintedBatch(NamedTuple):
    """Up to `BATCH_DOCUMENTS` documents with their fingerprints. Each column has a row for each
    document, shape (n,): `sites` and `titles` are keyed hashes, `lengths` are characters of the
    texts, `times` are milliseconds since 1970 (0: unknown), `ranks` see `judge_ranked`.
    """

    ids: Sequence[bytes]
    prints: Prints
    scopes: NDArray[np.uint64]
    sites: NDArray[np.uint64]
    titles: NDArray[np.uint64]
    lengths: NDArray[np.uint32]
    times: NDArray[np.int64]
    ranks: NDArray[np.float64]

    @classmethod
    def empty(cls, recipe: Recipe, count: int = 0) -> FingerprintedBatch:
        """Return `count` documents without a text."""
        prints = Prints(
            np.zeros((count, recipe.limbs), np.uint64),
            np.zeros((count, recipe.sketch_bytes), np.uint8),
            np.zeros(count, np.uint32),
            np.zeros((count, DIGEST_BYTES), np.uint8),
            np.ones(count, np.bool_),
        )
        zeros: Any = (np.zeros(count, kind) for kind in ("u8", "u8", "u8", "u4", "i8", "f8"))
        return cls([b""] * count, prints, *zeros)

    @classmethod
    def join(cls, recipe: Recipe, parts: Sequence[FingerprintedBatch]) -> FingerprintedBatch:
        """Return the documents of all batches in one; it can exceed `BATCH_DOCUMENTS`."""
        if not parts:
            return cls.empty(recipe)
        ids = [identifier for part in parts for identifier in part.ids]
        columns: Any = (
            np.concatenate(column) for column in zip(*(part[2:] for part in parts), strict=True)
        )
        return cls(ids, Prints.joined([part.prints for part in parts]), *columns)

    def take(self, rows: NDArray[np.intp]) -> FingerprintedBatch:
        """Return the documents of these rows, in the order of `rows`."""
        ids = [self.ids[row] for row in rows.tolist()]
        columns: Any = (column[rows] for column in self[2:])
        return FingerprintedBatch(ids, self.prints.of_rows(rows), *columns)


def fingerprint_batches(
    documents: Iterable[OfflineDocument],
    recipe: Recipe,
    fingerprint: Callable[[Sequence[Content]], Prints] | None = None,
) -> Iterator[FingerprintedBatch]:
    """Yield the documents with their fingerprints, in order, in batches. `fingerprint`: computes the
    fingerprints of a batch, with this recipe.
    """
    fingerprint = Fingerprinter(recipe).fingerprint if fingerprint is None else fingerprint
    hasher = SiteHasher(recipe)
    for batch in _split_batches(documents):
        yield FingerprintedBatch(
            [shorten_id(document.id) for document in batch],
            fingerprint([document.text for document in batch]),
            np.fromiter((document.scope for document in batch), np.uint64, len(batch)),
            hasher.hash_sites([document.site for document in batch]),
            hasher.hash_titles([document.title for document in batch]),
            np.fromiter((len(document.text) for document in batch), np.uint32, len(batch)),
            np.fromiter((document.time_ms for document in batch), np.int64, len(batch)),
            np.fromiter((document.rank for document in batch), np.float64, len(batch)),
        )


def _split_batches(documents: Iterable[OfflineDocument]) -> Iterator[list[OfflineDocument]]:
    batch, size = list[OfflineDocument](), 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if len(batch) == BATCH_DOCUMENTS or size > _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def judge_documents(
    documents: Iterable[OfflineDocument],
    recipe: Recipe,
    plan: Plan,
    fingerprint: Callable[[Sequence[Content]], Prints] | None = None,
    *,
    is_ranked: bool = False,
) -> Iterator[Judged]:
    """Yield a verdict for each document, in order. `fingerprint`: as for `fingerprint_batches`.

    Documents are read lazily, one batch at a time; with `is_ranked` all are read first, and judged
    as `judge_ranked` does.

    Raises:
        ConfigurationError: the plan compares more bits than the recipe computes.
    """
    index = open_index(MemoryStore(), recipe, plan)
    judge = judge_ranked if is_ranked else judge_batches
    yield from judge(fingerprint_batches(documents, recipe, fingerprint), recipe, index)


def judge_batches(
    batches: Iterable[FingerprintedBatch],
    recipe: Recipe,
    index: LogIndex,
    *,
    run_id: bytes = NO_TOPIC_ID,
    first_number: int = 0,
    settled_below: Callable[[], int] | None = None,
) -> Iterator[Judged]:
    """Yield a verdict for each document as `judge_documents` does, from fingerprints.

    `run_id`: 16 bytes that identify the run; kept documents of other runs have no number.
    `first_number`: the number of the first document. `settled_below`: returns a number. Documents
    below it will not be judged again; the index keeps the verdicts of all others, to repeat them.
    """
    for batch in batches:
        first_open = first_number if settled_below is None else settled_below()
        numbering = Numbering(first_number, first_open, run_id)
        hex_digits = format_prints(batch.prints.prints, recipe.width)
        for row, judgement in enumerate(judge_prints(index, recipe, batch, numbering)):
            yield _to_judged(
                first_number + row, batch.ids[row], judgement, hex_digits[row].decode(), run_id
            )
        first_number += len(batch.ids)


def judge_ranked(
    batches: Iterable[FingerprintedBatch], recipe: Recipe, index: LogIndex
) -> list[Judged]:
    """Judge the documents with the highest rank first, and return the verdicts in the order of the
    documents.

    Documents of equal rank are judged in their order. All fingerprints are in memory.
    """
    documents = FingerprintedBatch.join(recipe, list(batches))
    order = np.argsort(-documents.ranks, kind="stable")
    parts = (
        documents.take(order[first : first + BATCH_DOCUMENTS])
        for first in range(0, len(order), BATCH_DOCUMENTS)
    )
    numbers = order.tolist()
    verdicts: list[Judged | None] = [None] * len(numbers)
    for judged in judge_batches(parts, recipe, index):
        kept_number = None if judged.kept_number is None else numbers[judged.kept_number]
        number, sibling = numbers[judged.number], judged.sibling
        if sibling is not None and sibling.number is not None:
            sibling = sibling._replace(number=numbers[sibling.number])
        verdicts[number] = replace(judged, number=number, kept_number=kept_number, sibling=sibling)
    return [judged for judged in verdicts if judged is not None]


class Numbering(NamedTuple):
    """The numbers of a batch's documents: `first` is the number of the first one; no document below
    `first_open` will be judged again; `run_id` as for `judge_batches`.
    """

    first: int
    first_open: int
    run_id: bytes = NO_TOPIC_ID


def judge_prints(
    index: LogIndex, recipe: Recipe, batch: FingerprintedBatch, numbering: Numbering
) -> list[Judgement | None]:
    """Judge documents in order and return their judgements, None for a document without a text."""
    rows = np.flatnonzero(~batch.prints.empty)
    judgements: list[Judgement | None] = [None] * len(batch.ids)
    lengths = [len(batch.ids[row]) for row in rows.tolist()]
    for count in records.split_sizes(lengths, 64 * recipe.limbs, recipe.sketch_bytes, 1):
        part, rows = rows[:count], rows[count:]
        raw = apply_record(index, records.encode_batch(_log_record(recipe, batch, part, numbering)))
        answer = answers.decode(raw, "An answer of the index")
        if not isinstance(answer, answers.LogAnswer):
            raise InvariantError(f"The index did not judge a batch: {answer!r}.")
        for row, judgement in zip(part.tolist(), answer.judgements, strict=True):
            judgements[row] = judgement
    return judgements


def _to_judged(
    number: int,
    identifier: bytes,
    judgement: Judgement | None,
    fingerprint: str,
    run_id: bytes,
) -> Judged:
    if judgement is None:
        return Judged(number, identifier, Reason.EMPTY, None)
    if judgement.of is None:
        return Judged(number, identifier, judgement.reason, fingerprint)
    position = judgement.of.position
    kept_number = position.offset if position.topic_id == run_id else None
    if judgement.sibling is not None:
        sibling = Sibling(kept_number, judgement.of.id, judgement.text_similarity or 0.0)
        return Judged(number, identifier, judgement.reason, fingerprint, sibling=sibling)
    return Judged(
        number,
        identifier,
        judgement.reason,
        fingerprint,
        judgement.distance,
        kept_number,
        judgement.of.id,
        judgement.text_similarity,
    )


def _log_record(
    recipe: Recipe,
    batch: FingerprintedBatch,
    rows: NDArray[np.intp],
    numbering: Numbering,
) -> records.Batch:
    """Return the log record with these rows of a batch."""
    prints = batch.prints
    count = len(rows)
    # If a position is judged again, this digest shows whether it has the same document.
    values = [
        hashlib.blake2b(digest.tobytes(), digest_size=8).digest() for digest in prints.digests[rows]
    ]
    return records.Batch(
        recipe=recipe.id,
        mode=Mode.ENFORCE,
        nonce=_NONCE,
        number=numbering.first + int(rows[0]),
        # The number replaces a worker's committed offset: the index drops verdicts below it.
        sources=(records.Source(_TOPIC, numbering.run_id, 0, 0, numbering.first_open),),
        source=np.zeros(count, np.uint16),
        offset=rows.astype(np.int64) + numbering.first,
        value_digest=np.frombuffer(b"".join(values), "<u8").astype(np.uint64),
        text_digest=prints.digests[rows],
        prints=prints.prints[rows],
        sketches=prints.sketches[rows],
        features=prints.features[rows],
        scope=batch.scopes[rows],
        site=batch.sites[rows],
        title=batch.titles[rows],
        time_ms=np.zeros(count, np.int64),
        ids=tuple(batch.ids[row] for row in rows.tolist()),
    )
