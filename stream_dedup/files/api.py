"""The public API without Kafka: fingerprints, and an index in memory or on a path.

It uses the same recipe, log records and index as the roles. Each call of `add` applies a log record,
which is not stored, so the verdicts equal those of a filter that reads the same documents in the same
order.

Invariants: the recipe of an index never changes; if the index is on a path, an `Answer` is durable
when it is returned; a `Print` names its recipe, and prints of different recipes are never compared.
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
    Numbering,
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
    """The fingerprint of a text. `hex`: the fingerprint in hexadecimal digits; `features`: the number
    of distinct features; `digest`: the digest of the normalised text.

    A print of about 170 bytes is all that an index needs of a text, so you can store prints and pass
    them to `add` later.
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
            ConfigurationError: the prints have different recipes.
        """
        self._require_same_recipe(other)
        return (int(self.hex, 16) ^ int(other.hex, 16)).bit_count()

    def similarity(self, other: Print) -> float:
        """Return the similarity of two texts, from 0 to 1, estimated from their sketches.

        It estimates the Jaccard similarity of their runs of three words, with a standard error of
        at most 0.045.

        Raises:
            ConfigurationError: the prints have different recipes, or a recipe without sketches.
        """
        self._require_same_recipe(other)
        if not self.sketch or not other.sketch:
            raise ConfigurationError(
                f"Prints of the recipe {self.recipe} have no sketches, so they have a distance "
                "but no similarity."
            )
        return sketch_similarity(self.sketch, other.sketch)

    def _require_same_recipe(self, other: Print) -> None:
        if checked(other, Print, "The other print", "a Print").recipe != self.recipe:
            raise ConfigurationError(
                f"A print of the recipe {self.recipe} and a print of the recipe {other.recipe} cannot "
                "be compared; make both with the same recipe."
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict on a document. `reason`: as in the header `dedup.reason`; `duplicate_of`: the id of the kept
    document, and `distance`: the bits that differ from it, both only for duplicates.

    `similarity`: from 0 to 1; 1 for the same text, None for a near text without sketches.
    `sibling` and `sibling_similarity`: the earliest similar page of its site, if the document was
    kept only because of its site or title.
    """

    id: str
    reason: str
    is_duplicate: bool
    distance: int | None
    duplicate_of: str | None
    print: Print
    similarity: float | None = None
    sibling: str | None = None
    sibling_similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A kept document that is similar to a text. `distance`: the bits in which their fingerprints
    differ; `similarity`: from 0 to 1, None without sketches.

    `is_copy`: whether a document with that text, site and title would be a duplicate of the kept one;
    `explanation`: a sentence that gives the reason.
    """

    id: str
    distance: int
    similarity: float | None = None
    is_copy: bool = True
    explanation: str = ""


Vector: TypeAlias = Sequence[float] | NDArray[np.floating[Any]]
"""A row of finite numbers, for recipes that take vectors: `Recipe("vector")`."""
ContentOrPrint: TypeAlias = str | Vector | Print


def page_text(page: str | bytes, encoding: str | None = None) -> str:
    """Return the main text of a web page, which `check` judges; needs `crawl-dedup[html]`.

    `encoding`: for bytes, the encoding that the server named, as in `text/html; charset=...`; one that
    browsers do not know is ignored.

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
    """Return the extractor of this process; a forked process must not use that of its parent."""
    return Pages()


def fingerprint(content: str | Vector, recipe: Recipe | str | None = None) -> Print:
    """Return the fingerprint of a text, or of a vector with a recipe that takes vectors.

    `recipe`: a `Recipe`, or its string: `chars:64` is `Recipe("chars:64")`; the default is `words`.
    The first call takes a second or two to load the compiled kernels.

    Raises:
        InputError: the recipe does not accept the content.
    """
    return _fingerprint_all([content], as_recipe(recipe))[0]


