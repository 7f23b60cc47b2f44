"""The public API without Kafka: fingerprints, and an index in memory or on a path.

It uses the same recipe, log records and index as the roles: each call of `add` applies a record of
a log that is not stored, so its verdicts equal those of a filter that reads the same documents in
the same order.

Invariants: the recipe of an index never changes; an `Answer` that was returned is durable if the
index is on a path; a `Print` names its recipe, and prints of two recipes are never compared.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from numbers import Integral
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.argument_types import checked, given_kind
from stream_dedup.domain.document import DIGEST_BYTES, DeadLetter, Reason, Verdict, shorten_id
from stream_dedup.domain.errors import ConfigurationError, InputError, InvariantError, StoreError
from stream_dedup.domain.hosts import named_site, site_of
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.printable import counted
from stream_dedup.domain.sketch import SKETCH_BYTES, per_cent
from stream_dedup.domain.sketch import similarity as sketch_similarity
from stream_dedup.files.offline import (
    FingerprintedBatch,
    apply_record,
    judge_prints,
    open_index,
    open_store,
)
from stream_dedup.files.rows import column_of, is_table, rows_in
from stream_dedup.fingerprinting import (
    Content,
    Fingerprinter,
    Prints,
    Recipe,
    SiteHasher,
    as_recipe,
    as_vector,
    format_prints,
)
from stream_dedup.index.index import LogIndex
from stream_dedup.index.look_up import Query
from stream_dedup.inputs.fields import scope_number
from stream_dedup.inputs.html import Pages
from stream_dedup.inputs.sources import RawDocument
from stream_dedup.log import records
from stream_dedup.log.schema import Judgement

_LIMB_BITS = 64
_HEX = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True, slots=True)
class Print:
    """The fingerprint of a text: `hex` digits of the recipe's width, the number of distinct
    `features`, and the `digest` of the normalised text.

    It is all that an index needs of a text, about 170 bytes; store it and pass it to `add` later.
    """

    recipe: str
    hex: str
    features: int
    digest: bytes = field(repr=False)
    is_empty: bool = False
    sketch: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        is_valid = (
            isinstance(self.recipe, str)
            and isinstance(self.hex, str)
            and _HEX.fullmatch(self.hex) is not None
            and isinstance(self.features, Integral)
            and 0 <= self.features < 1 << 32
            and isinstance(self.digest, bytes)
            and len(self.digest) == DIGEST_BYTES
            and isinstance(self.sketch, bytes)
            and len(self.sketch) in (0, SKETCH_BYTES)
        )
        if not is_valid:
            raise InputError(
                "A Print must have the id of its recipe, hexadecimal digits, a number of features, a "
                f"digest of {DIGEST_BYTES} bytes and a sketch of {SKETCH_BYTES} or 0 bytes; this one "
                f"is invalid: {self!r:.200}, {self.digest!r:.80}, {self.sketch!r:.80}."
            )

    def distance(self, other: Print) -> int:
        """Return the number of bits in which two prints differ.

        Raises:
            ConfigurationError: they are of two recipes.
        """
        self._check(other)
        return (int(self.hex, 16) ^ int(other.hex, 16)).bit_count()

    def similarity(self, other: Print) -> float:
        """Return the similarity of two texts, from 0 to 1, estimated from their sketches.

        It estimates the Jaccard similarity of their runs of three words, with a standard error of
        at most 0.045.

        Raises:
            ConfigurationError: they are of two recipes, or of a recipe without sketches.
        """
        self._check(other)
        if not self.sketch or not other.sketch:
            raise ConfigurationError(
                f"Prints of the recipe {self.recipe} have no sketches, so only their distance is "
                "known."
            )
        return sketch_similarity(self.sketch, other.sketch)

    def _check(self, other: Print) -> None:
        if checked(other, Print, "The other print", "a Print").recipe != self.recipe:
            raise ConfigurationError(
                f"A print of the recipe {self.recipe} and one of {other.recipe} cannot be "
                "compared; make both with one recipe."
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict on a document: `reason` as in the header `dedup.reason`; `of` and `distance` are
    set for duplicates only.

    `similarity`: from 0 to 1; 1 for the same text, None for a near text without sketches.
    `sibling` and `sibling_similarity`: the earliest similar page of its site, if the document was
    kept only because of its site or title.
    """

    id: str
    reason: str
    is_duplicate: bool
    distance: int | None
    of: str | None
    print: Print
    similarity: float | None = None
    sibling: str | None = None
    sibling_similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A kept document that is similar to a text; its fingerprint differs in `distance` bits.

    `similarity`: from 0 to 1, or None without sketches. `is_copy`: whether a document with that
    text, site and title would be a duplicate of it; `why` explains the reason.
    """

    id: str
    distance: int
    similarity: float | None = None
    is_copy: bool = True
    why: str = ""


Vector: TypeAlias = Sequence[float] | NDArray[np.floating[Any]]
"""A row of finite numbers, for recipes that take vectors: `Recipe("vector")`."""
ContentOrPrint: TypeAlias = str | Vector | Print


def page_text(page: str | bytes, encoding: str | None = None) -> str:
    """Return the main text of a web page, which `check` judges; needs `crawl-dedup[html]`.

    `encoding`: for bytes, the encoding that the server named, as in `text/html; charset=...`.

    Raises:
        ConfigurationError: the extractor is not installed.
        InputError: the extractor fails on the page or takes more than two seconds of CPU, or the
        page is not in the encoding that it declares, or is neither a text nor bytes.
    """
    if not isinstance(page, str | bytes):
        raise InputError(f"A page must be a text or bytes, and {given_kind(page)}.")
    raw, charset = (
        (page.encode("utf-8", "replace"), "utf-8") if isinstance(page, str) else (page, encoding)
    )
    outcome = _pages(os.getpid()).read(
        RawDocument("page", raw, "text", charset=charset, is_page=True)
    )
    if isinstance(outcome, DeadLetter):
        raise InputError(outcome.message)
    return outcome.text


@functools.lru_cache(1)
def _pages(_process: int) -> Pages:
    """Return the extractor of this process; a forked child must not use its parent's."""
    return Pages()


