"""The filter without Kafka: documents in, verdicts out, through the very same fingerprints, log
records and index.

Invariants: the verdicts are those of a log that holds the same documents in the same order, with
one partition; nothing is kept on disk, unless an index on disk is given; memory grows with the
representatives (their prints and ids), never with the texts. In an index that stays, a document of
one run judged again gets its first verdict, as a redelivered record does.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.arguments import checked
from stream_dedup.domain.document import (
    DIGEST_BYTES,
    NO_TOPIC_ID,
    NONCE_BYTES,
    Mode,
    Reason,
    Verdict,
    shorten_id,
)
from stream_dedup.domain.errors import ConfigurationError, InvariantError
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
from stream_dedup.index.volume.contract import Store
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.log import answers, records

BATCH_DOCUMENTS = records.DOCUMENTS_MAX
_BATCH_CHARACTERS = 16 << 20
LIBRARY_LOG, _TOPIC = "a library's index", "library"
_NONCE = bytes(NONCE_BYTES)


@dataclass(frozen=True, slots=True)
class OfflineDocument:
    """A document to judge: a text, or the vector of a recipe that takes vectors.

    `scope`: judged only against documents with the same one; 0 is the common scope. `site` and
    `title`: empty if unknown. `time_ms`: 0 if unknown. `rank`: see `judge_ranked`.
    """

    id: bytes
    text: Content
    scope: int = 0
    rank: float = 0.0
    site: str = ""
    title: str = ""
    time_ms: int = 0


class Sibling(NamedTuple):
    """A page of the same site that is alike, but not enough to be the original: its `number`, if it
    is of this run, `id` and similarity, 0 to 1.
    """

    number: int | None
    id: bytes
    similarity: float


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict. `number` counts the documents from 0; of a duplicate, `of_number` and `of_id` name
    the kept one.

    `similarity`, 0 to 1: 1 for the same text, None for a near one without sketches. `sibling`: the
    earliest similar page of its site, if only site or title kept it.
    """

    number: int
    id: bytes
    reason: Reason
    fingerprint: str | None
    distance: int | None = None
    of_number: int | None = None
    of_id: bytes | None = None
    similarity: float | None = None
    sibling: Sibling | None = None

    @property
    def verdict(self) -> Verdict:
        """Unique or duplicate."""
        verdict = self.reason.verdict
        if verdict is None:
            raise InvariantError(
                f"Document {self.number} was answered {self.reason.label}, which is no outcome."
            )
        return verdict


def is_worth_a_remark(count: int, documents: int) -> bool:
    """Return whether what was seen in some documents is more than a hundredth of all."""
    return 100 * count > documents


@dataclass(slots=True)
class RepeatedIds:
    """How many documents were judged as another version of a document of another file, because
    both have the same id, which is no address.
    """

    _documents: int = 0
    _files: list[str] = field(default_factory=list)
    _firsts: list[int] = field(default_factory=list)
    _repeated: int = 0
    _first: bytes = b""

    def begin(self, number: int) -> None:
        """Begin with the document of this number; the files of those before are unknown."""
        self._documents = number
        self._files, self._firsts = [], []

    def read(self, file: str) -> None:
        """Note the next document, of this file."""
        if not self._files or self._files[-1] != file:
            self._files.append(file)
            self._firsts.append(self._documents)
        self._documents += 1

    def count(self, judged: Judged) -> None:
        """Count a verdict on a document that was read."""
        if judged.of_number is None or judged.id != judged.of_id or site_of(judged.id):
            return
        if self._file_of(judged.of_number) not in ("", self._file_of(judged.number)):
            self._repeated += 1
            self._first = self._first or judged.id

    def _file_of(self, number: int) -> str:
        place = bisect_right(self._firsts, number)
        return self._files[place - 1] if place else ""

    def note(self) -> str:
        """Return a sentence about them; empty if there are none."""
        if not self._repeated:
            return ""
        name = printable(self._first, 60)
        if self._repeated == 1:
            found = f"1 document has the id of a document in another file, {name!r}, so it counts as its"
        else:
            found = (
                f"{self._repeated:,} documents have the id of a document in another file, the first "
                f"{name!r}, so they count as their"
            )
        return (
            f"{found} next version{'s'[: self._repeated != 1]}: unchanged, returned or revised. If "
            "ids are only unique within a file, name another field (STREAM_DEDUP_ID_FIELD, "
            "--id-field, id=)."
        )


