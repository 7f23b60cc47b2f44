"""Where the records of a WARC file begin and end, also where their headers, or the file, do not say
it right. Pure.

A record is believed to be as long as its Content-Length says if an end of a record stands there.
Else it ends where the next one begins: at the member of gzip that begins with one, or at the next
version line.

Invariants: a record that is whole comes out whole, also among damaged ones; bytes that belong to
none that can be read are a `WarcBlock` with `lost`, one for each stretch of them. At most
`RECORD_BYTES_MAX` of a record are held.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from stream_dedup.inputs.packed import Piece

RECORD_BYTES_MAX: Final = 64 << 20
_HEAD_BYTES_MAX: Final = 64 << 10
_END: Final = b"\r\n\r\n"
# Enough of a record to see that one begins.
_BEGINNING_BYTES: Final = 200
_VERSION: Final = re.compile(rb"WARC/\d\.\d{1,2}[ \t]*\r?\n(?=[A-Za-z][A-Za-z-]{1,60}[ \t]*:)")
# What stands at the start of a member whose version line is wrong.
_ODD_START: Final = re.compile(rb"[^\r\n]{0,40}\r?\nWARC-[A-Za-z-]{1,60}[ \t]*:", re.IGNORECASE)
_NAMES_A_RECORD: Final = re.compile(rb"^WARC-Type[ \t]*:", re.IGNORECASE | re.MULTILINE)
_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")
_LINE_ENDS: Final = re.compile(rb"[\r\n]*")
_LENGTH: Final = re.compile(
    rb"^Content-Length[ \t]*:[ \t]*(\d{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE
)
_NO_RECORD: Final = "has no head of a WARC record"


class WarcBlock(NamedTuple):
    """A record: `at` is where it, or its member, begins in the file, `head` its header lines
    without the version's.

    `block` is what stands behind the head. Of a record that `is_large` it is the first 64 KiB. With
    `lost` it is nothing that can be read, and `lost` says why; it goes on from "the record".
    """

    at: int
    head: bytes
    block: bytes
    lost: str = ""
    is_large: bool = False


def read_blocks(pieces: Iterator[Piece], *, is_packed: bool) -> Iterator[WarcBlock]:
    """Yield all records of a file, whose bytes are `pieces`, in their order.

    Raises:
        OSError: as `pieces` does.
    """
    while True:
        held = _Held(pieces, is_packed=is_packed)
        yield from _records(held)
        if held.is_last:
            return
        if held.damage:
            yield WarcBlock(held.damaged_at, b"", b"", f"is damaged: {held.damage}")


def content_length(head: bytes) -> int | None:
    """Return what a head says of the length of its block; None if it says no number."""
    found = _LENGTH.search(head)
    return int(found[1]) if found else None


class _Held:
    """What of the bytes up to the next damage is in memory. Offsets count from the first byte that
    is held.
    """

    def __init__(self, pieces: Iterator[Piece], *, is_packed: bool) -> None:
        self.data = bytearray()
        self.damage = ""
        self.damaged_at = 0
        self.is_over = self.is_last = False
        self._pieces, self._is_packed = pieces, is_packed
        self._passed = 0  # bytes that were held and are not
        self._places: deque[tuple[int, int, bool]] = (
            deque()
        )  # of each piece: its first byte, where in the file, a member's

    def reach(self, size: int) -> bool:
        """Hold `size` bytes, and return whether the stream has them."""
        while len(self.data) < size and not self.is_over:
            piece = next(self._pieces, None)
            if piece is None or piece.damage:
                self.is_over, self.is_last = True, piece is None
                self.damage, self.damaged_at = (piece.damage, piece.at) if piece else ("", 0)
                break
            self._places.append((self._passed + len(self.data), piece.at, piece.begins))
            self.data += piece.data
        return len(self.data) >= size

    def drop(self, size: int) -> None:
        """Hold the first bytes no more."""
        del self.data[:size]
        self._passed += size
        while len(self._places) > 1 and self._places[1][0] <= self._passed:
            self._places.popleft()

    def skip_blank(self) -> None:
        """Pass over the line ends between two records."""
        while self.reach(1) and (blank := self.blank(0)):
            self.drop(blank)

    def blank(self, begin: int) -> int:
        """Return how many line ends are held from `begin` on."""
        found = _LINE_ENDS.match(self.data, begin)
        return found.end() - begin if found else 0

    def place(self) -> int:
        """Return where in the file the first byte is, or the member that has it."""
        first, at, _ = self._places[0]
        return at if self._is_packed else at + self._passed - first

    def is_damage_of_last(self) -> bool:
        """Whether what is damaged is the member that the last byte held is in, and not the one
        behind it.
        """
        return bool(self.damage and self._places and self._places[-1][1] == self.damaged_at)

    def member(self, begin: int) -> int | None:
        """Return where the first member from `begin` on that is held starts with a record."""
        for first, _, begins in self._places:
            offset = first - self._passed
            if begins and offset >= begin and self._is_start(offset):
                return offset
        return None

    def start(self, begin: int, end: int = sys.maxsize) -> int | None:
        """Return where the next record from `begin` on starts, before `end` and among what is
        held.
        """
        found = _VERSION.search(self.data, begin, end)
        starts = (self.member(begin), found.start() if found else None)
        return min((one for one in starts if one is not None and one < end), default=None)

    def _is_start(self, offset: int) -> bool:
        self.reach(offset + _BEGINNING_BYTES)
        # A member may end within a head, too, as bgzip has them end anywhere.
        is_behind_end = offset == 0 or self.data.endswith(_END, 0, offset)
        return self.data.startswith(b"WARC/", offset) or (
            is_behind_end and _ODD_START.match(self.data, offset) is not None
        )


def _records(held: _Held) -> Iterator[WarcBlock]:
    while True:
        held.skip_blank()
        if not held.reach(1):
            return
        at = held.place()
        held.reach(_HEAD_BYTES_MAX)
        blank = _BLANK_LINE.search(held.data, 0, _HEAD_BYTES_MAX)
        head_end = blank.end() if blank else 0
        lines = bytes(held.data[: blank.start()]) if blank else b""
        head = lines.partition(b"\n")[2]
        is_head = _VERSION.match(held.data) or _NAMES_A_RECORD.search(head)
        if not is_head or not blank or (held.start(1, head_end) or head_end) < head_end:
            yield _lost(
                held, at, _NO_RECORD if not is_head else "has a head that is cut off or too long"
            )
            continue
        length = content_length(head)
        if (
            length is not None
            and length > RECORD_BYTES_MAX
            and held.reach(head_end + RECORD_BYTES_MAX)
        ):
            if held.start(head_end, head_end + RECORD_BYTES_MAX) is None:
                yield WarcBlock(
                    at, head, bytes(held.data[head_end : head_end + _HEAD_BYTES_MAX]), is_large=True
                )
                _pass_over(held)
                continue
            length = None
        yield _framed(held, at, head, head_end, length)


def _framed(held: _Held, at: int, head: bytes, head_end: int, length: int | None) -> WarcBlock:
    """Return the record whose block begins at `head_end`, and hold what follows it."""
    if length is not None and _ends_at(held, head_end, head_end + length):
        block = bytes(held.data[head_end : head_end + length])
        held.drop(head_end + length)
        return WarcBlock(at, head, block)
    searched = head_end
    while (end := held.start(searched)) is None:
        if len(held.data) - head_end > RECORD_BYTES_MAX:
            _pass_over(held)
            return WarcBlock(at, head, b"", "says no length that can be, and is too large")
        if held.is_over:
            end = len(held.data)
            break
        searched = max(head_end, len(held.data) - _BEGINNING_BYTES)
        held.reach(len(held.data) + 1)
    block = bytes(held.data[head_end:end])
    is_short = length is not None and end == len(held.data) and held.is_last and len(block) < length
    is_damaged = end == len(held.data) and held.is_damage_of_last()
    held.drop(end)
    ending = next((one for one in (_END, b"\n\n") if block.endswith(one)), b"")
    # Where the file ends at a blank line, that may be one of the page's, or the one behind the head
    # of HTTP.
    is_short = is_short and (ending != _END or block.find(_END) + len(_END) == len(block))
    if is_damaged:
        lost = f"is damaged: {held.damage}"
        held.damage = ""  # told
    elif is_short or not ending:
        lost = "is cut off"
    elif _NAMES_A_RECORD.search(block):
        lost = f"says {'no length' if length is None else 'a wrong length'}, and another one's head stands in it"
    else:
        return WarcBlock(at, head, block.removesuffix(ending))
    return WarcBlock(at, head, b"", lost)


def _ends_at(held: _Held, begin: int, end: int) -> bool:
    """Whether a record whose block begins at `begin` ends at `end`: no member of another in it, and
    an end behind it.
    """
    is_there = held.reach(end + len(_END) + 1) or len(held.data) >= end
    member = held.member(begin)
    if not is_there or (member is not None and member < end):
        return False
    following = end + held.blank(end)
    is_last = held.is_over and following == len(held.data)
    if is_last and held.is_damage_of_last():
        return False
    if held.data.startswith((_END, b"\n\n"), end):
        return True
    if held.data.endswith(_END, begin, following):
        return False  # it ends there, and not a byte or two further
    return is_last or held.start(following, following + _BEGINNING_BYTES) == following


def _lost(held: _Held, at: int, why: str) -> WarcBlock:
    """Pass over what is no record, and say so."""
    _pass_over(held)
    if held.is_damage_of_last() and not held.data:
        why, held.damage = f"is damaged: {held.damage}", ""
    return WarcBlock(at, b"", b"", why)


def _pass_over(held: _Held) -> None:
    """Hold the next record's first byte, or nothing if there is no other."""
    begin = 1
    while (start := held.start(begin)) is None:
        size = len(held.data) if held.is_over else max(0, len(held.data) - _BEGINNING_BYTES)
        held.drop(size)
        if held.is_over:
            return
        begin = 0 if size else 1
        held.reach(len(held.data) + 1)
    held.drop(start)
