"""Read the bytes at an address with fsspec. Needs `crawl-dedup[fetch]`.

An attempt returns the bytes, or raises one of three errors:

    MissingTextError   permanent: 404 and other 4xx, 403 if its origin has returned a text before,
                       too large, a redirect elsewhere
    AwayNowError       temporary: refused or broken connection, 5xx, 401, 408, 425, 429, expired
                       credentials; and 403 while its origin has returned no text, because then
                       probably the credentials are wrong
    NoRoomError        the caller has no room for it now

Each library reads credentials, endpoints and proxies from the environment (`AWS_*`, `FSSPEC_S3_*`,
...).

Invariants: redirects to another host, or to an address that no prefix allows, are not followed. At
most `bytes_max` and one part are read. The target of a link to a file must also be below a prefix. An
unknown error counts as temporary: the records wait, and a fault of the store does not make dead
letters of all its texts.
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
from stream_dedup.domain.extras import install_command
from stream_dedup.domain.printable import printable
from stream_dedup.inputs.remote_files import class_of

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
# Codes that S3 returns with 400 or 403 for reasons other than the object: credentials, clocks,
# regions, request rates.
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
    """The text is missing permanently. `kind` is the class of its dead letter; the message is the
    predicate of a sentence about its address.
    """

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class AwayNowError(Exception):
    """The text is unavailable now, and may be available later; the message is the predicate of a
    sentence about its address.
    """


class NoRoomError(Exception):
    """The caller has no room for `size` bytes now."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class TextStores:
    """Reads texts at addresses. `read_text` is a coroutine for the loop of `run`, in fsspec's thread."""

    def __init__(self, prefixes: Sequence[str], bytes_max: int, at_once: int) -> None:
        """Create the file systems of the prefixes, without connecting.

        Raises:
            ConfigurationError: a library is not installed, or its environment is invalid.
        """
        self._prefixes = prefixes
        self._bytes_max = bytes_max
        self._at_once = at_once
        self._answering: set[str] = set()
        self._systems: dict[str, Any] = {}
        self._threads = ThreadPoolExecutor(min(at_once, _THREADS_MAX), "texts")
        for scheme in sorted(set(map(scheme_of, prefixes))):
            library, extra = _LIBRARIES.get(scheme, ("fsspec", "fetch"))
            try:
                importlib.import_module("fsspec")
                importlib.import_module(library)
            except ImportError as error:
                raise ConfigurationError(
                    f"Texts at {scheme}:// need libraries that are not installed; run: "
                    f"{install_command(extra)} ({error})"
                ) from error
        for prefix in prefixes:
            try:
                self._system(TextAddress(prefix, scheme_of(prefix), prefix, ""))
            except Exception as error:  # each library raises errors of its own classes
                raise ConfigurationError(
                    f"Texts at {shown(prefix)} cannot be read with the settings of the environment: "
                    f"{printable(str(error))}; correct the credentials and addresses there, or "
                    "STREAM_DEDUP_TEXT_PREFIXES."
                ) from error

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> Future[None]:
        """Run a coroutine in fsspec's loop."""
        from fsspec.asyn import get_loop  # noqa: PLC0415 - an extra

        return asyncio.run_coroutine_threadsafe(coroutine, get_loop())

    async def read_text(self, address: TextAddress, admit: Admit) -> bytes:
        """Return the bytes at an address; `admit` is called with their number before they are in
        memory, and may raise `NoRoomError`.

        Raises:
            MissingTextError, AwayNowError, NoRoomError: see this module.
        """
        try:
            system = self._system(address)
            if address.scheme in _WEB:
                found = await self._read_web(system, address, admit)
            elif not system.async_impl:
                found = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._read_in_thread, system, address, admit
                )
            elif _streams(system):
                found = await self._read_stream(await system.open_async(address.url, "rb"), admit)
            else:
                found = await self._read_at_once(system, address, admit)
        except (MissingTextError, AwayNowError, NoRoomError):
            raise
        except Exception as error:  # each library raises errors of its own classes
            raise self._classify(address, error) from error
        self._answering.add(address.origin)
        return found

    def _system(self, address: TextAddress) -> Any:
        """Return the file system for an address: one for each scheme, and for each account where
        the address names it.
        """
        kind = class_of(address.scheme)
        named = {} if address.scheme in _WEB else kind._get_kwargs_from_urls(address.url)
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
        # By the HTTP session, because fsspec's files ignore options for redirects.
        session = await system.set_session()
        options: dict[str, Any] = {
            "allow_redirects": False,
            "headers": {"Accept-Encoding": "gzip, identity"},
        }
        current = address
        for _ in range(_REDIRECTS_MAX + 1):
            async with session.get(system.encode_url(current.url), **options) as response:
                if response.status not in _REDIRECTS:
                    response.raise_for_status()
                    encoding = response.headers.get("Content-Encoding", "").strip().lower()
                    if encoding not in _ENCODINGS:
                        raise MissingTextError(
                            "NotText",
                            f"is compressed with {printable(encoding, 40)}, which is not supported",
                        )
                    length = response.headers.get("Content-Length", "")
                    return await self._read_parts(
                        response.content, int(length) if length.isdecimal() else 0, admit
                    )
                to = urljoin(current.url, response.headers.get("Location", ""))
            found = checked(to, self._prefixes)
            if isinstance(found, str) or found.origin != address.origin:
                raise MissingTextError(
                    "Redirected",
                    f"redirects to {shown(to)}, which is another host or is not allowed",
                )
            current = found
        raise MissingTextError("Redirected", f"redirects more than {_REDIRECTS_MAX} times")

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
        """Read from a store without streams, after asking for the size."""
        size = int((await system._info(address.url))["size"] or 0)
        self._measure(size)
        admit(size)
        return bytes(await system._cat_file(address.url, start=0, end=size)) if size else b""

    def _read_in_thread(self, system: Any, address: TextAddress, admit: Admit) -> bytes:
        """Read from a disk, in a thread."""
        url = address.url
        if address.scheme == "file":
            target = checked(
                "file://" + os.path.realpath(address.path), _resolve_prefixes(self._prefixes)
            )
            if isinstance(target, str):
                raise MissingTextError(
                    "AddressRefused", "is a link to a path that no prefix allows"
                )
            url = target.url
        info = system.info(url)
        if info["type"] != "file":
            raise MissingTextError(NOT_FOUND, "is not a file")
        self._measure(info["size"])
        admit(info["size"])
        with system.open(url, "rb") as stream:
            found: bytes = stream.read(self._bytes_max + 1)
        self._measure(len(found))
        return found

    def _measure(self, size: int) -> None:
        if size > self._bytes_max:
            raise MissingTextError(
                "TooLarge",
                f"has more than {self._bytes_max} bytes, the limit of STREAM_DEDUP_TEXT_BYTES",
            )

    def _classify(self, address: TextAddress, error: Exception) -> Exception:
        """Return the `MissingTextError` or `AwayNowError` for an error of a library."""
        chain = list(_error_chain(error))
        status = next(filter(None, map(_http_status, chain)), 0)
        code = next(filter(None, map(_error_code, chain)), "")
        why = _printable_reason(address, error, code)
        if status == 404 or isinstance(error, FileNotFoundError):
            self._answering.add(address.origin)  # a 404 proves the permission
            return MissingTextError(NOT_FOUND, "does not exist (404)")
        if code in _AWAY_CODES or status in _AWAY:
            return AwayNowError(f"is temporarily refused ({status}, {why})")
        if status == _FORBIDDEN or isinstance(error, PermissionError):
            if address.origin in self._answering:
                return MissingTextError("Forbidden", "is forbidden (403)")
            return AwayNowError(
                f"is forbidden (403), and {shown(address.origin)} has returned no text yet: check "
                "the credentials"
            )
        if 400 <= status < 500:
            return MissingTextError("Refused", f"is refused ({status}, {why})")
        if status:
            return AwayNowError(f"is unavailable ({status}, {why})")
        is_impossible = isinstance(error, _IMPOSSIBLE) or type(error).__name__ in _IMPOSSIBLE_NAMES
        if is_impossible or (isinstance(error, OSError) and error.errno in _IMPOSSIBLE_NUMBERS):
            return MissingTextError("Impossible", f"cannot be requested ({why})")
        return AwayNowError(f"is unavailable ({why})")


