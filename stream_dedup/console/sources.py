"""Where the pages get what they show. `mount` says what there is; a page says what there is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from stream_dedup.console.nouns import (
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
from stream_dedup.console.recent import Recent


class FindDocuments(Protocol):
    """Finds the documents that contain a text."""

    def __call__(
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
        """Return `limit` documents after `offset` others, in one of `FIND_ORDERS`."""


class TextAnswers(Protocol):
    """What a full-text engine tells the console; each call raises StreamDedupError where it cannot
    answer.
    """

    @property
    def find(self) -> FindDocuments:
        """The function that finds documents by their text."""

    def group(self, named: str) -> DocumentGroup | None:
        """Return the group of an id or position, or None."""

    def groups(self, order: str, limit: int) -> Sequence[DocumentGroup]:
        """Return at most `limit` groups, the `largest` or `newest` first."""

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
    `StreamDedupError` with a sentence where it cannot answer. None: there is no such source here.

    `away` says that Kafka does not answer, or nothing; a page asks it first, and then nothing else
    of Kafka. `trouble` says, without waiting, what keeps decisions from coming, or nothing.
    `opened` gives a record by its position, with its text or why there is none. `groups` takes
    `largest` or `newest` and how many, `pairs` a host or nothing. `lag`: how many source records of
    each partition no worker has committed. `events`: what goes on at each host, None where nobody
    tells it; `unwatched` says that nobody does any more, or nothing.
    `plans`: the one in force and those before it, None before there is one.
    """

    recent: Recent = field(default_factory=Recent)
    away: Callable[[], str] = str
    trouble: Callable[[], str] = str
    opened: Callable[[str], Opened] | None = None
    find: FindDocuments | None = None
    group: Callable[[str], DocumentGroup | None] | None = None
    groups: Callable[[str, int], Sequence[DocumentGroup]] | None = None
    pairs: Callable[[str], HostPairs] | None = None
    released: Callable[[str], str] | None = None
    events: Callable[[], Mapping[str, Sequence[HostEvent]] | None] | None = None
    unwatched: Callable[[], str] = str
    letters: Callable[[], DeadLetters] | None = None
    index: Callable[[], Mapping[str, Any]] | None = None
    lag: Callable[[], Mapping[int, int]] | None = None
    remarks: Callable[[], Sequence[Remark]] | None = None
    plans: Callable[[], PlansInForce | None] | None = None

    def without_kafka(self) -> Self:
        """Return those that stand while Kafka does not answer."""
        return replace(
            self,
            opened=None,
            lag=None,
            remarks=None,
            letters=None,
            events=None,
            unwatched=str,
        )