def fingerprint(content: str | Vector, recipe: Recipe | str | None = None) -> Print:
    """Return the fingerprint of a text, or of a vector with a recipe that takes vectors.

    `recipe`: a `Recipe`, or its string: `chars:64` is `Recipe("chars:64")`; the default is `words`.
    The first call takes a second or two to load the compiled kernels.

    Raises:
        InputError: the recipe does not take the content.
    """
    return _fingerprint_all([content], as_recipe(recipe))[0]


class Index:
    """Find near-duplicates among added documents, in memory or on a path. Thread-safe; only one
    process can open a path.

    Duplicates are not kept: later documents are compared with the originals.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        recipe: Recipe | str | None = None,
        plan: Plan | str | None = None,
        similarity: float | None = None,
    ) -> None:
        """Open the index at `path`, or create it; without a path it is in memory.

        `recipe` None is `words` with the public demonstration key. `plan` None is the plan of the
        existing index; for a new one `bands`, for recipes without sketches `blocks`, and with 64
        bits `classic`. `similarity`: the threshold of near texts, 0 to 1 in hundredths, in place of
        the plan's: of documents of different or unknown sites, and of pages of one site and title.
        An existing index uses another plan or similarity for later documents only.

        Raises:
            ConfigurationError: the existing index has another recipe, or belongs to a filter on
            Kafka; or the plan compares no sketches, and a similarity is given.
            StoreError: the index is damaged, or another process has it open.
        """
        self.path = None if path is None else _folder(path)
        self.recipe = as_recipe(recipe)
        self._hasher = SiteHasher(self.recipe)
        self._lock = threading.Lock()
        self._store = open_store(path)
        try:
            self._opened: LogIndex | None = open_index(
                self._store, self.recipe, plan, similarity=similarity, unsure=similarity
            )
        except BaseException:
            self._store.close()
            raise

    @property
    def _index(self) -> LogIndex:
        if self._opened is None:
            raise StoreError("This index was closed; open it again.")
        return self._opened

    @property
    def plan(self) -> Plan:
        """The plan in force, which contains the thresholds of near texts."""
        plan = self._index.plan
        if plan is None:
            raise InvariantError("The index has a declaration without a plan.")
        return plan

    def add(
        self,
        identifier: str | int,
        content: ContentOrPrint,
        *,
        scope: str | None = None,
        site: str | None = None,
        title: str | None = None,
    ) -> Answer:
        """Judge a document, and keep it if it is unique. `scope`: only documents of one scope are
        compared.

        `site`: a host, an address or another name; the default is the host of the id, if the id is
        an `http` or `https` address. Pages of one site are copies only at a higher
        similarity, and with different titles at a still higher one.

        Raises:
            InputError: the id is empty, or not a text or whole number; or the content is neither a
            text nor a `Print`.
            ConfigurationError: the print is of another recipe.
        """
        scope_hash = _hash_scope(scope)
        name, content = _as_pair((identifier, content))
        prints = self._prints([content])
        sites, titles = _names_of(site, "site", 1), _names_of(title, "title", 1)
        with self._lock:
            return self._judge([name], prints, scope_hash, sites, titles)[0]

    def add_many(
        self,
        documents: Iterable[tuple[str | int, ContentOrPrint]],
        *,
        scope: str | None = None,
        site: object = None,
        title: object = None,
    ) -> list[Answer]:
        """Judge documents in order, each also against those before it, in batches of a thousand,
        which is much faster than `add`.

        `site`, `title`: as for `add`, one for all documents; or a column or list with one for each.

        All documents are read and fingerprinted before the first is judged, so an invalid one
        leaves the index unchanged.

        Raises:
            InputError: a row is not a pair of an id and a text or `Print`; the message contains the
            number of the first such row, from 0. ConfigurationError: a print is of another recipe.
        """
        scope_hash = _hash_scope(scope)
        names: list[str] = []
        prints: list[Print] = []
        if is_table(documents):
            raise InputError(
                f"Documents must be pairs of an id and a text, and {given_kind(documents)}; pass its "
                "columns to add_columns."
            )
        source = rows_in(documents, "Documents must be pairs of an id and a text or Print")
        while batch := list(islice(source, records.DOCUMENTS_MAX)):
            pairs = [
                _as_pair(document, f"Row {row}: ") for row, document in enumerate(batch, len(names))
            ]
            prints += self._prints([content for _, content in pairs], len(names))
            names += [identifier for identifier, _ in pairs]
        sites = _names_of(site, "site", len(names))
        titles = _names_of(title, "title", len(names))
        answered: list[Answer] = []
        for first in range(0, len(names), records.DOCUMENTS_MAX):
            part = slice(first, first + records.DOCUMENTS_MAX)
            with self._lock:
                answered += self._judge(
                    names[part], prints[part], scope_hash, sites[part], titles[part]
                )
        return answered

    def add_columns(
        self,
        ids: object,
        contents: object,
        *,
        scope: str | None = None,
        site: object = None,
        title: object = None,
    ) -> list[Answer]:
        """Judge the rows of two columns as `add_many` does; a column is a list, or of pandas,
        polars, Arrow or NumPy.

        Raises:
            InputError: an argument is not a column, the columns are not equally long, or a row
            cannot be used, such as one with a missing value. ConfigurationError: a print is of
            another recipe.
        """
        names, texts = column_of(ids, "The ids"), column_of(contents, "The contents")
        if len(names) != len(texts):
            raise InputError(
                f"The columns have different lengths: {len(names):,} ids and {len(texts):,} contents."
            )
        return self.add_many(zip(names, texts, strict=True), scope=scope, site=site, title=title)

    def query(
        self,
        content: ContentOrPrint,
        *,
        scope: str | None = None,
        limit: int = 100,
        site: str | None = None,
        title: str | None = None,
    ) -> list[Match]:
        """Return the kept documents near a text or print, the same text first, then by distance;
        the index does not change.

        `limit`: the largest number of matches. `site`, `title`: as for `add`; the address of a page
        can be its site. All documents that reach the similarity of copies on different sites are
        returned; `Match.is_copy` is false for those that site and title make no copy.
        """
        (wanted,) = self._prints([content])
        (name,), (heading,) = _names_of(site, "site", 1), _names_of(title, "title", 1)
        return self._find_near(wanted, _hash_scope(scope), limit, name, heading)

    def query_many(
        self,
        contents: Iterable[ContentOrPrint],
        *,
        scope: str | None = None,
        limit: int = 100,
        site: object = None,
        title: object = None,
    ) -> list[list[Match]]:
        """Return the matches of `query` for each text or print; all are fingerprinted at once,
        which is much faster.

        `site`, `title`: one for all, or a column or list with one for each.
        """
        scope_hash = _hash_scope(scope)
        contents = column_of(contents, "The contents")
        sites = _names_of(site, "site", len(contents))
        titles = _names_of(title, "title", len(contents))
        rows = zip(self._prints(contents, 0), sites, titles, strict=True)
        return [self._find_near(wanted, scope_hash, limit, *names) for wanted, *names in rows]

    def _find_near(
        self, wanted: Print, scope: int, limit: int, site: str, title: str
    ) -> list[Match]:
        if checked(limit, int, "A limit", "a whole number") < 1:
            raise InputError(f"The limit is {limit}; it must be at least 1.")
        if wanted.is_empty:
            return []
        similar = self._index.similar(
            _limbs(wanted), wanted.digest, wanted.features, scope, limit, wanted.sketch
        )
        site = named_site(site)
        query = Query(wanted.digest, wanted.sketch, self._hasher.origin_of(site, title), site)
        return [
            Match(
                _name(entry.id),
                distance,
                _similarity(wanted.sketch, entry.sketch),
                *query.compare(similar.plan, entry),
            )
            for distance, entry in similar.found
        ]

    def remove(self, identifier: str | int) -> int:
        """Remove the kept documents with an id, and return how many there were.

        Later documents are not compared with them; earlier answers stay valid.
        """
        wanted = _stored(_id_text(identifier))
        with self._lock:
            count = len(self._index.representative_ids([wanted]))
            if count:
                apply_record(
                    self._index,
                    records.encode_control(records.Control("forget", {"ids": [wanted.hex()]})),
                )
        return count

    def __contains__(self, identifier: object) -> bool:
        """Return whether a document with that id is kept; a duplicate is not."""
        try:
            wanted = _stored(_id_text(identifier))
        except InputError:
            return False
        return bool(self._index.representative_ids([wanted]))

    def __iter__(self) -> Iterator[str]:
        """Return the ids of the documents that are kept now, in the order in which they were
        added.
        """
        return map(_name, self._index.representative_ids())

    def __repr__(self) -> str:
        """Describe the index: number of kept documents, path, recipe and plan."""
        where = "in memory" if self.path is None else f"at {self.path}"
        if self._opened is None:
            return f"<Index {where}, closed>"
        return f"<Index of {counted(len(self), 'document')} {where}, recipe {self.recipe.id}, plan {self.plan.name}>"

    def __len__(self) -> int:
        """Return the number of kept documents."""
        figures = self._index.statistics()
        return figures["entries"] - figures["removed"]

    def close(self) -> None:
        """Close the index; all answers that were returned are already durable on the path."""
        with self._lock:
            self._opened = None
            self._store.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prints(
        self, contents: Sequence[ContentOrPrint], first_row: int | None = None
    ) -> list[Print]:
        """Return a print for each text, vector or print; `first_row` is the caller's number of the
        first row.
        """
        made = iter(
            _fingerprint_all(
                [content for content in contents if not isinstance(content, Print)],
                self.recipe,
                first_row,
            )
        )
        prints = [content if isinstance(content, Print) else next(made) for content in contents]
        for row, print_ in enumerate(prints):
            where = "" if first_row is None else f"Row {first_row + row}: "
            if print_.recipe != self.recipe.id:
                raise ConfigurationError(
                    f"{where}The print has the recipe {print_.recipe}, and the index has "
                    f"{self.recipe.id}; make it with the recipe of the index."
                )
            bits = 4 * len(print_.hex)
            if len(print_.sketch) != self.recipe.sketch_bytes or bits != self.recipe.width:
                raise InputError(
                    f"{where}The print has {bits} bits and a sketch of {len(print_.sketch)} bytes; "
                    f"prints of the recipe {print_.recipe} have {self.recipe.width} bits and "
                    f"{self.recipe.sketch_bytes} bytes. Make the print again."
                )
        return prints

    def _judge(
        self,
        names: Sequence[str],
        prints: Sequence[Print],
        scope: int,
        sites: Sequence[str],
        titles: Sequence[str],
    ) -> list[Answer]:
        count = len(prints)
        columns = Prints(
            np.array([_limbs(row) for row in prints], np.uint64),
            np.frombuffer(b"".join(row.sketch for row in prints), np.uint8).reshape(
                count, self.recipe.sketch_bytes
            ),
            np.array([row.features for row in prints], np.uint32),
            np.frombuffer(b"".join(row.digest for row in prints), np.uint8).reshape(count, -1),
            np.array([row.is_empty for row in prints], np.bool_),
        )
        ids = [_stored(name) for name in names]
        # Each log record reserves as many positions as a record can have documents, so positions
        # only grow, also over restarts.
        first = self._index.applied * records.DOCUMENTS_MAX
        batch = FingerprintedBatch.empty(self.recipe, count)._replace(
            ids=ids,
            prints=columns,
            scopes=np.full(count, scope, np.uint64),
            sites=self._hasher.hash_sites(
                [named_site(site) or site_of(id_) for site, id_ in zip(sites, ids, strict=True)]
            ),
            titles=self._hasher.hash_titles(titles),
        )
        judged = judge_prints(self._index, self.recipe, batch, (first, first))
        return [_answer(*row) for row in zip(names, prints, judged, strict=True)]


@functools.lru_cache(maxsize=8)
def _fingerprinter(recipe: Recipe) -> Fingerprinter:
    return Fingerprinter(recipe)


def _fingerprint_all(
    contents: Sequence[str | Vector], recipe: Recipe, first_row: int | None = None
) -> list[Print]:
    if not contents:
        return []
    made = _fingerprinter(recipe).fingerprint(
        [
            _as_content(content, "" if first_row is None else f"Row {first_row + row}: ", recipe)
            for row, content in enumerate(contents)
        ]
    )
    written = format_prints(made.prints, recipe.width)
    columns = zip(
        written,
        made.features.tolist(),
        made.digests,
        made.empty.tolist(),
        made.sketches,
        strict=True,
    )
    return [
        Print(recipe.id, digits.decode(), features, digest.tobytes(), is_empty, sketch.tobytes())
        for digits, features, digest, is_empty, sketch in columns
    ]


def _as_content(content: object, where: str, recipe: Recipe) -> Content:
    """Return a content as the recipe takes it: a text or a vector.

    Raises:
        InputError: the content has another type; the message starts with `where`.
    """
    takes_vectors = recipe.method.takes_vectors
    is_vector = isinstance(content, list | tuple | np.ndarray)
    if isinstance(content, str) and not takes_vectors:
        return content
    if takes_vectors and is_vector:
        try:
            return as_vector(content)  # type: ignore[arg-type]
        except InputError as error:
            raise InputError(f"{where}{error}") from error
    wanted = "vector" if takes_vectors else "text"
    hint = ' A vector needs a recipe for vectors: Recipe("vector").' if is_vector else ""
    raise InputError(f"{where}A {wanted} or a Print is expected, and {given_kind(content)}.{hint}")


def _limbs(print_: Print) -> list[int]:
    """Return a print as limbs of 64 bits, the lowest first."""
    number = int(print_.hex, 16)
    count = -(-len(print_.hex) * 4 // _LIMB_BITS)
    return [number >> _LIMB_BITS * limb & (1 << _LIMB_BITS) - 1 for limb in range(count)]


def _as_pair(document: object, where: str = "") -> tuple[str, Any]:
    """Return the id of a document, as text, and its content."""
    if not isinstance(document, tuple | list) or len(document) != 2:
        raise InputError(
            f"{where}A pair of an id and a text or Print is expected, and {given_kind(document)}."
        )
    identifier, content = document
    return _id_text(identifier, where), content


def _id_text(identifier: object, where: str = "") -> str:
    """Return an id, which is a text or a whole number, as text.

    Raises:
        InputError: the id is neither, or is empty; the message starts with `where`.
    """
    if isinstance(identifier, Integral) and not isinstance(identifier, bool):
        return str(int(identifier))
    text = checked(identifier, str, "An id", "a text or a whole number", where)
    if not text:
        raise InputError(f"{where}The id is empty; give every document an id.")
    return text


def _folder(path: object) -> str:
    return checked(
        os.fspath(path) if isinstance(path, os.PathLike) else path,
        str,
        "The path of an index",
        "a path",
    )


def _names_of(given_names: object, what: str, count: int) -> list[str]:
    """Return a site or title for each of `count` documents; an empty one if it has none.

    Raises:
        InputError: the column has another length, or a name is not a text.
    """
    if given_names is None or isinstance(given_names, str):
        return [given_names or ""] * count
    names = column_of(given_names, f"The {what}s")
    if len(names) != count:
        raise InputError(
            f"The columns have different lengths: {count:,} documents and {len(names):,} {what}s."
        )
    return [
        "" if name is None else checked(name, str, f"A {what}", "a text or None", f"Row {row}: ")
        for row, name in enumerate(names)
    ]


def _hash_scope(name: str | None) -> int:
    return 0 if name is None else scope_number(checked(name, str, "A scope", "a text or None"))


def _stored(identifier: str) -> bytes:
    """Return an id as the index stores it; `_name` is the inverse."""
    return shorten_id(identifier.encode("utf-8", "surrogatepass"))


def _name(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")


def _similarity(sketch: bytes, other: bytes) -> float | None:
    return per_cent(sketch, other) / 100 if sketch and other else None


def _answer(name: str, print_: Print, judgement: Judgement | None) -> Answer:
    if judgement is None:
        return Answer(name, Reason.EMPTY.label, False, None, None, print_)
    other = None if judgement.of is None else _name(judgement.of.id)
    reason, similarity = judgement.reason, judgement.text_similarity
    if reason.verdict is Verdict.DUPLICATE:
        return Answer(name, reason.label, True, judgement.distance, other, print_, similarity)
    return Answer(
        name, reason.label, False, None, None, print_, sibling=other, sibling_similarity=similarity
    )
