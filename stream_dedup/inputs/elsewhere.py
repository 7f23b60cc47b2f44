"""Texts that lie elsewhere: fetched by their addresses, many at once and ahead of their taker.

A text is there, or missing for good, which is a dead letter of stage `fetch`, or away for now,
which raises `TextAwayError`. Which of them is said in `stores`. An attempt that takes too long is
away too. What is away is tried three times, after pauses that grow and differ. Then the taker is
told, and asks again later. One that stays away while its store answers for others is given up in
the end, which is a dead letter too; where nothing else is to be fetched, the store is asked for
what it answered last.

What was fetched and not yet taken is kept from one call to the next, as long as its address is
asked for: while one text is away, those behind it are not read again and again.

Invariants: a text is read whole or not at all. What is held for later has at most `ahead_bytes`,
and one text more, so that the first always fits. What is packed stays packed until it is taken, and
then gives at most `text_bytes`.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from stream_dedup.domain.addresses import TextAddress, checked, shown
from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import InputError, TextAwayError
from stream_dedup.domain.printable import printable
from stream_dedup.inputs.packed import SUFFIXES, packing_of, unpack
from stream_dedup.inputs.stores import (
    NOT_FOUND,
    AwayNowError,
    MissingTextError,
    NoRoomError,
    TextStores,
)

Fetched: TypeAlias = bytes | DeadLetter

# The largest number of concurrent fetches of a worker: enough for the kernels at 50 ms a fetch.
AT_ONCE = 64
# The least time for one attempt to fetch a text.
ATTEMPT_SECONDS = 10.0
# After this time a text that is unavailable, while its store answers for others, becomes a dead
# letter; longer than a store's failover.
PATIENCE_SECONDS = 600.0
_ATTEMPT_BYTES_PER_SECOND: Final = 1_000_000
_ATTEMPTS: Final = 3
_RETRY_SECONDS: Final = 0.1
# The taker is given what is there after this time, or once it is this much: a kernel does many
# texts at once.
_GATHER_SECONDS: Final = 0.25
_GATHER_TEXTS: Final = 1_000
_LOOK_SECONDS: Final = 0.02
_UNKNOWN_BYTES: Final = 16 << 10
_BINARY_WITHIN_BYTES: Final = 8 << 10
_WIDE_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


class FetchLimits(NamedTuple):
    """The most texts at once, the most bytes of a text, packed or not, the most seconds of an
    attempt, and the seconds after which a text is given up that is away while its store answers for
    others.
    """

    at_once: int
    text_bytes: int
    seconds: float
    patience_seconds: float = math.inf


def fetch_limits(text_bytes: int) -> FetchLimits:
    """Return the limits of a worker whose texts have at most `text_bytes`; an attempt has time to
    read that many at 1 MB a second.
    """
    seconds = max(ATTEMPT_SECONDS, text_bytes / _ATTEMPT_BYTES_PER_SECOND)
    return FetchLimits(AT_ONCE, text_bytes, seconds, PATIENCE_SECONDS)


class _Answer(NamedTuple):
    """What a store answered last, and when."""

    address: TextAddress
    at: float


class _HeldUp(NamedTuple):
    """For how long a text was away while its store answered for others, and when it was asked for
    the last time.
    """

    seconds: float
    failed_at: float


class TextFetcher:
    """Fetches texts. One thread at a time calls it; the stores are read in another."""

    def __init__(
        self,
        prefixes: Sequence[str],
        limits: FetchLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take limits, and prefixes as `parse_prefixes` gives them; nothing is asked yet.

        Raises:
            ConfigurationError: a library is not installed, or cannot be used as its environment
            says.
        """
        self._prefixes = tuple(prefixes)
        self._at_once, self._text_bytes, self._seconds, self._patience_seconds = limits
        self._clock = clock
        self._stores = TextStores(self._prefixes, self._text_bytes, self._at_once)
        self._news = threading.Condition()
        # All below is read and written with `_news` held.
        self._asked: Sequence[TextAddress] = ()
        self._last: dict[str, int] = {}  # where each of them is asked for the last time
        self._first: TextAddress | None = None  # what is waited for
        self._order: list[
            TextAddress
        ] = []  # what is wanted, each once, and once more when it is taken and comes again
        self._places: dict[str, int] = {}  # of those that were not taken, by address
        self._next = 0  # the first of them that may have to be begun
        self._found: dict[str, Fetched] = {}
        self._held: dict[str, int] = {}  # bytes of what is there, and room of what is being fetched
        self._held_bytes = 0
        self._ahead_bytes = 0
        self._running: dict[str, asyncio.Task[None]] = {}
        self._sizes: dict[str, int] = {}  # of what had no room
        self._away: dict[str, str] = {}
        self._held_up: dict[str, _HeldUp] = {}  # of what is away, from one call to the next
        self._answers: dict[str, _Answer] = {}  # by origin
        self._proof: asyncio.Task[None] | None = None
        self._mean_bytes = _UNKNOWN_BYTES
        self._has_begun = False

    def check(self, address: str) -> TextAddress | DeadLetter:
        """Return an address that may be read, or the dead letter of its record, which depends on
        the settings only.
        """
        found = checked(address, self._prefixes)
        return DeadLetter("fetch", "AddressRefused", found) if isinstance(found, str) else found

    def fetch_one(self, address: TextAddress) -> Fetched:
        """Return one text, or why it is missing for good.

        Raises:
            TextAwayError: it is away for now.
        """
        return self.fetch([address], 0, self._text_bytes, self._text_bytes)[0]

    def fetch(
        self,
        addresses: Sequence[TextAddress],
        start: int,
        stretch_bytes: int,
        ahead_bytes: int,
        is_hurried: Callable[[], bool] = lambda: False,
    ) -> list[Fetched]:
        """Return what lies at one of these addresses, and at those behind it that are there soon.

        All behind it are fetched meanwhile, and kept for the next call that asks for them;
        `ahead_bytes` bounds what is kept. What is returned has at most `stretch_bytes`, and one
        text more. To go on, give the same list and a later start.

        Raises:
            TextAwayError: the first is away for now; or the taker `is_hurried`, and it has not
            come.
        """
        if start == len(addresses):
            return []
        self._want(addresses, start, ahead_bytes)
        most = min(len(addresses), start + _GATHER_TEXTS)
        until = time.monotonic() + _GATHER_SECONDS
        ready = start
        with self._news:
            while True:
                while ready < most and addresses[ready].whole in self._found:
                    ready += 1
                if ready == most:
                    break
                first = addresses[ready].whole
                if ready > start and (
                    first in self._away
                    or self._is_full
                    or is_hurried()
                    or time.monotonic() >= until
                ):
                    break
                if first in self._away:
                    raise TextAwayError(
                        f"The text at {shown(first)} {self._away[first]}; the records wait for it."
                    )
                if is_hurried():
                    raise TextAwayError(f"The text at {shown(first)} has not come yet.")
                self._news.wait(_LOOK_SECONDS)
        return self._take(addresses, start, ready, stretch_bytes)

    # -- the taker's side

    def _want(self, addresses: Sequence[TextAddress], start: int, ahead_bytes: int) -> None:
        """Have these fetched, in this order, and nothing else; forget what is there and is not
        among them.
        """
        with self._news:
            self._first = addresses[start]
            self._ahead_bytes = ahead_bytes
            self._has_begun = False
            if addresses is not self._asked:
                self._asked = addresses
                self._last = {
                    addresses[place].whole: place for place in range(start, len(addresses))
                }
                self._order = list(
                    {address.whole: address for address in addresses[start:]}.values()
                )
                self._places = {address.whole: place for place, address in enumerate(self._order)}
                self._next = 0
                for whole in [one for one in self._found if one not in self._places]:
                    self._forget(whole)
                self._sizes = {
                    whole: size for whole, size in self._sizes.items() if whole in self._places
                }
                since = self._clock() - self._patience_seconds  # one may come again in another list
                self._held_up = {
                    whole: one for whole, one in self._held_up.items() if one.failed_at >= since
                }
            else:
                self._next = min([self._next, *(self._places[whole] for whole in self._away)])
            self._away.clear()
        self._stores.run(self._begin())

    def _take(
        self, addresses: Sequence[TextAddress], start: int, end: int, stretch_bytes: int
    ) -> list[Fetched]:
        """Return what is there, unpacked, as far as it is not too much; it is not kept any
        longer.
        """
        taken: list[Fetched] = []
        texts: dict[str, Fetched] = {}
        size = 0
        for address in addresses[start:end]:
            if taken and size >= stretch_bytes:
                break
            if address.whole not in texts:
                text = texts[address.whole] = self._text_of(address, self._found[address.whole])
                size += len(text) if isinstance(text, bytes) else 0
            taken.append(texts[address.whole])
        with self._news:
            for whole in texts:
                self._forget(whole)
                address = self._order[self._places.pop(whole)]
                if self._last[whole] >= start + len(taken):  # it comes once more
                    self._places[whole] = len(self._order)
                    self._order.append(address)
        return taken

    def _text_of(self, address: TextAddress, found: Fetched) -> Fetched:
        """Return the text that these bytes are, unpacked, or why they are none."""
        if isinstance(found, DeadLetter):
            return found
        named = next((suffix for suffix in SUFFIXES if address.path.lower().endswith(suffix)), "")
        packing = packing_of(found) or named
        if packing:
            try:
                unpacked = unpack(packing, found, self._text_bytes)
            except InputError as error:
                return _letter(address, "Damaged", f"is packed, and {error}")
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - no text may keep others from being read
                return _letter(
                    address,
                    type(error).__name__,
                    f"is packed, and cannot be unpacked: {printable(str(error))}",
                )
            if unpacked is None:
                return _letter(
                    address,
                    "TooLarge",
                    f"has more than {self._text_bytes} bytes once it is unpacked",
                )
            found = unpacked
        begins = found[:_BINARY_WITHIN_BYTES]
        if begins.startswith(b"%PDF-") or (b"\0" in begins and not begins.startswith(_WIDE_MARKS)):
            return _letter(address, "NotText", "is no text: it holds zero bytes, or is a PDF")
        return found

    # -- the side of the thread that reads

    async def _begin(self) -> None:
        with self._news:
            gone = [task for whole, task in self._running.items() if whole not in self._places]
            self._has_begun = True
            self._launch()
        for task in gone:
            task.cancel()

    def _launch(self) -> None:
        """Begin to fetch what is wanted next, as far as there is room; an origin that is away is
        asked for nothing more.
        """
        if self._first is not None:
            self._start(self._first)
        away = (
            {address.origin for address in self._order if address.whole in self._away}
            if self._away
            else set()
        )
        while len(self._running) < self._at_once and self._next < len(self._order):
            address = self._order[self._next]
            if address.origin in away or not self._start(address):
                break
            self._next += 1

    def _start(self, address: TextAddress) -> bool:
        """Begin to fetch a text, unless it is there, away, taken or on its way; return False if
        there is no room for it.
        """
        whole = address.whole
        if whole in self._places and not (
            whole in self._found or whole in self._running or whole in self._away
        ):
            size = self._sizes.get(whole, self._mean_bytes)
            if not self._has_room(whole, size):
                return False
            self._hold(whole, size)
            self._running[whole] = asyncio.get_running_loop().create_task(self._fetch(address))
        return True

    async def _fetch(self, address: TextAddress) -> None:
        """Fetch one text, or find out why not."""
        whole = address.whole
        found: Fetched | None = None
        away: str | None = None
        began = self._clock()
        try:
            for attempt in range(_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(_RETRY_SECONDS * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
                try:
                    async with asyncio.timeout(self._seconds):
                        found = await self._stores.read_text(address, partial(self._admit, whole))
                    break
                except AwayNowError as error:
                    away = str(error)
                except TimeoutError:
                    away = f"did not come within {self._seconds:g} s"
        except MissingTextError as error:
            found = _letter(address, error.kind, str(error))
        except NoRoomError as error:
            with self._news:
                self._sizes[whole] = error.size
        except Exception as error:  # noqa: BLE001 - the taker must be told something, or waits for ever
            away = f"is away ({printable(f'{type(error).__name__}: {error}')})"
        finally:
            with self._news:
                if found is not None:
                    self._note_answer(address, found)
                elif away is not None:
                    found = self._given_up(address, away, began)
                self._end(whole, found, away)

    def _note_answer(self, address: TextAddress, found: Fetched) -> None:
        """Note that a store answers: that a text is there, or is not."""
        self._held_up.pop(address.whole, None)
        if isinstance(found, bytes) or found.error_class == NOT_FOUND:
            self._answers[address.origin] = _Answer(address, self._clock())

    def _given_up(self, address: TextAddress, away: str, began: float) -> DeadLetter | None:
        """Return the letter of a text that has been away for too long while its store answered for
        others.
        """
        if self._patience_seconds == math.inf:
            return None
        now, recent = self._clock(), self._patience_seconds / 10
        held_up, failed_at = self._held_up.get(address.whole, _HeldUp(0.0, began))
        answer = self._answers.get(address.origin)
        if answer is not None and answer.at >= min(failed_at, now - recent):
            held_up += now - failed_at
        if answer is not None and answer.at < now - recent / 2 and self._proof is None:
            self._proof = asyncio.get_running_loop().create_task(self._prove(answer.address))
        if held_up < self._patience_seconds:
            self._held_up[address.whole] = _HeldUp(held_up, now)
            return None
        self._held_up.pop(address.whole, None)
        return _letter(
            address,
            "GivenUp",
            f"{away}, for {held_up:.0f} s in which {shown(address.origin)} answered for others; "
            "redrive it later",
        )

    async def _prove(self, address: TextAddress) -> None:
        """Ask a store for what it answered before, to know whether it answers now."""
        try:
            async with asyncio.timeout(self._seconds):
                found: Fetched = await self._stores.read_text(address, lambda _size: None)
        except MissingTextError as error:
            found = _letter(address, error.kind, str(error))
        except Exception:  # noqa: BLE001 - then it does not answer
            return
        finally:
            self._proof = None
        with self._news:
            self._note_answer(address, found)

    def _end(self, whole: str, found: Fetched | None, away: str | None) -> None:
        """Take in how fetching has ended: with a text or letter, away, without room, or because it
        is not wanted any more.
        """
        del self._running[whole]
        self._let_go(whole)
        place = self._places.get(whole)
        if place is not None:
            if found is not None:
                self._found[whole] = found
                size = len(found) if isinstance(found, bytes) else 0
                self._hold(whole, size)
                self._mean_bytes = (7 * self._mean_bytes + size) // 8
            elif away is not None:
                self._away[whole] = away
            else:
                self._next = min(self._next, place)
        self._launch()
        if not self._running:
            # not for each text: the taker looks now and then, and to wake it costs as much
            self._news.notify_all()

    def _admit(self, whole: str, size: int) -> None:
        """Hold room for these bytes.

        Raises:
            NoRoomError: there is none.
        """
        with self._news:
            if size > self._held.get(whole, 0):
                if not self._has_room(whole, size):
                    raise NoRoomError(size)
                self._hold(whole, size)

    def _has_room(self, whole: str, size: int) -> bool:
        """Whether these bytes may be held of a text: as many as fit, and always those of the first
        that is waited for.
        """
        is_first = self._first is not None and self._first.whole == whole
        return is_first or self._held_bytes - self._held.get(whole, 0) + size <= self._ahead_bytes

    def _hold(self, whole: str, size: int) -> None:
        self._held_bytes += size - self._held.get(whole, 0)
        self._held[whole] = size

    def _let_go(self, whole: str) -> None:
        self._held_bytes -= self._held.pop(whole, 0)

    def _forget(self, whole: str) -> None:
        del self._found[whole]
        self._let_go(whole)

    @property
    def _is_full(self) -> bool:
        """Whether no more is being fetched: what is there has to be taken first."""
        return self._has_begun and not self._running


def _letter(address: TextAddress, kind: str, why: str) -> DeadLetter:
    """Return the dead letter for what a store said. Another worker may have found a text there, so
    it is retracted first.
    """
    return DeadLetter("fetch", kind, f"The text at {shown(address.whole)} {why}.", is_timed=True)
