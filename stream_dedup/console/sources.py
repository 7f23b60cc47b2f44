"""Declare the sources of the pages. `assembly` creates them; pages report a source that is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from stream_dedup.console.recent_decisions import Recent
from stream_dedup.console.values import (
    DeadLetters,
    Decision,
    DocumentGroup,
    FoundDocuments,
    HostEvent,
    HostPairs,
    IndexPlans,
    OpenedRecord,
    Remark,
)


class TextSearch(Protocol):
    """Answers from a full-text engine. Each call raises StreamDedupError if it cannot answer."""

    def find(
        self,
        text: str,
        limit: int,
        /,
        *,
        offset: int = 0,
        order: str = "best",
        host: str = "",
        snippets: bool = True,
    ) -> FoundDocuments:
        """Return at most `limit` documents that contain a text, after the first `offset`, in one of
        `FIND_ORDERS`.
        """

    def group(self, document: str) -> DocumentGroup | None:
        """Return the group of a document, by its id or position; None without one."""

    def groups(self, order: str, limit: int, offset: int = 0) -> Sequence[DocumentGroup]:
        """Return at most `limit` groups after the first `offset`, the `largest` or the `newest` first."""

    def host_pairs(self, host: str) -> HostPairs:
        """Return which hosts copied which hosts; only pairs with `host` if it is not empty."""

    def released_position(self, position: str) -> str:
        """Return the output position of the released document whose source record is at `position`;
        empty if the document was not released.
        """

    def redact_record(self, record: OpenedRecord) -> OpenedRecord:
        """Return a record as it may be shown: a forgotten one without its contents."""

    def redact_decision(self, decision: Decision) -> Decision | None:
        """Return a decision as it may be listed: None for a forgotten document, and without the id of
        a kept document that was forgotten.
        """


@dataclass(frozen=True, slots=True)
class ConsoleSources:
    """The functions from which pages get their data. None: there is no such source.

    A call may take seconds, so pages call in a thread. It raises `StreamDedupError` with a sentence
    if the source cannot answer.

    `kafka_problem`: why Kafka does not answer, or empty; a page calls it first, and calls no other
    source in Kafka if it is not empty. `decisions_problem`: why decisions are missing, or empty; it
    returns at once. `read_record`: the record at a position, with its text or why that is missing.
    `search`: the full-text engine of this process. `lag`: the number of source records that no worker
    has committed, by partition. `host_events`: the events of each host; None if insights has written
    no signals. `insights_problem`: a sentence if insights ran and stopped, or empty. `plans`: the
    plans of the index; None if it has none yet.
    """

    recent: Recent = field(default_factory=Recent)
    kafka_problem: Callable[[], str] = str
    decisions_problem: Callable[[], str] = str
    read_record: Callable[[str], OpenedRecord] | None = None
    search: TextSearch | None = None
    host_events: Callable[[], Mapping[str, Sequence[HostEvent]] | None] | None = None
    insights_problem: Callable[[], str] = str
    dead_letters: Callable[[], DeadLetters] | None = None
    lag: Callable[[], Mapping[int, int]] | None = None
    remarks: Callable[[], Sequence[Remark]] | None = None
    plans: Callable[[], IndexPlans | None] | None = None

    def without_kafka(self) -> Self:
        """Return the sources that answer without Kafka."""
        return replace(
            self,
            read_record=None,
            lag=None,
            remarks=None,
            dead_letters=None,
            host_events=None,
            insights_problem=str,
        )
