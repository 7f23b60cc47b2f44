"""The core for programs of their own: fingerprints, and an index in memory or on a path, without Kafka.

Behind these names are the very same recipe, log records and index as behind the roles: each call of `add` is a record of a
log that is not kept, so verdicts are those of a filter that saw the same documents in the same order.

Invariants: an index has one recipe and one plan for as long as it lives; an `Answer` given out is durable if the index is on
a path; a `Print` names its recipe, and prints of two recipes are never compared.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Any

import numpy as np

from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.ground.document import NO_TOPIC_ID, NONCE_BYTES, Mode, Reason, Verdict, shorten_id
from stream_dedup.ground.errors import ConfigurationError, InputError, InvariantError
from stream_dedup.ground.plan import Plan
from stream_dedup.ground.sketch import share
from stream_dedup.ground.sketch import similarity as sketch_similarity
from stream_dedup.index.contract import Store
from stream_dedup.index.index import LogIndex
from stream_dedup.index.memory import MemoryStore
from stream_dedup.inputs.fields import scope_number
from stream_dedup.local.offline import plan_of
from stream_dedup.log import answers, records

_LOG = "a library's index"
_TOPIC = "library"
_NONCE = bytes(NONCE_BYTES)
_LIMB_BITS = 64


@dataclass(frozen=True, slots=True)
class Print:
    """The fingerprint of a text: `hex` of the recipe's width, `features` distinct ones, `digest` of the normalised text.

    Everything that an index needs to know of a text, in some 170 bytes; it may be stored and given back later.
    """

    recipe: str
    hex: str
    features: int
    digest: bytes = field(repr=False)
    is_empty: bool = False
    sketch: bytes = field(default=b"", repr=False)

    def distance(self, other: Print) -> int:
        """Return in how many bits two prints differ.

        Raises:
            ConfigurationError: they are of two recipes.
        """
        self._check(other)
        return (int(self.hex, 16) ^ int(other.hex, 16)).bit_count()

    def similarity(self, other: Print) -> float:
        """Return how alike two texts are, 0 to 1: as their sketches say.

        It estimates the Jaccard similarity of their runs of three words, with a standard error of at most 0.045.

        Raises:
            ConfigurationError: they are of two recipes, or of a recipe without sketches.
        """
        self._check(other)
        if not self.sketch or not other.sketch:
            raise ConfigurationError(f"The recipe {self.recipe} makes no sketches, so only the distance of prints is known.")
        return sketch_similarity(self.sketch, other.sketch)

    def _check(self, other: Print) -> None:
        if self.recipe != other.recipe:
            raise ConfigurationError(
                f"A print of the recipe {self.recipe} and one of {other.recipe} cannot be compared; make both with one recipe."
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """What an index said of a document: `reason` as in the header `dedup.reason`; `of` and `distance` of duplicates only.

    `similarity`, 0 to 1, is told of what is near by a recipe with sketches.
    """

    id: str
    reason: str
    is_duplicate: bool
    distance: int | None
    of: str | None
    print: Print
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A kept document within reach of what was asked for, `distance` bits away.

    `similarity`: how alike it is, 0 to 1, by a recipe with sketches; None by another.
    """

    id: str
    distance: int
    similarity: float | None = None


def fingerprint(text: str, recipe: Recipe | None = None) -> Print:
    """Return the fingerprint of a text, by the recipe `words` if none is given.

    The first call takes a second or two, in which the compiled kernels are loaded.
    """
    return _prints([text], recipe or Recipe())[0]


