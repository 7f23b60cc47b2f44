"""Find where the records of a WARC file begin and end, also if headers are wrong or the file is
damaged. Pure.

A record has the length of its Content-Length if the end of a record follows. Otherwise it ends where
the next one begins: at a gzip member that begins with a record, or at the next version line.

Invariants: a complete record is returned unchanged, also among damaged ones; bytes that belong to no
readable record are a `WarcBlock` with `lost`, one for each run of them. At most `RECORD_BYTES_MAX` of
a record are in memory.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from stream_dedup.inputs.compressed import Piece

RECORD_BYTES_MAX: Final = 64 << 20
_HEAD_BYTES_MAX: Final = 64 << 10
_END: Final = b"\r\n\r\n"
# Enough of a record to see that one begins.
_BEGINNING_BYTES: Final = 200
_VERSION: Final = re.compile(rb"WARC/\d\.\d{1,2}[ \t]*\r?\n(?=[A-Za-z][A-Za-z-]{1,60}[ \t]*:)")
# The start of a member whose version line is wrong.
_ODD_START: Final = re.compile(rb"[^\r\n]{0,40}\r?\nWARC-[A-Za-z-]{1,60}[ \t]*:", re.IGNORECASE)
_NAMES_A_RECORD: Final = re.compile(rb"^WARC-Type[ \t]*:", re.IGNORECASE | re.MULTILINE)
_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")
_LINE_ENDS: Final = re.compile(rb"[\r\n]*")
_LENGTH: Final = re.compile(
    rb"^Content-Length[ \t]*:[ \t]*(\d{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE
)
_NO_RECORD: Final = "has no WARC header"


class WarcBlock(NamedTuple):
    """A record. `offset`: the offset of the record, or of its member, in the file; `head`: its
    header lines without the version line.

    `block` are the bytes after the head; the first 64 KiB if the record `is_large`. `lost` is the
    reason why it cannot be read, as the predicate of a sentence about "the record".
    """

    offset: int
    head: bytes
    block: bytes
    lost: str = ""
    is_large: bool = False


def read_blocks(pieces: Iterator[Piece], *, is_packed: bool) -> Iterator[WarcBlock]:
    """Yield all records of a file in their order; `pieces` are its unpacked bytes.

    Raises:
        OSError: as `pieces` does.
    """
    while True:
        window = _Window(pieces, is_packed=is_packed)
        yield from _records(window)
        if window.is_last:
            return
        if window.damage:
            yield WarcBlock(window.damaged_at, b"", b"", f"is damaged: {window.damage}")


class _Window:
    """The bytes in memory, up to the next damage. Offsets count from the first byte in memory."""

    def __init__(self, pieces: Iterator[Piece], *, is_packed: bool) -> None:
        self.data = bytearray()
        self.damage = ""
        self.damaged_at = 0
        self.is_over = self.is_last = False
        self._pieces, self._is_packed = pieces, is_packed
        self._passed = 0  # the number of bytes that were dropped
        # Of each piece: the number of its first byte, its offset in the file, whether it begins a
        # member.
        self._places: deque[tuple[int, int, bool]] = deque()

    def reach(self, size: int) -> bool:
        """Read until `size` bytes are in memory; return whether the stream has them."""
        while len(self.data) < size and not self.is_over:
            piece = next(self._pieces, None)
            if piece is None or piece.damage:
                self.is_over, self.is_last = True, piece is None
                self.damage, self.damaged_at = (piece.damage, piece.offset) if piece else ("", 0)
                break
            self._places.append((self._passed + len(self.data), piece.offset, piece.begins))
            self.data += piece.data
        return len(self.data) >= size

    def drop(self, size: int) -> None:
        """Drop the first bytes."""
        del self.data[:size]
        self._passed += size
        while len(self._places) > 1 and self._places[1][0] <= self._passed:
            self._places.popleft()

    def skip_blank(self) -> None:
        """Drop the line ends between two records."""
        while self.reach(1) and (blank := self.count_line_ends(0)):
            self.drop(blank)

    def count_line_ends(self, begin: int) -> int:
        """Return the number of bytes of line ends at `begin`."""
        found = _LINE_ENDS.match(self.data, begin)
        return found.end() - begin if found else 0

    def file_offset(self) -> int:
        """Return the offset in the file of the first byte, or of its member."""
        first, offset, _ = self._places[0]
        return offset if self._is_packed else offset + self._passed - first

    def is_damage_of_last(self) -> bool:
        """Return whether the damage is in the member of the last byte in memory, not in the next
        member.
        """
        return bool(self.damage and self._places and self._places[-1][1] == self.damaged_at)

    def find_member(self, begin: int) -> int | None:
        """Return the offset of the first member in memory, from `begin`, that starts with a record."""
        for first, _, begins in self._places:
            offset = first - self._passed
            if begins and offset >= begin and self._is_start(offset):
                return offset
        return None

    def find_record(self, begin: int, end: int = sys.maxsize) -> int | None:
        """Return the offset of the next record in memory from `begin` and before `end`."""
        found = _VERSION.search(self.data, begin, end)
        starts = (self.find_member(begin), found.start() if found else None)
        return min((start for start in starts if start is not None and start < end), default=None)

    def _is_start(self, offset: int) -> bool:
        self.reach(offset + _BEGINNING_BYTES)
        # A member may also begin within a head: bgzip begins members anywhere.
        is_after_end = offset == 0 or self.data.endswith(_END, 0, offset)
        return self.data.startswith(b"WARC/", offset) or (
            is_after_end and _ODD_START.match(self.data, offset) is not None
        )


def _records(window: _Window) -> Iterator[WarcBlock]:
    while True:
        window.skip_blank()
        if not window.reach(1):
            return
        offset = window.file_offset()
        window.reach(_HEAD_BYTES_MAX)
        blank = _BLANK_LINE.search(window.data, 0, _HEAD_BYTES_MAX)
        head_end = blank.end() if blank else 0
        lines = bytes(window.data[: blank.start()]) if blank else b""
        head = lines.partition(b"\n")[2]
        is_head = _VERSION.match(window.data) or _NAMES_A_RECORD.search(head)
        if not is_head or not blank or (window.find_record(1, head_end) or head_end) < head_end:
            yield _take_damaged(
                window,
                offset,
                _NO_RECORD if not is_head else "has a header that is truncated or too long",
            )
            continue
        found = _LENGTH.search(head)
        length = int(found[1]) if found else None
        if (
            length is not None
            and length > RECORD_BYTES_MAX
            and window.reach(head_end + RECORD_BYTES_MAX)
        ):
            if window.find_record(head_end, head_end + RECORD_BYTES_MAX) is None:
                yield WarcBlock(
                    offset,
                    head,
                    bytes(window.data[head_end : head_end + _HEAD_BYTES_MAX]),
                    is_large=True,
                )
                _pass_over(window)
                continue
            length = None
        yield _take_record(window, offset, head, head_end, length)


def _take_record(
    window: _Window, offset: int, head: bytes, head_end: int, length: int | None
) -> WarcBlock:
    """Return the record whose block begins at `head_end`, and drop its bytes."""
    if length is not None and _ends_at(window, head_end, head_end + length):
        block = bytes(window.data[head_end : head_end + length])
        window.drop(head_end + length)
        return WarcBlock(offset, head, block)
    searched = head_end
    while (end := window.find_record(searched)) is None:
        if len(window.data) - head_end > RECORD_BYTES_MAX:
            _pass_over(window)
            return WarcBlock(offset, head, b"", "has no valid length, and is too large")
        if window.is_over:
            end = len(window.data)
            break
        searched = max(head_end, len(window.data) - _BEGINNING_BYTES)
        window.reach(len(window.data) + 1)
    block = bytes(window.data[head_end:end])
    is_short = (
        length is not None and end == len(window.data) and window.is_last and len(block) < length
    )
    is_damaged = end == len(window.data) and window.is_damage_of_last()
    window.drop(end)
    ending = next((ending for ending in (_END, b"\n\n") if block.endswith(ending)), b"")
    # A blank line at the end of the file is the end of the record, unless it ends the HTTP head.
    is_short = is_short and (ending != _END or block.find(_END) + len(_END) == len(block))
    if is_damaged:
        lost = f"is damaged: {window.damage}"
        window.damage = ""  # is reported by this block
    elif is_short or not ending:
        lost = "is cut off"
    elif _NAMES_A_RECORD.search(block):
        kind = "no length" if length is None else "a wrong length"
        lost = f"has {kind}, and contains the header of another record"
    else:
        return WarcBlock(offset, head, block.removesuffix(ending))
    return WarcBlock(offset, head, b"", lost)


def _ends_at(window: _Window, begin: int, end: int) -> bool:
    """Return whether a record whose block begins at `begin` ends at `end`: it contains no member of
    another record, and the end of a record follows.
    """
    is_present = window.reach(end + len(_END) + 1) or len(window.data) >= end
    member = window.find_member(begin)
    if not is_present or (member is not None and member < end):
        return False
    following = end + window.count_line_ends(end)
    is_last = window.is_over and following == len(window.data)
    if is_last and window.is_damage_of_last():
        return False
    if window.data.startswith((_END, b"\n\n"), end):
        return True
    if window.data.endswith(_END, begin, following):
        return False  # it ends some bytes later
    return is_last or window.find_record(following, following + _BEGINNING_BYTES) == following


def _take_damaged(window: _Window, offset: int, why: str) -> WarcBlock:
    """Drop bytes that are not a record; return the block that reports them."""
    _pass_over(window)
    if window.is_damage_of_last() and not window.data:
        why, window.damage = f"is damaged: {window.damage}", ""
    return WarcBlock(offset, b"", b"", why)


def _pass_over(window: _Window) -> None:
    """Drop all bytes before the next record, or all if there is none."""
    begin = 1
    while (start := window.find_record(begin)) is None:
        size = len(window.data) if window.is_over else max(0, len(window.data) - _BEGINNING_BYTES)
        window.drop(size)
        if window.is_over:
            return
        begin = 0 if size else 1
        window.reach(len(window.data) + 1)
    window.drop(start)
