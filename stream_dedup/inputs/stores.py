"""What reads the bytes at an address: beside `addressed` the only file that knows fsspec. Needs
`crawl-dedup[fetch]`.

An attempt gives the bytes, or one of three errors:

    MissingTextError   for good: 404 and other 4xx, 403 once its origin has given something, too large, a redirect elsewhere
    AwayNowError       for now: refused or broken connection, 5xx, 401, 408, 425, 429, expired credentials; and 403 while its
                       origin has given nothing at all, because then the credentials are sooner at
                       fault than a text
    NoRoomError        the caller has no room for it now

Credentials, endpoints and proxies are those of the environment, as each library reads them
(`AWS_*`, `FSSPEC_S3_*`, ...).

Invariants: no redirect leads to another host or to what no prefix allows. At most a part more than
`bytes_max` is ever read. The place that a file leads to lies below a prefix too, also behind links.
An error that says nothing known counts as away: a text that is held can still be had, and a fault
of the store must not make dead letters of all that it has.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urljoin

from stream_dedup.domain.addresses import TextAddress, checked, scheme_of, shown
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.printable import printable
from stream_dedup.inputs.addressed import class_of

Admit = Callable[[int], None]
# The error class of a text that its store does not contain.
NOT_FOUND: Final = "NotFound"

_WEB: Final = ("http", "https")
_LIBRARIES: Final = {
    **dict.fromkeys(("http", "https"), ("aiohttp", "fetch")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gs")),
    **dict.fromkeys(("abfs", "abfss", "az"), ("adlfs", "abfs")),
}
_PART_BYTES: Final = 64 << 10
_THREADS_MAX: Final = 32
_REDIRECTS_MAX: Final = 5
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_FORBIDDEN: Final = 403
_AWAY: Final = (401, 407, 408, 425, 429)
_ENCODINGS: Final = ("", "identity", "gzip", "x-gzip", "zstd")
# What S3 answers with 400 or 403 and is no fault of the object: credentials, clocks, regions,
# haste.
_AWAY_CODES: Final = (
    *(
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeout",
    ),
    *("RequestTimeTooSkewed", "SignatureDoesNotMatch", "SlowDown", "TokenRefreshRequired"),
)
_IMPOSSIBLE: Final = (ValueError, IsADirectoryError, NotADirectoryError)
_IMPOSSIBLE_NAMES: Final = ("ParamValidationError", "InvalidURL")
_IMPOSSIBLE_NUMBERS: Final = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)


class MissingTextError(Exception):
    """There is no such text, for good; `kind` is the class of its dead letter, the message what is
    said of its address.
    """

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class AwayNowError(Exception):
    """This attempt found nothing, and a later one may; the message is what is said of its
    address.
    """


class NoRoomError(Exception):
    """There is no room for these bytes now."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class TextStores:
    """Reads what lies at addresses. `read_text` is a coroutine for the loop that `run` runs it in,
    a thread of fsspec's own.
    """

    def __init__(self, prefixes: Sequence[str], bytes_max: int, at_once: int) -> None:
        """Make what reads at these prefixes; nothing is asked yet.

        Raises:
            ConfigurationError: a library is not installed, or cannot be used as its environment
            says.
        """
        self._prefixes = prefixes
        self._bytes_max = bytes_max
        self._at_once = at_once
        self._giving: set[str] = set()
        self._systems: dict[str, Any] = {}
        self._threads = ThreadPoolExecutor(min(at_once, _THREADS_MAX), "texts")
        for scheme in sorted(set(map(scheme_of, prefixes))):
            library, extra = _LIBRARIES.get(scheme, ("fsspec", "fetch"))
            try:
                importlib.import_module("fsspec")
                importlib.import_module(library)
            except ImportError as error:
                raise ConfigurationError(
                    f"Texts at {scheme}:// need libraries that are not installed; run: pip install "
                    f"'crawl-dedup[{extra}]' "
                    f"({error})"
                ) from error
        for prefix in prefixes:
            try:
                self._system(TextAddress(prefix, scheme_of(prefix), prefix, ""))
            except Exception as error:  # each library raises what it likes
                raise ConfigurationError(
                    f"Texts at {shown(prefix)} cannot be read as the environment says: "
                    f"{printable(str(error))}; correct the "
                    "credentials and addresses there, or STREAM_DEDUP_TEXT_PREFIXES."
                ) from error

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> Future[None]:
        """Run something in the loop."""
        from fsspec.asyn import get_loop  # noqa: PLC0415 - an extra

        return asyncio.run_coroutine_threadsafe(coroutine, get_loop())

    async def read_text(self, address: TextAddress, admit: Admit) -> bytes:
        """Return the bytes that lie there; `admit` is asked with their number before they are held,
        and raises `NoRoomError`.

        Raises:
            MissingTextError, AwayNowError, NoRoomError: there are none, or not now.
        """
        try:
            system = self._system(address)
            if address.scheme in _WEB:
                found = await self._read_web(system, address, admit)
            elif not system.async_impl:
                found = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._read_here, system, address, admit
                )
            elif _streams(system):
                found = await self._read_stream(await system.open_async(address.whole, "rb"), admit)
            else:
                found = await self._read_at_once(system, address, admit)
        except (MissingTextError, AwayNowError, NoRoomError):
            raise
        except Exception as error:  # each library raises what it likes
            raise self._told(address, error) from error
        self._giving.add(address.origin)
        return found

    def _system(self, address: TextAddress) -> Any:
        """Return the file system for an address: one for each scheme, and for each account where
        the address names it.
        """
        kind = class_of(address.scheme)
        named = {} if address.scheme in _WEB else kind._get_kwargs_from_urls(address.whole)
        key = f"{address.scheme} {sorted(named.items())}"
        if key not in self._systems:
            options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
            if address.scheme in _WEB:
                options = {"skip_instance_cache": True, "get_client": _web_client}
            elif address.scheme in ("s3", "s3a"):
                options["config_kwargs"] = {
                    "max_pool_connections": self._at_once,
                    "retries": {"total_max_attempts": 1},
                }
            system = kind(**options, **named)
            if hasattr(system, "retries"):
                system.retries = 1  # the caller counts the attempts
            self._systems[key] = system
        return self._systems[key]

    async def _read_web(self, system: Any, address: TextAddress, admit: Admit) -> bytes:
        # By the session itself: what fsspec opens loses what it is told of redirects.
        session = await system.set_session()
        asked: dict[str, Any] = {
            "allow_redirects": False,
            "headers": {"Accept-Encoding": "gzip, identity"},
        }
        at = address
        for _ in range(_REDIRECTS_MAX + 1):
            async with session.get(system.encode_url(at.whole), **asked) as response:
                if response.status not in _REDIRECTS:
                    response.raise_for_status()
                    encoding = response.headers.get("Content-Encoding", "").strip().lower()
                    if encoding not in _ENCODINGS:
                        raise MissingTextError(
                            "NotText",
                            f"is packed with {printable(encoding, 40)}, which is not read",
                        )
                    length = response.headers.get("Content-Length", "")
                    return await self._read_parts(
                        response.content, int(length) if length.isdecimal() else 0, admit
                    )
                to = urljoin(at.whole, response.headers.get("Location", ""))
            found = checked(to, self._prefixes)
            if isinstance(found, str) or found.origin != address.origin:
                raise MissingTextError(
                    "Redirected",
                    f"leads on to {shown(to)}, which is another host or may not be read",
                )
            at = found
        raise MissingTextError("Redirected", f"leads on more than {_REDIRECTS_MAX} times")

    async def _read_stream(self, stream: Any, admit: Admit) -> bytes:
        try:
            await stream.read(0)
            return await self._read_parts(stream, stream.size or 0, admit)
        finally:
            if stream.r is not None:
                stream.r.close()

    async def _read_parts(self, stream: Any, announced: int, admit: Admit) -> bytes:
        self._measure(announced)
        admit(announced)
        found = bytearray()
        while part := await stream.read(_PART_BYTES):
            found += part
            self._measure(len(found))
            admit(len(found))
        return bytes(found)

    async def _read_at_once(self, system: Any, address: TextAddress, admit: Admit) -> bytes:
        """Read from a store that gives no stream: only once its size is known."""
        size = int((await system._info(address.whole))["size"] or 0)
        self._measure(size)
        admit(size)
        return bytes(await system._cat_file(address.whole, start=0, end=size)) if size else b""

    def _read_here(self, system: Any, address: TextAddress, admit: Admit) -> bytes:
        """Read from a disk, in a thread."""
        whole = address.whole
        if address.scheme == "file":
            leads_to = checked(
                "file://" + os.path.realpath(address.path), _true_prefixes(self._prefixes)
            )
            if isinstance(leads_to, str):
                raise MissingTextError("AddressRefused", "leads to a place that no prefix allows")
            whole = leads_to.whole
        info = system.info(whole)
        if info["type"] != "file":
            raise MissingTextError(NOT_FOUND, "is no file")
        self._measure(info["size"])
        admit(info["size"])
        with system.open(whole, "rb") as stream:
            found: bytes = stream.read(self._bytes_max + 1)
        self._measure(len(found))
        return found

    def _measure(self, size: int) -> None:
        if size > self._bytes_max:
            raise MissingTextError(
                "TooLarge",
                f"has more than {self._bytes_max} bytes, as many as STREAM_DEDUP_TEXT_BYTES allows",
            )

    def _told(self, address: TextAddress, error: Exception) -> Exception:
        """Return what an error of a library says of a text."""
        chain = list(_chain(error))
        status = next(filter(None, map(_status, chain)), 0)
        code = next(filter(None, map(_code, chain)), "")
        why = _why(address, error, code)
        if status == 404 or isinstance(error, FileNotFoundError):
            self._giving.add(address.origin)  # a caller that may not look is told so
            return MissingTextError(NOT_FOUND, "is not there (404)")
        if code in _AWAY_CODES or status in _AWAY:
            return AwayNowError(f"is refused now ({status}, {why})")
        if status == _FORBIDDEN or isinstance(error, PermissionError):
            if address.origin in self._giving:
                return MissingTextError("Forbidden", "may not be read (403)")
            return AwayNowError(
                f"may not be read (403), and {shown(address.origin)} has given nothing yet: are "
                "the credentials right?"
            )
        if 400 <= status < 500:
            return MissingTextError("Refused", f"is refused ({status}, {why})")
        if status:
            return AwayNowError(f"is away ({status}, {why})")
        is_impossible = isinstance(error, _IMPOSSIBLE) or type(error).__name__ in _IMPOSSIBLE_NAMES
        if is_impossible or (isinstance(error, OSError) and error.errno in _IMPOSSIBLE_NUMBERS):
            return MissingTextError("Impossible", f"cannot be asked for ({why})")
        return AwayNowError(f"is away ({why})")


