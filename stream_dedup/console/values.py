"""Values of the pages. Times are milliseconds since 1970, sizes bytes, similarities 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from stream_dedup.domain.document import OUTCOMES, SAME_ID
from stream_dedup.domain.plan import Plan

_NAMES_ANOTHER = frozenset({"dedup.of.id", "dedup.sibling.id"})


def rank_of(reason: str) -> int:
    """Return the rank of a reason in pictures and tables; unknown reasons come last."""
    return [*OUTCOMES, reason].index(reason)


def similarity_of(reason: str, similarity: float | None) -> float | None:
    """Return the similarity of a decision: 1 for equal texts, which have no header with it."""
    has_same_text = reason in OUTCOMES and OUTCOMES[reason].has_same_text
    return 1.0 if has_same_text else similarity


@dataclass(frozen=True, slots=True)
class Decision:
    """The record of `unique` or `duplicates` at the position `at` (`duplicates-3@17`). `number`:
    its rank in the order of reading.

    `position`: of its document in the source (`documents-3@9001`).

    `similarity` is None if the record has only a distance. `copies`: this is the n-th copy, or None
    if the log does not count copies; `better`: the rule by which it is better than the kept
    document and all earlier copies, or empty. `sibling_...`: the most similar page of its site, if
    only site or title kept them apart. `latency_ms` is None for records that were read late.
    """

    at: str
    topic: str
    partition: int
    offset: int
    id: str
    host: str
    verdict: str
    reason: str
    time_ms: int
    size: int
    distance: int | None = None
    similarity: float | None = None
    copies: int | None = None
    better: str = ""
    position: str = ""
    of_position: str = ""
    of_id: str = ""
    log: str = ""
    recipe: str = ""
    fingerprint: str = ""
    sibling_position: str = ""
    sibling_id: str = ""
    sibling_similarity: float | None = None
    headers: tuple[tuple[str, str], ...] = ()
    seen_ms: int = 0
    latency_ms: int | None = None
    number: int = 0
    title: str = ""
    is_kept_forgotten: bool = False

    @property
    def is_duplicate(self) -> bool:
        """Whether it left as a duplicate."""
        return self.verdict == "duplicate"

    def without_kept_id(self) -> Self:
        """Return it without the id of the kept document or sibling, which was forgotten."""
        headers = tuple(header for header in self.headers if header[0] not in _NAMES_ANOTHER)
        return replace(self, of_id="", sibling_id="", headers=headers, is_kept_forgotten=True)


@dataclass(frozen=True, slots=True)
class Opened:
    """A record with its text, or with the reason (`why`) for an empty text. `decision` is None for
    source records.

    `is_forgotten`: a `forget` covers it, so all else is empty. `site` and `title` are empty if
    unknown.
    """

    at: str
    id: str
    text: str
    why: str = ""
    decision: Decision | None = None
    time_ms: int = 0
    is_forgotten: bool = False
    site: str = ""
    title: str = ""


FIND_ORDERS = ("best", "earliest", "newest")
"""The orders of found documents: by their share of the query, or by their time."""


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """A document that contains a query. `share`: the part of the query that it contains; `snippet`:
    pieces of its text, and whether each matched.
    """

    at: str
    id: str
    share: float
    snippet: tuple[tuple[str, bool], ...] = ()
    verdict: str = ""
    time_ms: int = 0
    group: str = ""
    host: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class FoundDocuments:
    """A page of the documents that contain a query. `total`: the number of all, a lower bound unless
    `is_whole`; `hosts`: the number of their hosts.
    """

    documents: tuple[FoundDocument, ...] = ()
    total: int = 0
    is_whole: bool = True
    hosts: int = 0


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A copy in a group; `at` is the position of its decision. `better` as in `Decision`."""

    at: str
    id: str
    host: str
    time_ms: int
    reason: str
    similarity: float | None
    size: int
    better: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class DocumentGroup:
    """A kept document, by its position in `documents`, with its copies and the number of times that
    it was `fetched_again` itself, which are not copies; `members` are the newest of both.

    `counted`: the number of both that the log has counted, or None; `oldest_ms` and `newest_ms`:
    the times of both, 0 without; `best`: the copy that is better than all before it, or None if the
    kept document is the best. `host`: of the kept document; `earliest`: the member with the lowest
    time, None if it was not looked up.
    """

    position: str
    id: str
    copies: int
    bytes_wasted: int
    newest_ms: int
    members: tuple[GroupMember, ...] = ()
    oldest_ms: int = 0
    counted: int | None = None
    best: GroupMember | None = None
    fetched_again: int = 0
    host: str = ""
    earliest: GroupMember | None = None

    @property
    def hosts(self) -> int:
        """The number of hosts of the kept document and the members."""
        return len({self.host, *(member.host for member in self.members)} - {""})

    @property
    def pages(self) -> int:
        """The number of different pages among the members that are copies."""
        return len({member.id for member in self.members if member.reason not in SAME_ID})

    @property
    def best_id(self) -> str:
        """The id of the best copy; empty where the kept document is the best."""
        return self.best.id if self.best else ""


