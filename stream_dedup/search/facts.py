"""Values that the full-text engine stores and returns: facts of documents, groups of copies and itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from stream_dedup.domain.document import SAME_ID, TopicPartitionKey

TIME_MS_MAX: Final = (1 << 62) - 1
_ROW_BITS: Final = 10  # of a place in the log: a record of it has at most 2 ** _ROW_BITS documents
_LOG_OFFSETS: Final = 1 << 63 - _ROW_BITS


def in_order(time_ms: int) -> int:
    """Return a time as it is ordered by: 0 for none."""
    return min(max(0, time_ms), TIME_MS_MAX)


class TextFacts(NamedTuple):
    """What is told of a document. `group`: the position of the kept document that it is a copy of;
    empty if it was kept.

    `position`: where it lies in the source; empty if its record does not say. `log_offset`: of the
    log record that decided, -1 for none, and `log_row` the row in it. `better`: by which rule it is
    better than the kept document and every copy before it; empty if it is not. `counted`: how many
    copies the log has counted, this one included; 0 if it counts none. `of_id` and `counted` are
    not kept with the document, only with the group.
    """

    at: str
    id: str
    time_ms: int
    size: int
    verdict: str
    reason: str
    similarity: float | None = None
    group: str = ""
    of_id: str = ""
    log_offset: int = -1
    position: str = ""
    log_row: int = 0
    better: str = ""
    counted: int = 0
    title: str = ""

    @property
    def ordered_ms(self) -> int:
        """Its time as it is ordered by."""
        return in_order(self.time_ms)

    @property
    def is_fetched_again(self) -> bool:
        """Whether it is the kept page once more, and so no copy."""
        return self.reason in SAME_ID

    @property
    def wasted(self) -> int:
        """How many bytes it wasted; a page that was fetched again wastes none."""
        return 0 if self.is_fetched_again else self.size

    @property
    def decided(self) -> int:
        """The place in the log that decided, as a number that grows with it."""
        row = min(self.log_row, (1 << _ROW_BITS) - 1)
        return min(max(0, self.log_offset), _LOG_OFFSETS - 1) << _ROW_BITS | row


class GroupFacts(NamedTuple):
    """A kept document with copies: its position in the source, and what its copies add up to.
    `fetched_again`: how often it was itself fetched once more. The times are of both.

    `id` is empty once it was forgotten (`is_forgotten`); `named_at` is the last log record by which
    a copy named it. `counted`: how many of both the log has counted, 0 if it counts none.
    """

    position: str
    id: str
    copies: int
    bytes_wasted: int
    newest_ms: int
    named_at: int = -1
    oldest_ms: int = 0
    counted: int = 0
    fetched_again: int = 0
    is_forgotten: bool = False


class FoundText(NamedTuple):
    """A document that contains a share of a query."""

    share: float
    facts: TextFacts


class EnginePlace(NamedTuple):
    """What the engine was made for (topics by id, the rules of words), and the next offset of each
    partition.
    """

    made_for: Mapping[str, str]
    following: Mapping[TopicPartitionKey, int]
