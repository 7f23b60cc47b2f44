"""The sources of the pages. `assembly` sets them; a page reports a missing one."""

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
    Opened,
    PlansInForce,
    Remark,
)


class TextAnswers(Protocol):
    """The answers of a full-text engine; each call raises StreamDedupError if it cannot answer."""

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
        """Return `limit` documents that contain a text after the first `offset`, in one of
        `FIND_ORDERS`.
        """

    def group(self, named: str) -> DocumentGroup | None:
        """Return the group of an id or position, or None."""

    def groups(self, order: str, limit: int, offset: int = 0) -> Sequence[DocumentGroup]:
        """Return at most `limit` groups, the `largest` or `newest` first, after `offset` others."""

    def pairs(self, host: str) -> HostPairs:
        """Return which hosts copied which, of `host` if it is given."""

    def released(self, position: str) -> str:
        """Return the position of the released document from a source position; empty without one."""

    def unless_forgotten(self, record: Opened) -> Opened:
        """Return a record as it may be shown."""

    def as_shown(self, decision: Decision) -> Decision | None:
        """Return a decision as it may be listed, or None."""


@dataclass(frozen=True, slots=True)
class ConsoleSources:
    """The sources of the pages. Each may take seconds and is called in a thread; each raises
    `StreamDedupError` with a sentence if it cannot answer. None: there is no such source.

    `away` returns why Kafka does not answer, or an empty text; a page calls it first, and nothing
    else of Kafka if it does not answer. `trouble` returns at once why decisions are missing, or an
    empty text. `opened` returns the record at a position, with its text or why there is none.
    `search`: the full-text engine of this process. `lag`: the number of source records of each
    partition that no worker has committed. `events`: those of each host, None without signals; `unwatched`: a sentence if
    insights stopped. `plans`: those in force and before, None before the first.
    """

    recent: Recent = field(default_factory=Recent)
    away: Callable[[], str] = str
    trouble: Callable[[], str] = str
    opened: Callable[[str], Opened] | None = None
    search: TextAnswers | None = None
    events: Callable[[], Mapping[str, Sequence[HostEvent]] | None] | None = None
    unwatched: Callable[[], str] = str
    letters: Callable[[], DeadLetters] | None = None
    lag: Callable[[], Mapping[int, int]] | None = None
    remarks: Callable[[], Sequence[Remark]] | None = None
    plans: Callable[[], PlansInForce | None] | None = None

    def without_kafka(self) -> Self:
        """Return the sources that answer without Kafka."""
        return replace(
            self,
            opened=None,
            lag=None,
            remarks=None,
            letters=None,
            events=None,
            unwatched=str,
        )