class Index:
    """Near-duplicates among what was added, in memory or on a path. May be shared by threads; one process a path.

    A document that is a duplicate is not kept: later ones are compared with the one it names.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        recipe: Recipe | None = None,
        plan: Plan | str | None = None,
        similarity: float | None = None,
    ) -> None:
        """Open the index at `path`, or begin one there; without a path it lives in memory.

        `recipe` None is `words` with the public demonstration key; `plan` None is what the index has; for a new one
        `bands`, or `wide` if the recipe makes no sketches. `similarity`: from which share on, 0 to 1 in hundredths, two texts
        are near, in place of the plan's own.

        Raises:
            ConfigurationError: the index there has another recipe, plan or similarity, or belongs to a filter on Kafka; or the
                plan compares no sketches, and a similarity is given.
            StoreError: it is damaged, or another process has it open.
        """
        self.path = None if path is None else os.fspath(path)
        self.recipe = recipe or Recipe()
        self._lock = threading.Lock()
        self._store = _open(path)
        try:
            self._index = LogIndex(self._store)
            self._index.bind(_LOG)
            self._begin(plan, similarity)
        except BaseException:
            self._store.close()
            raise

    @property
    def plan(self) -> Plan:
        """What counts as near."""
        plan = self._index.plan
        if plan is None:
            raise InvariantError("The index was begun, and no plan is in force.")
        return plan

    def add(self, identifier: str, content: str | Print, *, scope: str | None = None) -> Answer:
        """Judge a document, and keep it if it is unique. `scope`: only documents of the same one are compared.

        Raises:
            InputError: the id is no text, or the content neither a text nor a `Print`.
            ConfigurationError: the print is of another recipe.
        """
        number = _scope(scope)
        pair = _pair((identifier, content))
        prints = self._prints([pair[1]])
        with self._lock:
            return self._judge([pair[0]], prints, number)[0]

    def add_many(self, documents: Iterable[tuple[str, str | Print]], *, scope: str | None = None) -> list[Answer]:
        """Judge documents in their order, each also against those before it; a thousand at a time, which is much faster.

        All are read and fingerprinted before the first is judged, so one that cannot be used leaves the index as it was.

        Raises:
            InputError: a row is no pair of an id and a text or `Print`; the sentence names the first one, counted from 0.
            ConfigurationError: a print is of another recipe.
        """
        number = _scope(scope)
        names: list[str] = []
        prints: list[Print] = []
        source = iter(documents)
        while batch := list(islice(source, records.DOCUMENTS_MAX)):
            pairs = [_pair(document, f"Row {row}: ") for row, document in enumerate(batch, len(names))]
            prints += self._prints([content for _, content in pairs], len(names))
            names += [identifier for identifier, _ in pairs]
        found: list[Answer] = []
        for first in range(0, len(names), records.DOCUMENTS_MAX):
            part = slice(first, first + records.DOCUMENTS_MAX)
            with self._lock:
                found += self._judge(names[part], prints[part], number)
        return found

    def add_columns(self, ids: object, contents: object, *, scope: str | None = None) -> list[Answer]:
        """Judge the rows of two columns, as `add_many` does: of pandas, polars, Arrow or NumPy, or lists.

        Raises:
            InputError: they are no columns, or not equally long; or a row cannot be used, such as one with a missing value.
            ConfigurationError: a print is of another recipe.
        """
        names, texts = _column(ids, "ids"), _column(contents, "contents")
        if len(names) != len(texts):
            raise InputError(f"The columns are not equally long: {len(names):,} ids and {len(texts):,} contents.")
        return self.add_many(zip(names, texts, strict=True), scope=scope)

    def query(self, content: str | Print, *, scope: str | None = None, limit: int = 100) -> list[Match]:
        """Return the kept documents near a text or print, the one with the same text first, then by distance; keep nothing."""
        (wanted,) = self._prints([content])
        if wanted.is_empty:
            return []
        similar = self._index.similar(_limbs(wanted), wanted.digest, wanted.features, _scope(scope), limit, wanted.sketch)
        return [
            Match(entry.id.decode("utf-8", "replace"), distance, _similarity(wanted.sketch, entry.sketch))
            for distance, entry in similar.found
        ]

    def __repr__(self) -> str:
        """Say how many documents are kept, where, and by which recipe and plan."""
        where = "in memory" if self.path is None else f"at {self.path}"
        return f"<Index of {len(self):,} documents {where}, recipe {self.recipe.id}, plan {self.plan.name}>"

    def __len__(self) -> int:
        """How many documents are kept."""
        figures = self._index.statistics()
        return figures["entries"] - figures["removed"]

    def close(self) -> None:
        """Close it; everything that was answered is on the path already."""
        with self._lock:
            self._store.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _begin(self, wanted: Plan | str | None, similarity: float | None) -> None:
        """Declare recipe and plan in a new index; hold them against those of an old one."""
        declared = self._index.declared
        if declared is None:
            plan = plan_of(wanted, similarity, self.recipe)
            limbs = -(-self.recipe.width // _LIMB_BITS)
            if plan.width > limbs * _LIMB_BITS:
                raise ConfigurationError(
                    f"The plan {plan.name} judges {plan.width} bits, and the recipe {self.recipe.id} makes "
                    f"{self.recipe.width}; choose a plan of at most that width, such as classic for 64."
                )
            if plan.needs_sketch and not self.recipe.sketch_bytes:
                raise ConfigurationError(
                    f"The plan {plan.name} compares sketches, and the recipe {self.recipe.id} makes none; choose a plan "
                    "without them, such as wide."
                )
            fields = {
                "recipe": self.recipe.id,
                "width": limbs * _LIMB_BITS,
                "floor": self.recipe.floor,
                "plan": plan.to_fields(),
                "group": _TOPIC,
                "mode": int(Mode.ENFORCE),
            }
            self._apply(records.encode_control(records.Control("declare", fields)))
            return
        if declared.recipe != self.recipe.id:
            raise ConfigurationError(
                f"The index holds prints of the recipe {declared.recipe}, and {self.recipe.id} was asked for; open it with the "
                "recipe and the key that began it."
            )
        asked = plan_of(wanted or self.plan, similarity, self.recipe)
        if asked != self.plan:
            raise ConfigurationError(
                f"The index judges by the plan {self.plan.name}, and {asked.name} was asked for; open it without a plan and a "
                "similarity, or begin another index."
            )

    def _prints(self, contents: Sequence[str | Print], first_row: int | None = None) -> list[Print]:
        """Return the prints of texts and prints; `first_row`: how the caller counts the first of many."""
        made = iter(_prints([content for content in contents if isinstance(content, str)], self.recipe))
        found = [next(made) if isinstance(content, str) else content for content in contents]
        for place, one in enumerate(found):
            where = "" if first_row is None else f"Row {first_row + place}: "
            if not isinstance(one, Print):
                raise InputError(f"{where}A text or a Print is needed, and a {type(one).__name__} was given.")
            if one.recipe != self.recipe.id:
                raise ConfigurationError(
                    f"{where}The index has the recipe {self.recipe.id}, and a print of {one.recipe} was given; make it with "
                    "the recipe of the index."
                )
            if len(one.sketch) != self.recipe.sketch_bytes:
                raise InputError(
                    f"{where}A print of the recipe {one.recipe} has a sketch of {self.recipe.sketch_bytes} bytes, and one of "
                    f"{len(one.sketch)} was given; make the print anew."
                )
        return found

    def _judge(self, names: Sequence[str], prints: Sequence[Print], scope: int) -> list[Answer]:
        rows = [row for row, one in enumerate(prints) if not one.is_empty]
        ids = [shorten_id(name.encode("utf-8", "replace")) for name in names]
        judged: dict[int, answers.Judgement] = {}
        start = 0
        width = -(-self.recipe.width // _LIMB_BITS) * _LIMB_BITS
        for count in records.split_sizes([len(ids[row]) for row in rows], width, self.recipe.sketch_bytes, 1):
            part = rows[start : start + count]
            start += count
            answer = answers.decode(self._apply(self._record(part, ids, prints, scope)), "An answer of the index")
            if not isinstance(answer, answers.LogAnswer):
                raise InvariantError(f"The index did not judge a batch: {answer!r}.")
            judged.update(zip(part, answer.judgements, strict=True))
        return [_answer(name, prints[row], judged.get(row)) for row, name in enumerate(names)]

    def _record(self, rows: Sequence[int], ids: Sequence[bytes], prints: Sequence[Print], scope: int) -> bytes:
        count = len(rows)
        # Every log record has as many places as a record may have documents, so positions only grow, also over restarts.
        first = self._index.applied * records.DOCUMENTS_MAX
        chosen = [prints[row] for row in rows]
        # Tells a redelivery from another document at the same position; here nothing is delivered twice.
        digests = [hashlib.blake2b(one.digest, digest_size=8).digest() for one in chosen]
        return records.encode_batch(
            records.Batch(
                recipe=self.recipe.id,
                mode=Mode.ENFORCE,
                nonce=_NONCE,
                number=self._index.applied,
                sources=(records.Source(_TOPIC, NO_TOPIC_ID, 0, 0, first),),
                source=np.zeros(count, np.uint16),
                offset=np.arange(first, first + count, dtype=np.int64),
                value_digest=np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64),
                text_digest=np.frombuffer(b"".join(one.digest for one in chosen), np.uint8).reshape(count, -1),
                prints=np.array([_limbs(one) for one in chosen], np.uint64),
                sketches=np.frombuffer(b"".join(one.sketch for one in chosen), np.uint8).reshape(
                    count, self.recipe.sketch_bytes
                ),
                features=np.array([one.features for one in chosen], np.uint32),
                scope=np.full(count, scope, np.uint64),
                time_ms=np.zeros(count, np.int64),
                ids=tuple(ids[row] for row in rows),
            )
        )

    def _apply(self, raw: bytes) -> bytes | None:
        """Apply one record; nobody waits for its answer later, so it is not kept."""
        offset = self._index.applied
        self._index.answered(offset + 1)
        found = self._index.apply([(offset, 0, raw)])
        return found[0][1] if found else None


def _open(path: str | os.PathLike[str] | None) -> Store:
    if path is None:
        return MemoryStore()
    from stream_dedup.index.store import RocksStore  # noqa: PLC0415 - an index in memory needs no RocksDB

    return RocksStore(os.fspath(path))


@functools.lru_cache(maxsize=8)
def _fingerprinter(recipe: Recipe) -> Fingerprinter:
    return Fingerprinter(recipe)


def _prints(texts: Sequence[str], recipe: Recipe) -> list[Print]:
    if not texts:
        return []
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"A text is needed, and a {type(text).__name__} was given.")
    made = _fingerprinter(recipe).fingerprint(texts)
    digits = -(-recipe.width // 4)
    found = []
    for row in range(len(texts)):
        number = sum(word << _LIMB_BITS * place for place, word in enumerate(made.prints[row].tolist()))
        found.append(
            Print(
                recipe.id,
                f"{number:0{digits}x}",
                int(made.features[row]),
                made.digests[row].tobytes(),
                bool(made.empty[row]),
                made.sketches[row].tobytes(),
            )
        )
    return found


def _limbs(one: Print) -> list[int]:
    """Return a print as the index takes it: limbs of 64 bits, the low one first."""
    number = int(one.hex, 16)
    count = -(-len(one.hex) * 4 // _LIMB_BITS)
    return [number >> _LIMB_BITS * place & (1 << _LIMB_BITS) - 1 for place in range(count)]


def _column(values: object, what: str) -> list[Any]:
    """Return a column as a list; each library has a method for that, by a name of its own."""
    for name in ("to_pylist", "to_list", "tolist"):
        if callable(as_list := getattr(values, name, None)):
            return list(as_list())
    if isinstance(values, list | tuple):
        return list(values)
    raise InputError(f"The {what} must be a column or a list, and a {type(values).__name__} was given.")


def _pair(document: object, where: str = "") -> tuple[str, str | Print]:
    """Return a document's id and content if they are of the kinds that are needed."""
    if not isinstance(document, tuple | list) or len(document) != 2:
        raise InputError(f"{where}A pair of an id and a text or Print is needed, and a {type(document).__name__} was given.")
    identifier, content = document
    if not isinstance(identifier, str):
        raise InputError(f"{where}An id must be a text, and a {type(identifier).__name__} was given.")
    if not isinstance(content, str | Print):
        raise InputError(f"{where}A text or a Print is needed, and a {type(content).__name__} was given.")
    return identifier, content


def _scope(name: str | None) -> int:
    if name is not None and not isinstance(name, str):
        raise InputError(f"A scope must be a text or None, and a {type(name).__name__} was given.")
    return 0 if name is None else scope_number(name)


def _similarity(one: bytes, other: bytes) -> float | None:
    return sketch_similarity(one, other) if one and other else None


def _answer(name: str, of_text: Print, judgement: answers.Judgement | None) -> Answer:
    if judgement is None:
        return Answer(name, Reason.EMPTY.label, False, None, None, of_text)
    of = None if judgement.of is None else judgement.of.id.decode("utf-8", "replace")
    is_duplicate = judgement.reason.verdict is Verdict.DUPLICATE
    distance = judgement.distance if is_duplicate else None
    return Answer(name, judgement.reason.label, is_duplicate, distance, of, of_text, share(judgement.similarity))