def short_texts_note(short: int, documents: int, floor: int) -> str:
    """Return a sentence about texts below the floor; empty if they are few or at most a tenth of all."""
    if documents < 20 or 10 * short <= documents:
        return ""
    return (
        f"{short:,} of {documents:,} texts have fewer than {floor} features (words and pairs of "
        "words), so they were only compared for equality. A lower floor compares them too "
        "(STREAM_DEDUP_FLOOR, --floor, Recipe(floor=))."
    )


def plan_of(plan: Plan | str | None, recipe: Recipe, **similarities: float | str | None) -> Plan:
    """Return the plan to judge by: as it is given or written, or that of those who name none.

    `similarities`: `similarity`, `unsure`, `same_site` and `other_title`, shares from 0 to 1 in
    hundredths that take the place of the plan's own.

    Raises:
        ConfigurationError: there is no such plan or similarity, or the plan compares no sketches.
        InputError: what is given is no plan.
    """
    if plan is None:
        chosen = plan_for(recipe.width, has_sketches=bool(recipe.sketch_bytes))
    elif isinstance(plan, str):
        chosen = parse_plan(plan)
    else:
        chosen = checked(plan, Plan, "A plan", "a Plan, or written as one, such as 'bands'")
    return chosen.with_similarity(
        **{
            name: parse_similarity(str(share))
            for name, share in similarities.items()
            if share is not None
        }
    )


def check_widths(recipe: Recipe, plan: Plan) -> None:
    """Raise ConfigurationError if the plan judges more than the recipe makes: more bits, or
    sketches.
    """
    if plan.width > recipe.width:
        raise ConfigurationError(
            f"The plan {plan.id} judges {plan.width} bits, and the recipe {recipe.id} makes "
            f"{recipe.width}; choose a plan of "
            "at most that width, such as classic for 64 bits."
        )
    if plan.needs_sketch and not recipe.sketch_bytes:
        raise ConfigurationError(
            f"The plan {plan.name} compares sketches, and the recipe {recipe.id} makes none; "
            "choose a plan without them, "
            "such as blocks."
        )


def store_at(path: str | os.PathLike[str] | None) -> Store:
    """Return a store on a path, or in memory if there is none.

    Raises:
        StoreError: it cannot be opened, or another process has it open.
    """
    if path is None:
        return MemoryStore()
    from stream_dedup.index.volume.store import RocksStore  # noqa: PLC0415 - an index in memory needs no RocksDB

    return RocksStore(os.fspath(path))


