"""Values that the full-text engine stores and returns: facts of documents and of groups of copies,
and its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from stream_dedup.domain.document import SAME_ID, Reason, TopicPartitionKey

TIME_MS_MAX: Final = (1 << 62) - 1
_ROW_BITS: Final = 10  # a log record has at most 2 ** _ROW_BITS documents
_LOG_OFFSETS: Final = 1 << 63 - _ROW_BITS


def sortable_time_ms(time_ms: int) -> int:
    """Return a time in the range that the engine can sort; 0 for a record without a time."""
    return min(max(0, time_ms), TIME_MS_MAX)


class TextFacts(NamedTuple):
    """The facts of a document. They are stored as a JSON array in the order of the fields.

    `output_position`: the position of its record on an output; `source_position`: that of its
    source record, empty if the record does not name it. `group_position`: the position of the kept
    document that this is a copy of, or was a copy of before it was released; empty if it never was
    a copy. `log_offset`: the offset of the log record that decided, -1 without one; `log_row`: the
    row in that record. `better`: the rule by which this copy is better than the kept document and
    all earlier copies; empty if it is not. `counted`: the number of copies by the log, including
    this one; 0 if the log does not count. `kept_id` and `counted` are stored only with the group.
    """

    output_position: str
    id: str
    time_ms: int
    size: int
    verdict: str
    reason: str
    similarity: float | None = None
    group_position: str = ""
    kept_id: str = ""
    log_offset: int = -1
    source_position: str = ""
    log_row: int = 0
    better: str = ""
    counted: int = 0
    title: str = ""

    @property
    def sortable_ms(self) -> int:
        """The document's time in the range that the engine can sort."""
        return sortable_time_ms(self.time_ms)

    @property
    def is_fetched_again(self) -> bool:
        """Whether this is the kept page itself, read again, and therefore no copy."""
        return self.reason in SAME_ID

    @property
    def is_released(self) -> bool:
        """Whether this document was a copy, and an operator released it."""
        return self.reason == Reason.RELEASED.label

    @property
    def is_duplicate(self) -> bool:
        """Whether this document was judged a copy of a kept document, or is the kept page read again."""
        return bool(self.group_position) and not self.is_released

    @property
    def wasted_bytes(self) -> int:
        """The size of a copy; 0 for a page that was fetched again."""
        return 0 if self.is_fetched_again else self.size

    @property
    def decision_rank(self) -> int:
        """The place of the decision in the log, as a number for sorting."""
        row = min(self.log_row, (1 << _ROW_BITS) - 1)
        return min(max(0, self.log_offset), _LOG_OFFSETS - 1) << _ROW_BITS | row


class GroupFacts(NamedTuple):
    """The facts of a group: a kept document, by its position in the source, and the sums of its
    copies.

    `fetched_again`: how often the kept document itself was read again; `released`: the number of
    former copies that an operator released. `counted`: the number of all three by the log, 0 if the
    log does not count. `oldest_ms`, `newest_ms`: the first and last record time of copies. `id`: the
    id of the kept document, empty after it was forgotten (`is_forgotten`); `named_at`: the offset of the last
    log record in which a copy named it.
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
    released: int = 0


class HostPairFacts(NamedTuple):
    """The copies that one host has of another host's pages: their number, the earliest copy, and the
    time of the newest.
    """

    copier: str
    source: str
    copies: int
    earliest: TextFacts
    newest_ms: int


class FoundText(NamedTuple):
    """A document that contains a part of a query; `share`: that part, 0 to 1."""

    share: float
    facts: TextFacts


class EngineCheckpoint(NamedTuple):
    """What the engine has read. `built_for`: the ids of the topics and the digest of the tokenisation
    settings that it was filled from; `next_offsets`: the next offset to read, by partition.
    """

    built_for: Mapping[str, str]
    next_offsets: Mapping[TopicPartitionKey, int]
