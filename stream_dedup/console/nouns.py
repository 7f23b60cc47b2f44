"""What the pages show, as plain values. Times are milliseconds since 1970, sizes are bytes,
similarities 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from stream_dedup.domain.document import OUTCOMES, SAME_ID
from stream_dedup.domain.plan import Plan

_NAMES_ANOTHER = frozenset({"dedup.of.id", "dedup.sibling.id"})


def rank_of(reason: str) -> int:
    """Return the place of a reason in pictures and tables; other reasons come last."""
    return [*OUTCOMES, reason].index(reason)


def similarity_of(reason: str, similarity: float | None) -> float | None:
    """Return the similarity of a decision: 1 where the texts are the same, which no header says."""
    has_same_text = reason in OUTCOMES and OUTCOMES[reason].has_same_text
    return 1.0 if has_same_text else similarity


@dataclass(frozen=True, slots=True)
class Decision:
    """One record of `unique` or `duplicates`, which lies there `at` (`duplicates-3@17`); `number`
    counts as they were seen.

    Its document lies in the source at `position` (`documents-3@9001`).

    `similarity` is the header's, or None where only the distance was told. `copies`: the
    how-manieth copy it is, or None where the log does not count them; `better`: by which rule it is
    better than the kept document and every copy before it, or nothing. `sibling_...`: the page of its
    site that is like one that only its site or title kept. `latency_ms` is None for
    records that were read later than they were written.
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
        """Return it with nothing that tells the id of the kept document, or of its sibling, which
        was forgotten.
        """
        headers = tuple(header for header in self.headers if header[0] not in _NAMES_ANOTHER)
        return replace(self, of_id="", sibling_id="", headers=headers, is_kept_forgotten=True)


@dataclass(frozen=True, slots=True)
class Opened:
    """A record with its text. `why` says why there is none; then the text is empty. `decision` is
    None for source records.

    `is_forgotten`: a `forget` covers it, and nothing of it is told. `site` and `title` are empty if
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
    """A copy in a group; `at` may be opened as a decision. `better` as in `Decision`."""

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
    """A kept document, by its position in `documents`, with its copies, and how often it was
    `fetched_again` itself, which is no copy; both may be more than the `members` given.

    `counted`: how many of both the log has counted, or None where it does not; `oldest_ms` and
    `newest_ms`: of both, 0 for none; `best`: the copy that is better than all before it, or None where
    none is better than the kept document.
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
    """What goes on at a host, with how many documents; `position` of the page that they resemble."""

    text: str
    documents: int
    position: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class HostFigures:
    """What one host sent: `duplicates` of pages with other ids, whose bytes were wasted, and
    pages that were fetched again. `events`: what goes on there.
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
    """What deserves a look: `level` is `warning`, or `not checked` for what could not be looked at;
    `link`: its page; `weight`: how many documents it concerns; `host`: the host that it is about.
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
    listed. `open_stages`: the stage of each letter that no run of `dlq redrive` sent or reported.
    """

    read: int
    is_whole: bool
    kinds: tuple[LetterKind, ...] = ()
    letters: tuple[ListedLetter, ...] = ()
    open_stages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """Decisions of one column of a picture, from `begin_ms` on, by reason. `is_read`: all records
    of that time were read, not only the newest.
    """

    begin_ms: int
    counts: dict[str, int] = field(default_factory=dict)
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class ReasonFigures:
    """How many documents left for a reason, and which share of all that is, 0 to 1."""

    reason: str
    documents: int
    share: float


@dataclass(frozen=True, slots=True)
class SimilarityFigures:
    """How many duplicates have a similarity in a range."""

    similarity_from: float
    similarity_to: float
    duplicates: int


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """How many buckets of the index hold up to so many entries."""

    up_to: int
    buckets: int


@dataclass(frozen=True, slots=True)
class PictureMark:
    """Something that happened at a time and may explain what a picture shows."""

    time_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class PlansInForce:
    """The plan in force `now`, and those before it, oldest first: (log offset of the record that
    ended it, time of that, plan). `started_ms`: when the index that says so started.
    """

    now: Plan
    past: tuple[tuple[int, int, Plan], ...] = ()
    started_ms: int = 0

    def at(self, log: str) -> Plan | None:
        """Return the plan by which a place in the log (`8812/17`) judged; None if it is none."""
        offset = log.partition("/")[0]
        if not offset.isdecimal() or len(offset) > 19:
            return None
        return next((plan for end, _, plan in self.past if int(offset) < end), self.now)

    def marks(self) -> list[PictureMark]:
        """Return when the plan changed, and how, and when the index started."""
        plans = [plan for *_, plan in self.past] + [self.now]
        return [PictureMark(self.started_ms, "The index started.")] + [
            PictureMark(time_ms, f"The plan changed from {before.id} to {plan.id}.")
            for (_, time_ms, before), plan in zip(self.past, plans[1:], strict=True)
        ]


@dataclass(frozen=True, slots=True)
class NowFigures:
    """A span that ends now, in columns of `column_minutes` each.

    `per_second`: over the last minute, None while nothing is read; `histogram`: duplicates by similarity, in 20 bins of .05.
    `is_whole`: all that left in this span was looked at, not only the newest; `is_minute_whole`:
    the same of the last minute. `marks`: what happened in it.
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