class Index:
    """Finds near-duplicates among added documents, in memory or on a path. It is thread-safe; only
    one process can open a path.

    Duplicates are not kept, so later documents are compared only with the kept documents.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        recipe: Recipe | str | None = None,
        plan: Plan | str | None = None,
        similarity: float | None = None,
    ) -> None:
        """Open the index at `path`, or create it. Without a path the index is in memory.

        `recipe`: the default is `words` with the public demonstration key. `plan`: the default is the
        plan of the existing index; for a new index it is `bands`, for recipes without sketches
        `blocks`, and for recipes of 64 bits `classic`. `similarity`: a multiple of 0.01 up to 1 that
        replaces two thresholds of the plan: that of documents on different sites, and that of
        documents with unknown sites or with the same site and title. A changed plan or similarity
        applies to documents that are added later.

        Raises:
            ConfigurationError: the existing index has another recipe, or belongs to a filter on
            Kafka; or a similarity is given for a plan that compares no sketches.
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
            raise StoreError("This index is closed; open it again.")
        return self._opened

    @property
    def plan(self) -> Plan:
        """The plan in force, with the thresholds of near texts."""
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
        """Judge a document, and keep it if it is unique.

        `scope`: only documents of the same scope are compared. `site`: a host, a URL or another name;
        the default is the host of the id, if that is an `http` or `https` URL. `title`: the title of
        the page. Pages of one site need a higher similarity to be copies, and pages with different
        titles a still higher one.

        Raises:
            InputError: the id is empty, or not a text or whole number; or the content is neither a
            text nor a `Print`.
            ConfigurationError: the print has another recipe.
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
        """Judge documents in order, each also against the earlier ones. This is much faster than
        `add`, because documents are judged in batches of a thousand.

        `site`, `title`: as for `add`; one value for all documents, or a column or list with a value
        for each.

        All documents are read and fingerprinted before the first is judged. If one is invalid, the
        index does not change.

        Raises:
            InputError: a row is not a pair of an id and a text or `Print`; the message contains the
            number of the first such row, from 0. ConfigurationError: a print has another recipe.
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
        """Judge the rows of two columns as `add_many` does. A column is a list or a column of
        pandas, polars, Arrow or NumPy.

        Raises:
            InputError: an argument is not a column, the columns are not equally long, or a row
            cannot be used, such as one with a missing value. ConfigurationError: a print has
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
        """Return the kept documents near a text or print: equal texts first, then by distance. The
        index does not change.

        `limit`: the maximum number of matches. `site`, `title`: as for `add`; `site` can be the URL of
        the page. The result contains each document that would be a copy on another site;
        `Match.is_copy` is False if only its site or title prevents that.
        """
        (wanted,) = self._prints([content])
        sites, titles = _names_of(site, "site", 1), _names_of(title, "title", 1)
        return self._find_near(wanted, _hash_scope(scope), limit, sites[0], titles[0])

    def query_many(
        self,
        contents: Iterable[ContentOrPrint],
        *,
        scope: str | None = None,
        limit: int = 100,
        site: object = None,
        title: object = None,
    ) -> list[list[Match]]:
        """Return the matches of `query` for each text or print. This is much faster than `query`,
        because all texts are fingerprinted at once.

        `site`, `title`: one value for all, or a column or list with a value for each.
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
        """Remove the kept documents with an id, and return their number.

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
        """Return the ids of the kept documents, in the order in which they were added."""
        return map(_name, self._index.representative_ids())

    def __repr__(self) -> str:
        """Describe the index: number of kept documents, path, recipe and plan."""
        location = "in memory" if self.path is None else f"at {self.path}"
        if self._opened is None:
            return f"<Index {location}, closed>"
        return f"<Index of {counted(len(self), 'document')} {location}, recipe {self.recipe.id}, plan {self.plan.name}>"

    def __len__(self) -> int:
        """Return the number of kept documents."""
        figures = self._index.statistics()
        return figures["entries"] - figures["removed"]

    def close(self) -> None:
        """Close the index. Answers on a path are durable when they are returned, not only now."""
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
        """Return a print for each text, vector or print. `first_row`: the number that errors give to
        the first row; None if errors name no row.
        """
        computed = iter(
            _fingerprint_all(
                [content for content in contents if not isinstance(content, Print)],
                self.recipe,
                first_row,
            )
        )
        prints = [content if isinstance(content, Print) else next(computed) for content in contents]
        for row, print_ in enumerate(prints):
            location = "" if first_row is None else f"Row {first_row + row}: "
            if print_.recipe != self.recipe.id:
                raise ConfigurationError(
                    f"{location}The print has the recipe {print_.recipe}, but the index has "
                    f"{self.recipe.id}; make the print with the recipe of the index."
                )
            bits = 4 * len(print_.hex)
            if len(print_.sketch) != self.recipe.sketch_bytes or bits != self.recipe.width:
                raise InputError(
                    f"{location}The print has {bits} bits and a sketch of {len(print_.sketch)} bytes; "
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
        # A log record reserves as many numbers as it can contain documents, so later documents have
        # higher numbers, also after a restart.
        first_number = self._index.applied * records.DOCUMENTS_MAX
        batch = FingerprintedBatch.empty(self.recipe, count)._replace(
            ids=ids,
            prints=columns,
            scopes=np.full(count, scope, np.uint64),
            sites=self._hasher.hash_sites(
                [named_site(site) or site_of(id_) for site, id_ in zip(sites, ids, strict=True)]
            ),
            titles=self._hasher.hash_titles(titles),
        )
        judged = judge_prints(
            self._index, self.recipe, batch, Numbering(first_number, first_number)
        )
        return [_answer(*row) for row in zip(names, prints, judged, strict=True)]


@functools.lru_cache(maxsize=8)
def _fingerprinter(recipe: Recipe) -> Fingerprinter:
    return Fingerprinter(recipe)


def _fingerprint_all(
    contents: Sequence[str | Vector], recipe: Recipe, first_row: int | None = None
) -> list[Print]:
    if not contents:
        return []
    computed = _fingerprinter(recipe).fingerprint(
        [
            _as_content(content, "" if first_row is None else f"Row {first_row + row}: ", recipe)
            for row, content in enumerate(contents)
        ]
    )
    hex_digits = format_prints(computed.prints, recipe.width)
    columns = zip(
        hex_digits,
        computed.features.tolist(),
        computed.digests,
        computed.empty.tolist(),
        computed.sketches,
        strict=True,
    )
    return [
        Print(recipe.id, digits.decode(), features, digest.tobytes(), is_empty, sketch.tobytes())
        for digits, features, digest, is_empty, sketch in columns
    ]


def _as_content(content: object, location: str, recipe: Recipe) -> Content:
    """Return a content as the recipe expects it: a text or a vector.

    Raises:
        InputError: the content has another type; the message starts with `location`.
    """
    takes_vectors = recipe.method.takes_vectors
    is_vector = isinstance(content, list | tuple | np.ndarray)
    if isinstance(content, str) and not takes_vectors:
        return content
    if takes_vectors and is_vector:
        try:
            return as_vector(content)  # type: ignore[arg-type]
        except InputError as error:
            raise InputError(f"{location}{error}") from error
    wanted = "vector" if takes_vectors else "text"
    hint = ' A vector needs a recipe for vectors: Recipe("vector").' if is_vector else ""
    raise InputError(
        f"{location}A {wanted} or a Print is expected, and {given_kind(content)}.{hint}"
    )


def _limbs(print_: Print) -> list[int]:
    """Return a print as limbs of 64 bits, the lowest first."""
    number = int(print_.hex, 16)
    count = -(-len(print_.hex) * 4 // _LIMB_BITS)
    return [number >> _LIMB_BITS * limb & (1 << _LIMB_BITS) - 1 for limb in range(count)]


def _as_pair(document: object, location: str = "") -> tuple[str, Any]:
    """Return the id of a document as text, and its content.

    Raises:
        InputError: `document` is not a pair; the message starts with `location`.
    """
    if not isinstance(document, tuple | list) or len(document) != 2:
        raise InputError(
            f"{location}A pair of an id and a text or Print is expected, and {given_kind(document)}."
        )
    identifier, content = document
    return _id_text(identifier, location), content


def _id_text(identifier: object, location: str = "") -> str:
    """Return an id, which is a text or a whole number, as text.

    Raises:
        InputError: the id is neither, or is empty; the message starts with `location`.
    """
    if isinstance(identifier, Integral) and not isinstance(identifier, bool):
        return str(int(identifier))
    text = checked(identifier, str, "An id", "a text or a whole number", location)
    if not text:
        raise InputError(f"{location}The id is empty; give every document an id.")
    return text


def _folder(path: object) -> str:
    text = checked(
        os.fspath(path) if isinstance(path, os.PathLike) else path,
        str,
        "The path of an index",
        "a path",
    )
    if not text:
        raise InputError("The path of an index is empty; name a folder, or leave it out.")
    return text


def _names_of(given_names: object, what: str, count: int) -> list[str]:
    """Return a site or title for each of `count` documents; empty for a document without one.

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
    """Return an id as the index stores it. `_name` is the inverse."""
    return shorten_id(identifier.encode("utf-8", "surrogatepass"))


def _name(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")


def _similarity(sketch: bytes, other: bytes) -> float | None:
    return per_cent(sketch, other) / 100 if sketch and other else None


def _answer(name: str, print_: Print, judgement: Judgement | None) -> Answer:
    if judgement is None:
        return Answer(name, Reason.EMPTY.label, False, None, None, print_)
    other_id = None if judgement.of is None else _name(judgement.of.id)
    reason, similarity = judgement.reason, judgement.text_similarity
    if reason.verdict is Verdict.DUPLICATE:
        return Answer(name, reason.label, True, judgement.distance, other_id, print_, similarity)
    return Answer(
        name,
        reason.label,
        False,
        None,
        None,
        print_,
        sibling=other_id,
        sibling_similarity=similarity,
    )