def open_index(
    store: Store,
    recipe: Recipe,
    plan: Plan | str | None = None,
    **similarities: float | str | None,
) -> LogIndex:
    """Return the index on a store: begun there with this recipe and plan, or the one that is there,
    if it has that recipe; it judges by another plan from now on if one is asked for.

    `plan` None: what the index has; for a new one the plan of those who name none. `similarities`:
    as `plan_of` takes them.

    Raises:
        ConfigurationError: the index there has another recipe, or belongs to a filter on Kafka; or
        the plan judges more than the recipe makes: more bits, or sketches.
        StoreError: it is damaged.
    """
    index = LogIndex(store)
    index.bind(LIBRARY_LOG)
    if index.declared is not None and index.plan is not None:
        if index.declared.recipe != recipe.id:
            raise ConfigurationError(
                f"The index holds prints of the recipe {index.declared.recipe}, and {recipe.id} "
                "was asked for; open it with "
                "the recipe and the key that began it."
            )
        asked = plan_of(index.plan if plan is None else plan, recipe, **similarities)
        if asked != index.plan:
            check_widths(recipe, asked)
            apply_record(
                index, records.encode_control(records.Control("plan", {"plan": asked.to_fields()}))
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
    """Apply one record and return its answer; nobody waits for it later, so it is not kept."""
    index.answered(index.applied + 1)
    found = index.apply([(index.applied, 0, raw)])
    return found[0][1] if found else None


class PrintedBatch(NamedTuple):
    """Documents as an index takes them, at most `BATCH_DOCUMENTS`: ids, `prints`, one row each,
    `scopes`, hashes of `sites` and `titles`, `lengths` of the texts in characters, `times` in
    milliseconds (0: unknown), and `ranks`, all (n,).
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
    def empty(cls, recipe: Recipe, count: int = 0) -> PrintedBatch:
        """Return documents without a text."""
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
    def joined(cls, recipe: Recipe, parts: Sequence[PrintedBatch]) -> PrintedBatch:
        """Return those of some batches, one after another; they may be more than a batch."""
        if not parts:
            return cls.empty(recipe)
        ids = [one for part in parts for one in part.ids]
        columns: Any = (
            np.concatenate(column) for column in zip(*(part[2:] for part in parts), strict=True)
        )
        return cls(ids, Prints.joined([part.prints for part in parts]), *columns)

    def taken(self, rows: NDArray[np.intp]) -> PrintedBatch:
        """Return some of the documents, in the order of `rows`."""
        ids = [self.ids[row] for row in rows.tolist()]
        columns: Any = (column[rows] for column in self[2:])
        return PrintedBatch(ids, self.prints.of_rows(rows), *columns)


class MakesPrints(Protocol):
    """What fingerprints a batch: a `Fingerprinter`, or what has its prints already."""

    def fingerprint(self, contents: Sequence[Content]) -> Prints:
        """Return one row for each, in their order."""
        ...


def fingerprinted(
    documents: Iterable[OfflineDocument], recipe: Recipe, fingerprinter: MakesPrints | None = None
) -> Iterator[PrintedBatch]:
    """Yield the documents with their prints, in order, a batch at a time; `fingerprinter`: of that
    recipe.
    """
    fingerprinter = Fingerprinter(recipe) if fingerprinter is None else fingerprinter
    hasher = SiteHasher(recipe)
    for batch in _batches(documents):
        yield PrintedBatch(
            [shorten_id(document.id) for document in batch],
            fingerprinter.fingerprint([document.text for document in batch]),
            np.fromiter((document.scope for document in batch), np.uint64, len(batch)),
            hasher.hash_sites([document.site for document in batch]),
            hasher.hash_titles([document.title for document in batch]),
            np.fromiter((len(document.text) for document in batch), np.uint32, len(batch)),
            np.fromiter((document.time_ms for document in batch), np.int64, len(batch)),
            np.fromiter((document.rank for document in batch), np.float64, len(batch)),
        )


def _batches(documents: Iterable[OfflineDocument]) -> Iterator[list[OfflineDocument]]:
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
    fingerprinter: MakesPrints | None = None,
    *,
    index: LogIndex | None = None,
    run: bytes = NO_TOPIC_ID,
    first: int = 0,
    safe: Callable[[], int] | None = None,
) -> Iterator[Judged]:
    """Yield a verdict for each document, in order; documents are taken in as verdicts are taken
    out, a batch at a time.

    `fingerprinter`: of that recipe, made here if it is None. `index`: in memory if it is None.
    `run`, 16 bytes: numbers of documents are those of this run; a kept one of another run is named
    by its id alone. `first`: the number of the first document. `safe`: says up to which number
    nobody will ask again; verdicts on those behind it are kept in the index.

    Raises:
        ConfigurationError: the plan judges more bits than the recipe's prints have.
    """
    index = open_index(MemoryStore(), recipe, plan) if index is None else index
    yield from judge_batches(
        fingerprinted(documents, recipe, fingerprinter),
        recipe,
        index,
        run=run,
        first=first,
        safe=safe,
    )


def judge_batches(
    batches: Iterable[PrintedBatch],
    recipe: Recipe,
    index: LogIndex,
    *,
    run: bytes = NO_TOPIC_ID,
    first: int = 0,
    safe: Callable[[], int] | None = None,
) -> Iterator[Judged]:
    """Do what `judge_documents` does with documents whose prints were made."""
    for batch in batches:
        numbers = first, first if safe is None else safe()
        written = format_prints(batch.prints.prints, recipe.width)
        for row, judgement in enumerate(judge_prints(index, recipe, batch, numbers, run)):
            yield _judged(first + row, batch.ids[row], judgement, written[row].decode(), run)
        first += len(batch.ids)


def judge_ranked(batches: Iterable[PrintedBatch], recipe: Recipe, index: LogIndex) -> list[Judged]:
    """Return the verdicts that documents get if those of a higher rank come first, in the order in
    which they really came.

    Of equal ranks the earlier one is first. Memory holds the prints of all.
    """
    whole = PrintedBatch.joined(recipe, list(batches))
    order = np.argsort(-whole.ranks, kind="stable")
    parts = (
        whole.taken(order[first : first + BATCH_DOCUMENTS])
        for first in range(0, len(order), BATCH_DOCUMENTS)
    )
    numbers = order.tolist()
    found: list[Judged | None] = [None] * len(numbers)
    for judged in judge_batches(parts, recipe, index):
        of = None if judged.of_number is None else numbers[judged.of_number]
        number, sibling = numbers[judged.number], judged.sibling
        if sibling is not None and sibling.number is not None:
            sibling = sibling._replace(number=numbers[sibling.number])
        found[number] = replace(judged, number=number, of_number=of, sibling=sibling)
    return [judged for judged in found if judged is not None]


def judge_prints(
    index: LogIndex,
    recipe: Recipe,
    batch: PrintedBatch,
    numbers: tuple[int, int],
    run: bytes = NO_TOPIC_ID,
) -> list[answers.Judgement | None]:
    """Judge documents in their order; None for one without a text.

    `numbers`: of the first document, and up to which one nobody will ask again. `run`: as
    `judge_documents` takes it.
    """
    rows = np.flatnonzero(~batch.prints.empty)
    found: list[answers.Judgement | None] = [None] * len(batch.ids)
    lengths = [len(batch.ids[row]) for row in rows.tolist()]
    for count in records.split_sizes(lengths, 64 * recipe.limbs, recipe.sketch_bytes, 1):
        part, rows = rows[:count], rows[count:]
        raw = apply_record(
            index, records.encode_batch(_log_record(recipe, batch, part, numbers, run))
        )
        answer = answers.decode(raw, "An answer of the index")
        if not isinstance(answer, answers.LogAnswer):
            raise InvariantError(f"The index did not judge a batch: {answer!r}.")
        for row, judgement in zip(part.tolist(), answer.judgements, strict=True):
            found[row] = judgement
    return found


def _judged(
    number: int,
    identifier: bytes,
    judgement: answers.Judgement | None,
    fingerprint: str,
    run: bytes,
) -> Judged:
    if judgement is None:
        return Judged(number, identifier, Reason.EMPTY, None)
    if judgement.of is None:
        return Judged(number, identifier, judgement.reason, fingerprint)
    place = judgement.of.position
    of_number = place.offset if place.topic_id == run else None
    if judgement.sibling is not None:
        sibling = Sibling(of_number, judgement.of.id, judgement.alike or 0.0)
        return Judged(number, identifier, judgement.reason, fingerprint, sibling=sibling)
    return Judged(
        number,
        identifier,
        judgement.reason,
        fingerprint,
        judgement.distance,
        of_number,
        judgement.of.id,
        judgement.alike,
    )


def _log_record(
    recipe: Recipe,
    batch: PrintedBatch,
    rows: NDArray[np.intp],
    numbers: tuple[int, int],
    run: bytes,
) -> records.Batch:
    prints = batch.prints
    first, safe = numbers
    count = len(rows)
    # Tells a document that is given again from another one at the same position.
    values = [
        hashlib.blake2b(digest.tobytes(), digest_size=8).digest() for digest in prints.digests[rows]
    ]
    return records.Batch(
        recipe=recipe.id,
        mode=Mode.ENFORCE,
        nonce=_NONCE,
        number=first + int(rows[0]),
        # As a worker says what it committed: the index keeps the verdicts behind that, and no
        # others.
        sources=(records.Source(_TOPIC, run, 0, 0, safe),),
        source=np.zeros(count, np.uint16),
        offset=rows.astype(np.int64) + first,
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
