"""Values of the pages. Times are milliseconds since 1970, sizes bytes, similarities 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from stream_dedup.domain.document import OUTCOMES, SAME_ID
from stream_dedup.domain.plan import Plan

_HEADERS_WITH_KEPT_ID = frozenset({"dedup.of.id", "dedup.sibling.id"})


def rank_of(reason: str) -> int:
    """Return where a reason is placed in pictures and tables; unknown reasons come last."""
    return [*OUTCOMES, reason].index(reason)


def similarity_of(reason: str, similarity: float | None) -> float | None:
    """Return the similarity of a decision: 1 for equal texts, whose records have no such header."""
    has_same_text = reason in OUTCOMES and OUTCOMES[reason].has_same_text
    return 1.0 if has_same_text else similarity


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision that a record of `unique` or `duplicates` contains.

    `output_position`: the position of this record (`duplicates-3@17`); `source_position`: the
    position of its source record (`documents-3@9001`). `number`: the console numbers decisions in
    the order in which it reads them.

    `similarity`: None if the record has only a distance. `copies`: the copies so far, including
    this one; None if the log does not count copies. `better`: the rule by which this copy is better
    than the kept document and all earlier copies; empty if it is not. `sibling_...`: the earliest
    similar page of its site, if the document was kept only because of its site or title. `log`: the
    position in the log that decided (`8812/17`). `latency_ms`: the time from the record's time until this
    console read the record; None for records that were stored before it started.
    """

    output_position: str
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
    source_position: str = ""
    kept_position: str = ""
    kept_id: str = ""
    log: str = ""
    recipe: str = ""
    fingerprint: str = ""
    sibling_position: str = ""
    sibling_id: str = ""
    sibling_similarity: float | None = None
    headers: tuple[tuple[str, str], ...] = ()
    latency_ms: int | None = None
    number: int = 0
    title: str = ""
    is_kept_forgotten: bool = False

    @property
    def is_duplicate(self) -> bool:
        """Whether the document was judged a duplicate."""
        return self.verdict == "duplicate"

    @property
    def is_copy(self) -> bool:
        """Whether it was judged a copy of a page with another id."""
        return self.is_duplicate and self.reason not in SAME_ID

    def without_kept_id(self) -> Self:
        """Return the decision without the id of the kept document or sibling, which was forgotten."""
        headers = tuple(header for header in self.headers if header[0] not in _HEADERS_WITH_KEPT_ID)
        return replace(self, kept_id="", sibling_id="", headers=headers, is_kept_forgotten=True)


@dataclass(frozen=True, slots=True)
class OpenedRecord:
    """A record with its text. If the text is empty, `missing_reason` says why. `decision` is None
    for source records.

    `is_forgotten`: a `forget` covers the record, so all other fields are empty. `site` and `title`
    are empty if they are unknown.
    """

    position: str
    id: str
    text: str
    missing_reason: str = ""
    decision: Decision | None = None
    time_ms: int = 0
    is_forgotten: bool = False
    site: str = ""
    title: str = ""


FIND_ORDERS = ("best", "earliest", "newest")
"""How found documents can be sorted: by the share of the query that they contain, or by time."""


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """A page that contains a query, as it was at one of its fetches. `share`: the part of the query
    that it contains; `snippet`: pieces of its text, each with whether it matches; `group_position`:
    the position of its group, empty without one; `fetches`: the number of fetches that contain the
    query, from `first_ms` to `newest_ms`.
    """

    output_position: str
    id: str
    share: float
    snippet: tuple[tuple[str, bool], ...] = ()
    verdict: str = ""
    time_ms: int = 0
    group_position: str = ""
    host: str = ""
    title: str = ""
    fetches: int = 1
    first_ms: int = 0
    newest_ms: int = 0


@dataclass(frozen=True, slots=True)
class FoundDocuments:
    """A page of the documents that contain a query. `total`: the number of documents on all pages,
    a lower bound unless `is_whole`; `hosts`: the number of their hosts.
    """

    documents: tuple[FoundDocument, ...] = ()
    total: int = 0
    is_whole: bool = True
    hosts: int = 0


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A copy in a group, with the number of its `fetches` from `first_ms` to `newest_ms`.
    `output_position`: the position of its newest fetch on an output; `better`: as in `Decision`.
    """

    output_position: str
    id: str
    host: str
    time_ms: int
    reason: str
    similarity: float | None
    size: int
    better: str = ""
    title: str = ""
    fetches: int = 1
    first_ms: int = 0
    newest_ms: int = 0


@dataclass(frozen=True, slots=True)
class DocumentGroup:
    """A kept document with its copies. `position`: its position in the source.

    `copies`: the number of documents with another id that were judged copies of it;
    `fetched_again`: how often the kept document itself was read again; `released`: the number of
    former copies that an operator released. `counted`: the number of all three by the log; None if
    the log does not count them. `members`: some of the `member_count` pages that are copies, the
    newest first; `released_members`: the newest released ones. `oldest_ms`, `newest_ms`: first and
    last record time of copies, 0 without any. `best`: the last copy that was better than the kept
    document and all earlier copies; None without one. `host`: the host of the kept document.
    `earliest`: the member with the lowest time; None if it was not looked up.
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
    member_count: int = 0
    released: int = 0
    released_members: tuple[GroupMember, ...] = ()

    @property
    def hosts(self) -> int:
        """The number of hosts of the kept document and the members."""
        return len({self.host, *(member.host for member in self.members)} - {""})

    @property
    def best_id(self) -> str:
        """The id of the best copy; empty if no copy is better than the kept document."""
        return self.best.id if self.best else ""