async def _web_client(*, loop: Any, **options: Any) -> Any:
    """Return what asks web servers: nothing is unpacked, no cookie kept, and the caller counts
    connections and time.
    """
    import aiohttp  # noqa: PLC0415 - an extra

    del loop
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        **options,
    )


def _streams(system: Any) -> bool:
    from fsspec.asyn import AsyncFileSystem  # noqa: PLC0415 - an extra

    return type(system).open_async is not AsyncFileSystem.open_async


def _true_prefixes(prefixes: Sequence[str]) -> list[str]:
    """Return where the prefixes of files lead: a folder that is allowed may itself be a link."""
    files = [one.removeprefix("file://") for one in prefixes if scheme_of(one) == "file"]
    return ["file://" + os.path.realpath(one or "/").rstrip("/") for one in files]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int:
    """Return the HTTP status in an error of aiohttp, botocore, gcsfs or Azure; 0 if there is
    none.
    """
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
    # `code` means that in gcsfs only: aiohttp gives the code 400 to an error of its own, of an
    # answer that broke off.
    found = getattr(error, "status", None) or getattr(error, "status_code", None)
    found = getattr(error, "code", None) if type(error).__name__ == "HttpError" else found
    return found if isinstance(found, int) and found >= 300 else 0


def _why(address: TextAddress, error: Exception, code: str) -> str:
    """Return what an error says, without what stands behind `?`, where signed addresses carry their
    secret.
    """
    said = str(getattr(error, "message", "") or error).replace(address.whole, shown(address.whole))
    said = re.sub(r"\?[^\s'\")]+", "?...", said)
    return printable(": ".join(filter(None, (code or type(error).__name__, said))))


def _code(error: BaseException) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
