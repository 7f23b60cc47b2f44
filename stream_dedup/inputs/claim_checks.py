"""Fetch texts that are stored elsewhere by their addresses, many at once and ahead of the caller.

A text is found, or missing permanently (a dead letter of stage `fetch`), or unavailable now
(`TextAwayError`); `stores` decides which. An attempt that takes too long is unavailable too. An
unavailable text is tried three times, after growing random pauses; then the caller gets the error and
asks again later. A text that stays unavailable while its store answers for others is given up in the
end, as a dead letter; if no other text is fetched, the store is probed with the last text that it
returned.

A fetched text stays buffered between calls while its address is requested, so texts after an
unavailable one are not fetched again.

Invariants: a text is read completely or not at all. At most `ahead_bytes` and one more text are
buffered, so that the first always fits. Compressed texts are decompressed when they are returned, to at
most `text_bytes`.
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
from stream_dedup.inputs.compressed import SUFFIXES, packing_of, unpack
from stream_dedup.inputs.stores import (
    NOT_FOUND,
    AwayNowError,
    MissingTextError,
    NoRoomError,
    TextStores,
)

Fetched: TypeAlias = bytes | DeadLetter

# The largest number of concurrent fetches of a worker: enough to keep the kernels busy at 50 ms a fetch.
AT_ONCE = 64
# The least time for one attempt to fetch a text.
ATTEMPT_SECONDS = 10.0
# After this time a text that is unavailable, while its store answers for others, becomes a dead
# letter; longer than a store's failover.
PATIENCE_SECONDS = 600.0
_ATTEMPT_BYTES_PER_SECOND: Final = 1_000_000
_ATTEMPTS: Final = 3
_RETRY_SECONDS: Final = 0.1
# `fetch` returns the buffered texts after this time, or once there are this many: kernels process
# many texts at once.
_GATHER_SECONDS: Final = 0.25
_GATHER_TEXTS: Final = 1_000
_POLL_SECONDS: Final = 0.02
_ASSUMED_TEXT_BYTES: Final = 16 << 10
_SNIFFED_BYTES: Final = 8 << 10
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")


class FetchLimits(NamedTuple):
    """The limits of a `TextFetcher`: concurrent fetches, bytes of a text (compressed or not), and
    seconds of an attempt.

    `patience_seconds`: a text that is unavailable for so long, while its store answers for others, is
    given up.
    """

    at_once: int
    text_bytes: int
    attempt_seconds: float
    patience_seconds: float = math.inf


def fetch_limits(text_bytes: int) -> FetchLimits:
    """Return the limits of a worker whose texts have at most `text_bytes`; an attempt has the time to
    read a text of that size at 1 MB/s.
    """
    seconds = max(ATTEMPT_SECONDS, text_bytes / _ATTEMPT_BYTES_PER_SECOND)
    return FetchLimits(AT_ONCE, text_bytes, seconds, PATIENCE_SECONDS)


class _Answer(NamedTuple):
    """The last address that a store answered for, and the time."""

    address: TextAddress
    time: float


class _Delay(NamedTuple):
    """The time for which a text was unavailable while its store answered for others, and the time of
    the last attempt.
    """

    seconds: float
    failed_at: float


class TextFetcher:
    """Fetches texts, for one caller at a time; the stores are read in another thread."""

    def __init__(
        self,
        prefixes: Sequence[str],
        limits: FetchLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a fetcher for the prefixes that `parse_prefixes` returned, without connecting.

        Raises:
            ConfigurationError: a library is not installed, or its environment is invalid.
        """
        self._prefixes = tuple(prefixes)
        self._at_once, self._text_bytes, self._attempt_seconds, self._patience_seconds = limits
        self._clock = clock
        self._stores = TextStores(self._prefixes, self._text_bytes, self._at_once)
        self._changed = threading.Condition()
        # All attributes below are read and written under `_changed`.
        self._requested: Sequence[TextAddress] = ()
        self._last: dict[str, int] = {}  # the last index of each address in `_requested`
        self._first: TextAddress | None = None  # the text that the caller waits for
        # The requested texts, each once; one that is requested again after its return is appended.
        self._order: list[TextAddress] = []
        self._places: dict[str, int] = {}  # index in `_order` of those not returned yet
        self._next = 0  # the first index in `_order` that may have to be started
        self._found: dict[str, Fetched] = {}
        self._reserved: dict[str, int] = {}  # bytes of each buffered text or running fetch
        self._reserved_bytes = 0
        self._ahead_bytes = 0
        self._running: dict[str, asyncio.Task[None]] = {}
        self._sizes: dict[str, int] = {}  # of texts that did not fit
        self._away: dict[str, str] = {}
        self._delays: dict[str, _Delay] = {}  # of unavailable texts, kept between calls
        self._answers: dict[str, _Answer] = {}  # by origin
        self._probed: asyncio.Task[None] | None = None
        self._mean_bytes = _ASSUMED_TEXT_BYTES
        self._has_launched = False

    def check(self, address: str) -> TextAddress | DeadLetter:
        """Return an allowed address, or the dead letter of a refused one; the result depends on the
        settings only.
        """
        found = checked(address, self._prefixes)
        return DeadLetter("fetch", "AddressRefused", found) if isinstance(found, str) else found

    def fetch_one(self, address: TextAddress) -> Fetched:
        """Return one text, or the dead letter of a missing one.

        Raises:
            TextAwayError: the text is unavailable now.
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
        """Return the text at index `start`, and the next ones that are available soon.

        Later texts are fetched meanwhile, and buffered for the next call with the same list and a
        later start; `ahead_bytes` limits the buffer. The result has at most `stretch_bytes` and one
        more text.

        Raises:
            TextAwayError: the first text is unavailable now, or is not fetched yet when
            `is_hurried` returns True.
        """
        if start == len(addresses):
            return []
        self._request(addresses, start, ahead_bytes)
        end = min(len(addresses), start + _GATHER_TEXTS)
        deadline = time.monotonic() + _GATHER_SECONDS
        ready = start
        with self._changed:
            while True:
                while ready < end and addresses[ready].url in self._found:
                    ready += 1
                if ready == end:
                    break
                first = addresses[ready].url
                if ready > start and (
                    first in self._away
                    or self._is_full
                    or is_hurried()
                    or time.monotonic() >= deadline
                ):
                    break
                if first in self._away:
                    raise TextAwayError(
                        f"The text at {shown(first)} {self._away[first]}; the records wait for it."
                    )
                if is_hurried():
                    raise TextAwayError(f"The text at {shown(first)} is not fetched yet.")
                self._changed.wait(_POLL_SECONDS)
        return self._take_buffered(addresses, start, ready, stretch_bytes)

    # -- in the thread of the caller

    def _request(self, addresses: Sequence[TextAddress], start: int, ahead_bytes: int) -> None:
        """Request the texts from index `start`, in this order; drop buffered texts that are not among
        them.
        """
        with self._changed:
            self._first = addresses[start]
            self._ahead_bytes = ahead_bytes
            self._has_launched = False
            if addresses is not self._requested:
                self._requested = addresses
                self._last = {addresses[index].url: index for index in range(start, len(addresses))}
                self._order = list({address.url: address for address in addresses[start:]}.values())
                self._places = {address.url: index for index, address in enumerate(self._order)}
                self._next = 0
                for url in self._found.keys() - self._places.keys():
                    self._forget(url)
                self._sizes = {
                    url: size for url, size in self._sizes.items() if url in self._places
                }
                # A text may be requested again in another list.
                since = self._clock() - self._patience_seconds
                self._delays = {
                    url: delay for url, delay in self._delays.items() if delay.failed_at >= since
                }
            else:
                self._next = min([self._next, *(self._places[url] for url in self._away)])
            self._away.clear()
        self._stores.run(self._start_reader())

    def _take_buffered(
        self, addresses: Sequence[TextAddress], start: int, end: int, stretch_bytes: int
    ) -> list[Fetched]:
        """Return buffered texts, unpacked, until `stretch_bytes` are reached; drop them from the
        buffer.
        """
        result: list[Fetched] = []
        texts: dict[str, Fetched] = {}
        size = 0
        for address in addresses[start:end]:
            if result and size >= stretch_bytes:
                break
            if address.url not in texts:
                text = texts[address.url] = self._text_of(address, self._found[address.url])
                size += len(text) if isinstance(text, bytes) else 0
            result.append(texts[address.url])
        with self._changed:
            for url in texts:
                self._forget(url)
                address = self._order[self._places.pop(url)]
                if self._last[url] >= start + len(result):  # it is requested again
                    self._places[url] = len(self._order)
                    self._order.append(address)
        return result

    def _text_of(self, address: TextAddress, found: Fetched) -> Fetched:
        """Return fetched bytes unpacked, or the dead letter of bytes that are not text."""
        if isinstance(found, DeadLetter):
            return found
        named = next((suffix for suffix in SUFFIXES if address.path.lower().endswith(suffix)), "")
        compression = packing_of(found) or named
        if compression:
            try:
                unpacked = unpack(compression, found, self._text_bytes)
            except InputError as error:
                return _letter(address, "Damaged", f"is compressed, and {error}")
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - no text may stop others
                return _letter(
                    address,
                    type(error).__name__,
                    f"is compressed, and cannot be unpacked: {printable(str(error))}",
                )
            if unpacked is None:
                return _letter(
                    address,
                    "TooLarge",
                    f"has more than {self._text_bytes} bytes after it is unpacked",
                )
            found = unpacked
        head = found[:_SNIFFED_BYTES]
        if head.startswith(b"%PDF-") or (b"\0" in head and not head.startswith(_UTF16_BOMS)):
            return _letter(address, "NotText", "is not text: it contains zero bytes, or is a PDF")
        return found

    # -- in the thread that reads

    async def _start_reader(self) -> None:
        with self._changed:
            gone = [task for url, task in self._running.items() if url not in self._places]
            self._has_launched = True
            self._launch()
        for task in gone:
            task.cancel()

    def _launch(self) -> None:
        """Start the next fetches within the limits; start none of an origin with an unavailable
        text.
        """
        if self._first is not None:
            self._start(self._first)
        away = (
            {address.origin for address in self._order if address.url in self._away}
            if self._away
            else set()
        )
        while len(self._running) < self._at_once and self._next < len(self._order):
            address = self._order[self._next]
            if address.origin in away or not self._start(address):
                break
            self._next += 1

    def _start(self, address: TextAddress) -> bool:
        """Start to fetch a text, unless it is fetched, unavailable, returned or running; return False
        if it does not fit into the buffer.
        """
        url = address.url
        if url in self._places and not (
            url in self._found or url in self._running or url in self._away
        ):
            size = self._sizes.get(url, self._mean_bytes)
            if not self._has_room(url, size):
                return False
            self._reserve(url, size)
            self._running[url] = asyncio.get_running_loop().create_task(self._fetch(address))
        return True

    async def _fetch(self, address: TextAddress) -> None:
        """Fetch one text, and store it or the reason of the failure."""
        url = address.url
        found: Fetched | None = None
        away: str | None = None
        began = self._clock()
        try:
            for attempt in range(_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(_RETRY_SECONDS * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
                try:
                    async with asyncio.timeout(self._attempt_seconds):
                        found = await self._stores.read_text(address, partial(self._admit, url))
                    break
                except AwayNowError as error:
                    away = str(error)
                except TimeoutError:
                    away = f"was not read within {self._attempt_seconds:g} s"
        except MissingTextError as error:
            found = _letter(address, error.kind, str(error))
        except NoRoomError as error:
            with self._changed:
                self._sizes[url] = error.size
        except Exception as error:  # noqa: BLE001 - otherwise the caller would wait for ever
            away = f"is unavailable ({printable(f'{type(error).__name__}: {error}')})"
        finally:
            with self._changed:
                if found is not None:
                    self._note_answer(address, found)
                elif away is not None:
                    found = self._letter_if_late(address, away, began)
                self._store_result(url, found, away)

    def _note_answer(self, address: TextAddress, found: Fetched) -> None:
        """Store that a store answered, also if it does not contain the text."""
        self._delays.pop(address.url, None)
        if isinstance(found, bytes) or found.error_class == NOT_FOUND:
            self._answers[address.origin] = _Answer(address, self._clock())

    def _letter_if_late(self, address: TextAddress, away: str, began: float) -> DeadLetter | None:
        """Return the dead letter of a text that was unavailable for too long while its store answered
        for others; otherwise None.
        """
        if self._patience_seconds == math.inf:
            return None
        now, recent = self._clock(), self._patience_seconds / 10
        seconds, failed_at = self._delays.get(address.url, _Delay(0.0, began))
        answer = self._answers.get(address.origin)
        if answer is not None and answer.time >= min(failed_at, now - recent):
            seconds += now - failed_at
        if answer is not None and answer.time < now - recent / 2 and self._probed is None:
            self._probed = asyncio.get_running_loop().create_task(self._probe_store(answer.address))
        if seconds < self._patience_seconds:
            self._delays[address.url] = _Delay(seconds, now)
            return None
        self._delays.pop(address.url, None)
        return _letter(
            address,
            "GivenUp",
            f"{away}, for {seconds:.0f} s, while {shown(address.origin)} returned other texts; "
            "redrive it later",
        )

    async def _probe_store(self, address: TextAddress) -> None:
        """Ask a store for a text that it answered for before, to learn whether it answers now."""
        try:
            async with asyncio.timeout(self._attempt_seconds):
                found: Fetched = await self._stores.read_text(address, lambda _size: None)
        except MissingTextError as error:
            found = _letter(address, error.kind, str(error))
        except Exception:  # noqa: BLE001 - it does not answer
            return
        finally:
            self._probed = None
        with self._changed:
            self._note_answer(address, found)

    def _store_result(self, url: str, found: Fetched | None, away: str | None) -> None:
        """Store the result of a fetch: `found`, or the reason `away`, or neither if it did not fit or
        was cancelled; start the next.
        """
        del self._running[url]
        self._release(url)
        index = self._places.get(url)
        if index is not None:
            if found is not None:
                self._found[url] = found
                size = len(found) if isinstance(found, bytes) else 0
                self._reserve(url, size)
                self._mean_bytes = (7 * self._mean_bytes + size) // 8
            elif away is not None:
                self._away[url] = away
            else:
                self._next = min(self._next, index)
        self._launch()
        if not self._running:
            # Not for each text: waking the caller is expensive, and it polls anyway.
            self._changed.notify_all()

    def _admit(self, url: str, size: int) -> None:
        """Reserve `size` bytes of the buffer.

        Raises:
            NoRoomError: they do not fit.
        """
        with self._changed:
            if size > self._reserved.get(url, 0):
                if not self._has_room(url, size):
                    raise NoRoomError(size)
                self._reserve(url, size)

    def _has_room(self, url: str, size: int) -> bool:
        """Return whether `size` bytes of a text fit into the buffer; the first text always fits."""
        is_first = self._first is not None and self._first.url == url
        return (
            is_first
            or self._reserved_bytes - self._reserved.get(url, 0) + size <= self._ahead_bytes
        )

    def _reserve(self, url: str, size: int) -> None:
        self._reserved_bytes += size - self._reserved.get(url, 0)
        self._reserved[url] = size

    def _release(self, url: str) -> None:
        self._reserved_bytes -= self._reserved.pop(url, 0)

    def _forget(self, url: str) -> None:
        del self._found[url]
        self._release(url)

    @property
    def _is_full(self) -> bool:
        """Whether no fetch is running, because the buffer is full."""
        return self._has_launched and not self._running


def _letter(address: TextAddress, kind: str, why: str) -> DeadLetter:
    """Return the dead letter for the answer of a store; it is not reproducible, because another worker
    may have read a text there.
    """
    return DeadLetter("fetch", kind, f"The text at {shown(address.url)} {why}.", can_vary=True)