@dataclass(frozen=True, slots=True, order=True)
class HostEvent:
    """An event that insights reported for a host. `text`: a sentence about it; `documents`: the
    number of documents that it concerns; `position`: the position of the page that they resemble,
    empty without one.
    """

    text: str
    documents: int
    position: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class HostFigures:
    """Figures of one host. `duplicates`: documents that were judged copies of a page with another
    id; `bytes_wasted`: their bytes; `fetched_again`: kept pages that were read again.
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
    """The copies that one host (`copier`) has of pages of another (`source`). `example`: the
    position of the earliest copy, `example_id` its id; `is_older_than_kept`: that copy is older than
    the kept document, so the copier may have published first.
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
    """Which hosts copied which hosts, among all documents that were read by `as_of_ms`."""

    pairs: tuple[HostPair, ...]
    as_of_ms: int


@dataclass(frozen=True, slots=True)
class Remark:
    """A problem that the page Now lists. `level`: `warning`, `refused` if a check failed, or
    `not checked` if it could not run; `link`: the page with details; `weight`: the number of affected
    documents, by which remarks are sorted; `host`: the host that it is about, empty without one.
    """

    level: str
    text: str
    link: str = ""
    weight: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True)
class LetterKind:
    """The dead letters of one stage and class. `not_sent_back`: how many of them `command` would send
    back; `cannot_be_sent_back`: how many no command can send back.
    """

    stage: str
    error_class: str
    count: int
    not_sent_back: int
    command: str
    cannot_be_sent_back: int = 0


@dataclass(frozen=True, slots=True)
class ListedLetter:
    """A dead letter. `position`: its own position; `source_position`: that of its source record,
    empty if the letter does not name it.

    `error_message`: why the document could not be judged. `is_cut`: a part of the record is missing;
    `can_be_sent_back`: the record is complete and is from this filter's source topic. `key`: the
    record's key; `id`: the document's id in its value; `beginning`: the first bytes of the value as
    text.
    """

    position: str
    source_position: str
    stage: str
    error_class: str
    error_message: str
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
    """The newest dead letters. `count`: how many were read; if `is_whole`, no others are stored;
    `kinds`: their numbers by kind; `letters`: the newest of them; `unsent_stages`: the stage of
    each letter that `dlq redrive` has not reached.
    """

    count: int
    is_whole: bool
    kinds: tuple[LetterKind, ...] = ()
    letters: tuple[ListedLetter, ...] = ()
    unsent_stages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """The decisions in one column of a picture. `begin_ms`: the time at which the column begins;
    `counts`: number of decisions by reason; `is_read`: all records of its time were read, not only
    the newest.
    """

    begin_ms: int
    counts: dict[str, int] = field(default_factory=dict)
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class ReasonFigures:
    """The number of documents with one reason, and their share of all documents, 0 to 1."""

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
    """An event that may explain a change in a picture, drawn as a line at its time."""

    time_ms: int
    text: str


class PastPlan(NamedTuple):
    """A plan that was replaced: by the log record at `end_offset`, which was appended at `end_ms`."""

    end_offset: int
    end_ms: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class IndexPlans:
    """The plan that the index uses (`current`), and the plans before it, the oldest first.
    `started_ms`: when the index started.
    """

    current: Plan
    past: tuple[PastPlan, ...] = ()
    started_ms: int = 0

    def plan_at(self, log_position: str) -> Plan | None:
        """Return the plan that judged a document, by its position in the log (`8812/17`);
        None if `log_position` is no such position.
        """
        offset = log_position.partition("/")[0]
        if not offset.isdecimal() or len(offset) > 19:
            return None
        return next(
            (past.plan for past in self.past if int(offset) < past.end_offset), self.current
        )

    def chart_marks(self) -> list[PictureMark]:
        """Return marks for each change of the plan and for the start of the index."""
        plans = [past.plan for past in self.past] + [self.current]
        return [PictureMark(self.started_ms, "The index started.")] + [
            PictureMark(past.end_ms, f"The plan changed from {past.plan.id} to {plan.id}.")
            for past, plan in zip(self.past, plans[1:], strict=True)
        ]


@dataclass(frozen=True, slots=True)
class SpanFigures:
    """Figures of a span of time that ends now, in columns of `column_minutes` each.

    `per_second`: decisions per second in the last minute, None while no decisions can be read;
    `histogram`: number of duplicates by similarity, in 20 bins of .05. `is_whole`: all decisions of
    the span were read, not only the newest; `is_minute_whole`: all of the last minute were.
    `marks`: events in the span.
    """

    columns: tuple[FigureColumn, ...]
    column_minutes: int
    per_second: float | None
    total: int
    by_reason: dict[str, int]
    latency_p50_ms: int | None
    latency_p99_ms: int | None
    histogram: tuple[int, ...]
    is_whole: bool = True
    is_minute_whole: bool = True
    marks: tuple[PictureMark, ...] = ()
