"""Values that the full-text engine stores and returns: facts of documents, groups of copies and itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from stream_dedup.domain.document import SAME_ID, TopicPartitionKey

TIME_MS_MAX: Final = (1 << 62) - 1
_ROW_BITS: Final = 10  # of a place in the log: a record of it has at most 2 ** _ROW_BITS documents
_LOG_OFFSETS: Final = 1 << 63 - _ROW_BITS


def sortable_time_ms(time_ms: int) -> int:
    """Return a time for sorting: 0 for none."""
    return min(max(0, time_ms), TIME_MS_MAX)


class TextFacts(NamedTuple):
    """Facts of a document. `group`: the position of the kept document that it is a copy of; empty
    if it was kept.

    `position`: its position in the source; empty if its record has none. `log_offset`: of the log
    record that decided, -1 for none; `log_row`: the row in that. `better`: the rule by which it is
    better than the kept document and all earlier copies; empty if it is not. `counted`: the number
    of copies that the log has counted, with this one; 0 without. `of_id` and `counted` are stored
    with the group only.
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
        """Its time for sorting."""
        return sortable_time_ms(self.time_ms)

    @property
    def is_fetched_again(self) -> bool:
        """Whether it is the kept page again, and so no copy."""
        return self.reason in SAME_ID

    @property
    def wasted(self) -> int:
        """Its wasted bytes; none for a page that was fetched again."""
        return 0 if self.is_fetched_again else self.size

    @property
    def decided(self) -> int:
        """The place in the log that decided, as a number for sorting."""
        row = min(self.log_row, (1 << _ROW_BITS) - 1)
        return min(max(0, self.log_offset), _LOG_OFFSETS - 1) << _ROW_BITS | row


class GroupFacts(NamedTuple):
    """A kept document with copies: its position in the source, and the sums of its copies.
    `fetched_again`: how often it was fetched again itself. The times are of both.

    `id` is empty after it was forgotten (`is_forgotten`); `named_at` is the last log record by
    which a copy named it. `counted`: the number of both that the log has counted, 0 without.
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


class EngineCheckpoint(NamedTuple):
    """The topics (by id) and the rules of words that the engine was made for, and the next offset
    of each partition.
    """

    made_for: Mapping[str, str]
    next_offsets: Mapping[TopicPartitionKey, int]