async def _web_client(*, loop: Any, **options: Any) -> Any:
    """Return an HTTP session that unpacks nothing, stores no cookies and has no other limits."""
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


def _resolve_prefixes(prefixes: Sequence[str]) -> list[str]:
    """Return the prefixes of files with links resolved: an allowed folder may itself be a link."""
    folders = [prefix.removeprefix("file://") for prefix in prefixes if scheme_of(prefix) == "file"]
    return ["file://" + os.path.realpath(folder or "/").rstrip("/") for folder in folders]


def _error_chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _http_status(error: BaseException) -> int:
    """Return the HTTP status in an error of aiohttp, botocore, gcsfs or Azure; 0 if there is
    none.
    """
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
    # `code` is an HTTP status in gcsfs only: aiohttp's error for a truncated response also has a `code`,
    # 400.
    found = getattr(error, "status", None) or getattr(error, "status_code", None)
    found = getattr(error, "code", None) if type(error).__name__ == "HttpError" else found
    return found if isinstance(found, int) and found >= 300 else 0


def _printable_reason(address: TextAddress, error: Exception, code: str) -> str:
    """Return the message of an error without the queries of addresses: signed addresses have their
    secret there.
    """
    text = str(getattr(error, "message", "") or error).replace(address.url, shown(address.url))
    text = re.sub(r"\?[^\s'\")]+", "?...", text)
    return printable(": ".join(filter(None, (code or type(error).__name__, text))))


def _error_code(error: BaseException) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