@dataclass(frozen=True, slots=True, order=True)
class HostEvent:
    """An event at a host: its text, the number of documents, the `position` of the page that they
    resemble.
    """

    text: str
    documents: int
    position: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class HostFigures:
    """Figures of one host: `duplicates` of pages with other ids and their `bytes_wasted`, pages
    that were fetched again, events.
    """

    host: str
    documents: int
    duplicates: int
    bytes: int
    bytes_wasted: int
    fetched_again: int = 0
    events: tuple[HostEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class HostPair:
    """What one host copied of another. `example`: the position of the earliest copy;
    `is_older_than_kept`: it is older than the kept document, so the copier may have published first.
    """

    copier: str
    source: str
    copies: int
    first_ms: int
    newest_ms: int
    example: str
    example_id: str
    is_older_than_kept: bool = False


@dataclass(frozen=True, slots=True)
class HostPairs:
    """Which hosts copied which, among all documents that were read by `as_of_ms`."""

    pairs: tuple[HostPair, ...]
    as_of_ms: int


@dataclass(frozen=True, slots=True)
class Remark:
    """A problem: `level` is `warning`, or `not checked` for a check that failed; `link`: its page;
    `weight`: the number of its documents; `host`: the host that it is about.
    """

    level: str
    text: str
    link: str = ""
    weight: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True)
class LetterKind:
    """Dead letters of one stage and class: `waiting` of them can be sent back by `command` and were
    not, `staying` cannot be.
    """

    stage: str
    error_class: str
    count: int
    waiting: int
    command: str
    staying: int = 0


@dataclass(frozen=True, slots=True)
class ListedLetter:
    """A dead letter at the position `at`; `source`: the position of its source record, empty if the
    letter does not name it.

    `is_cut`: it lacks a part of its record; `can_be_sent_back`: it does not, and its record is of
    the source. `key`: the record's key; `id`: the document's id in its value; `beginning`: the first
    bytes of the value as text.
    """

    at: str
    source: str
    stage: str
    error_class: str
    why: str
    size: int
    time_ms: int
    is_sent_back: bool
    is_cut: bool
    key: str = ""
    id: str = ""
    beginning: str = ""
    can_be_sent_back: bool = True


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The newest `read` dead letters, all of them if `is_whole`: counted by kind, and the newest
    listed. `open_stages`: the stage of each letter that no run of `dlq redrive` has passed.
    """

    read: int
    is_whole: bool
    kinds: tuple[LetterKind, ...] = ()
    letters: tuple[ListedLetter, ...] = ()
    open_stages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """Decisions of one column of a picture from `begin_ms` on, by reason. `is_read`: all records of
    that time were read, not only the newest.
    """

    begin_ms: int
    counts: dict[str, int] = field(default_factory=dict)
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class ReasonFigures:
    """The number of documents with a reason, and their share of all, 0 to 1."""

    reason: str
    documents: int
    share: float


@dataclass(frozen=True, slots=True)
class SimilarityFigures:
    """The number of duplicates with a similarity in a range."""

    similarity_from: float
    similarity_to: float
    duplicates: int


@dataclass(frozen=True, slots=True)
class PictureMark:
    """An event at a time that may explain a picture."""

    time_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class PlansInForce:
    """The plan in force `now`, and those before it, oldest first: (log offset of the record that
    ended it, time of that, plan). `started_ms`: when the index started.
    """

    now: Plan
    past: tuple[tuple[int, int, Plan], ...] = ()
    started_ms: int = 0

    def at(self, log: str) -> Plan | None:
        """Return the plan that judged at a place in the log (`8812/17`); None for anything else."""
        offset = log.partition("/")[0]
        if not offset.isdecimal() or len(offset) > 19:
            return None
        return next((plan for end, _, plan in self.past if int(offset) < end), self.now)

    def chart_marks(self) -> list[PictureMark]:
        """Return marks for each change of the plan and for the start of the index."""
        plans = [plan for *_, plan in self.past] + [self.now]
        return [PictureMark(self.started_ms, "The index started.")] + [
            PictureMark(time_ms, f"The plan changed from {before.id} to {plan.id}.")
            for (_, time_ms, before), plan in zip(self.past, plans[1:], strict=True)
        ]


@dataclass(frozen=True, slots=True)
class NowFigures:
    """Figures of a span that ends now, in columns of `column_minutes` each.

    `per_second`: over the last minute, None while nothing is read; `histogram`: duplicates by
    similarity, in 20 bins of .05. `is_whole`: all decisions of the span were read, not only the
    newest; `is_minute_whole`: the same of the last minute. `marks`: events in it.
    """

    columns: tuple[FigureColumn, ...]
    column_minutes: int
    per_second: float | None
    total: int
    by_reason: dict[str, int]
    latency_p50_ms: int | None
    latency_p99_ms: int | None
    histogram: tuple[int, ...]
    newest_ms: int
    is_whole: bool = True
    is_minute_whole: bool = True
    marks: tuple[PictureMark, ...] = ()
