"""The HTTP API of a running index: `/v1/similar`, `/v1/memory` and `/v1/stats`, GET only.

The index has neither texts nor the key of the fingerprints, so the caller sends a fingerprint:

    /v1/similar?recipe=ID&print=HEX&digest=HEX&features=N[&sketch=HEX][&scope=HEX][&site=HEX][&title=HEX][&id=HEX][&limit=N][&similarity=SHARE]
    /v1/memory?plan=PLAN /v1/stats

Invariants: a look-up locks the index for one search; at most `LOOKUPS_MAX` look-ups wait at a time,
and others are refused; concurrent requests share one statistics report, which is cached for a
second; no request reads RocksDB; a response contains at most `RESULTS_MAX` documents; errors are
problem details of RFC 9457.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from stream_dedup.domain.errors import ConfigurationError, StoreError
from stream_dedup.domain.plan import parse, parse_similarity
from stream_dedup.domain.problem_details import PROBLEM_TYPE, problem_bytes
from stream_dedup.domain.relations import Origin
from stream_dedup.domain.sketch import SKETCH_BYTES
from stream_dedup.index import report
from stream_dedup.index.index import LogIndex
from stream_dedup.index.look_up import Query
from stream_dedup.serving.http import CachedAnswer

RESULTS_MAX: Final = 1000
LOOKUPS_MAX: Final = 8
_RESULTS_DEFAULT: Final = 100
_WAIT_SECONDS: Final = 2.0
_CACHE_SECONDS: Final = 1.0
_HEX: Final = re.compile(r"[0-9a-f]+\Z")
_NO_STORE: Final = {"Cache-Control": "no-store"}


class _RefusedError(Exception):
    """A refused request, with its status and message."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class IndexApi:
    """The routes of an index; they return 503 until `serve` was called."""

    def __init__(self) -> None:
        self._serving: tuple[LogIndex, CachedAnswer[dict[str, Any]]] | None = None
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)
        self._started_ms = time.time_ns() // 1_000_000

    def serve(self, index: LogIndex | None) -> None:
        """Set the index that answers requests; None while it is being closed."""
        if index is None:
            self._serving = None
        else:
            self._serving = (
                index,
                CachedAnswer(lambda: report.stats(index), _CACHE_SECONDS),
            )

    def routes(self) -> list[BaseRoute]:
        """Return the routes for `HttpServer`."""
        return [
            Route("/v1/similar", self._endpoint(self._similar), methods=["GET"]),
            Route("/v1/memory", self._endpoint(self._memory), methods=["GET"]),
            Route("/v1/stats", self._endpoint(self._stats), methods=["GET"]),
        ]

    def _endpoint(
        self, handler: Callable[..., Awaitable[object]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                if self._serving is None:
                    raise _RefusedError(
                        503, "The index is still opening its volume, or is closing; see /startupz."
                    )
                return JSONResponse(
                    await handler(*self._serving, request.query_params), headers=_NO_STORE
                )
            except _RefusedError as refused:
                return _problem(refused.status, refused)
            except ConfigurationError as error:
                return _problem(409, error)
            except StoreError as error:
                return _problem(503, error)

        return endpoint

    async def _similar(
        self, index: LogIndex, _: CachedAnswer[dict[str, Any]], query: Mapping[str, str]
    ) -> object:
        recipe = query.get("recipe", "")
        print_digits = _parse_digits(query, "print", (16, 32, 48, 64))
        digest = bytes.fromhex(_parse_digits(query, "digest", (32,)))
        features = _parse_number(query, "features", None, 0, (1 << 32) - 1)
        scope, site, title, id_crc = (
            int(_parse_digits(query, name, range(1, digits_max + 1)), 16) if name in query else 0
            for name, digits_max in (("scope", 16), ("site", 16), ("title", 16), ("id", 8))
        )
        sketch = (
            bytes.fromhex(_parse_digits(query, "sketch", (2 * SKETCH_BYTES,)))
            if "sketch" in query
            else b""
        )
        limit = _parse_number(query, "limit", _RESULTS_DEFAULT, 1, RESULTS_MAX)
        similarity = _parse_similarity(query)
        if similarity is not None and index.plan is not None and not index.plan.needs_sketch:
            raise _RefusedError(
                409,
                f"The plan {index.plan.name} compares no sketches, so documents have no "
                "similarity. Leave out the parameter similarity.",
            )
        declared = index.declared
        if declared is not None and declared.recipe != recipe:
            raise _RefusedError(
                409,
                f"The fingerprint has the recipe {recipe!r:.100}, but this index contains "
                f"fingerprints of {declared.recipe!r}, and they cannot be compared. Use the "
                "recipe and the key of the workers.",
            )
        document = Query(digest, sketch, Origin(site, title, id_crc))
        number = int(print_digits, 16)
        limbs = [(number >> shift) & (2**64 - 1) for shift in range(0, 4 * len(print_digits), 64)]
        try:
            await asyncio.wait_for(self._lookups.acquire(), _WAIT_SECONDS)
        except TimeoutError:
            raise _RefusedError(
                503, f"{LOOKUPS_MAX} look-ups are already waiting; try again in a second."
            ) from None
        try:
            return await run_in_threadpool(
                lambda: report.similar(
                    index,
                    index.similar(limbs, digest, features, scope, limit, sketch, similarity),
                    document,
                )
            )
        finally:
            self._lookups.release()

    async def _memory(
        self, index: LogIndex, _: CachedAnswer[dict[str, Any]], query: Mapping[str, str]
    ) -> object:
        try:
            plan = parse(query.get("plan", ""))
        except ConfigurationError as error:
            raise _RefusedError(400, str(error)) from error
        memory = await run_in_threadpool(lambda: index.memory_for(plan))
        return {
            "plan": plan.id,
            "applied": index.applied,
            "is_enough": memory.is_enough,
            **memory._asdict(),
        }

    async def _stats(
        self, _: LogIndex, answer: CachedAnswer[dict[str, Any]], query: Mapping[str, str]
    ) -> object:
        del query
        return await answer.get() | {"started_ms": self._started_ms}


def _problem(status: int, error: Exception) -> Response:
    headers = _NO_STORE | ({"Retry-After": "1"} if status == 503 else {})
    return Response(problem_bytes(status, str(error)), status, headers, PROBLEM_TYPE)


def _parse_similarity(query: Mapping[str, str]) -> int | None:
    try:
        return parse_similarity(query["similarity"]) if "similarity" in query else None
    except ConfigurationError as error:
        raise _RefusedError(400, f"The parameter similarity: {error}") from error


def _parse_digits(query: Mapping[str, str], name: str, lengths: range | tuple[int, ...]) -> str:
    value = query.get(name, "").lower()
    if len(value) not in lengths or not _HEX.match(value):
        allowed = (
            f"{lengths[0]} to {lengths[-1]}"
            if isinstance(lengths, range)
            else " or ".join(map(str, lengths))
        )
        raise _RefusedError(
            400,
            f"The parameter {name} must be {allowed} hexadecimal digits, not "
            f"{query.get(name, '')!r:.80}.",
        )
    return value


def _parse_number(
    query: Mapping[str, str], name: str, default: int | None, low: int, high: int
) -> int:
    value = query.get(name)
    if value is None and default is not None:
        return default
    if (
        value is None
        or not value.isascii()
        or not value.isdigit()
        or len(value) > 20
        or not low <= int(value) <= high
    ):
        raise _RefusedError(
            400,
            f"The parameter {name} must be a whole number from {low} to {high}, not {value!r:.40}.",
        )
    return int(value)
