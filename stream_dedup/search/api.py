"""`/v1/find` and `/v1/groups` of a running search. It is read-only.

    GET  /v1/find?q=TEXT[&limit=N][&offset=N][&order=ORDER][&host=HOST][&least=SHARE][&snippets=no]
    POST /v1/find[?limit=N...]                    the body is the text, in UTF-8
    GET  /v1/groups[?order=largest|newest][&limit=N]
    GET  /v1/groups?of=POSITION|ID[&limit=N]

Invariants: at most `CALLS_MAX` requests are answered at a time, each in a thread, and others get 503;
an error is a problem of RFC 9457 with a sentence; the token of the console is required here too; with
a prefix of the console, both also answer under it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stream_dedup.console.calls import BoundedCalls, as_page_errors
from stream_dedup.console.guard import TokenGuard
from stream_dedup.console.pages import PageError
from stream_dedup.domain.problem import PROBLEM_TYPE, problem_bytes
from stream_dedup.search.finding import FOUND_MAX, MEMBERS_MAX, Finder
from stream_dedup.search.query import QUERY_BYTES_MAX

_logger = structlog.get_logger("stream_dedup.search")

CALLS_MAX: Final = 4
SNIPPETS_MAX: Final = 100
GROUPS_MAX: Final = 1000
_FOUND: Final = 20
_WAIT_SECONDS: Final = 10.0
_NO_STORE: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class SearchApi:
    """The routes of a search. `answered` gets the seconds that each query took."""

    def __init__(
        self,
        finder: Finder,
        token_file: Path | None = None,
        answered: Callable[[float], None] = lambda _: None,
        prefix: str = "",
    ) -> None:
        self._finder = finder
        self._prefix = prefix.rstrip("/")
        self._guard = TokenGuard(token_file)
        self._answered = answered
        self._calls = BoundedCalls(CALLS_MAX, _WAIT_SECONDS, "is Kafka unavailable?")

    def routes(self) -> list[BaseRoute]:
        """Return the routes for `HttpServer`."""
        roots = dict.fromkeys(("", self._prefix))
        finds = [
            Route(f"{root}/v1/find", self._make_endpoint(self._find), methods=["GET", "POST"])
            for root in roots
        ]
        return [
            *finds,
            *(
                Route(f"{root}/v1/groups", self._make_endpoint(self._groups), methods=["GET"])
                for root in roots
            ),
        ]

    def _make_endpoint(
        self, answer: Callable[[Request], Awaitable[object]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                refused = self._guard.refuses(request.headers.get("authorization", ""))
                if refused:
                    raise PageError(401, refused)
                with as_page_errors(_logger, "a query failed", "The query failed"):
                    return _json(await answer(request))
            except PageError as error:
                return _problem(error)

        return endpoint

    async def _find(self, request: Request) -> object:
        query = request.query_params
        _refuse_others(query, ("q", "limit", "offset", "order", "host", "least", "snippets"))
        snippets = query.get("snippets", "yes")
        if snippets not in ("yes", "no"):
            raise PageError(400, f"The parameter snippets must be yes or no, not {snippets!r:.40}.")
        has_snippets = snippets == "yes"
        limit = _number(query, "limit", _FOUND, 1, SNIPPETS_MAX if has_snippets else FOUND_MAX)
        offset = _number(query, "offset", 0, 0, FOUND_MAX)
        least = _least_share(query)
        text = (
            await _body(request) if request.method == "POST" else request.query_params.get("q", "")
        )
        began = time.monotonic()
        found = await self._calls(
            lambda: self._finder.find(
                text,
                limit,
                least,
                offset=offset,
                order=query.get("order", "best"),
                host=query.get("host", ""),
                snippets=has_snippets,
            )
        )
        self._answered(time.monotonic() - began)
        return {"least": least, "offset": offset} | asdict(found)

    async def _groups(self, request: Request) -> object:
        _refuse_others(request.query_params, ("of", "order", "limit"))
        named = request.query_params.get("of")
        default = _FOUND if named is None else MEMBERS_MAX
        limit = _number(request.query_params, "limit", default, 1, GROUPS_MAX)
        if named is not None:
            group = await self._calls(lambda: self._finder.group(named, limit))
            if group is None:
                raise PageError(404, f"No copies of {named!r:.300} are known.")
            return asdict(group)
        order = request.query_params.get("order", "largest")
        if order not in ("largest", "newest"):
            raise PageError(400, f"order must be largest or newest, not {order!r:.40}.")
        groups = await self._calls(lambda: self._finder.groups(order, limit))
        total = await self._calls(self._finder.group_count)
        return {
            "order": order,
            "total": total,
            "groups": [asdict(listed_group) | {"members": []} for listed_group in groups],
        }


async def _body(request: Request) -> str:
    body = await request.body()
    if len(body) > QUERY_BYTES_MAX:
        raise PageError(
            413,
            f"A search text has at most {QUERY_BYTES_MAX:,} bytes; a sentence or two is enough.",
        )
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise PageError(
            400, f"The search text is not UTF-8: {error.reason} at byte {error.start}."
        ) from error


def _json(value: object) -> Response:
    # In ASCII, because a lone surrogate has no UTF-8.
    return Response(json.dumps(value), 200, _NO_STORE, "application/json")


def _problem(error: PageError) -> Response:
    status = error.status
    headers = {
        401: {"WWW-Authenticate": 'Basic realm="stream-dedup"'},
        503: {"Retry-After": "1"},
    }.get(status, {})
    return Response(problem_bytes(status, str(error)), status, _NO_STORE | headers, PROBLEM_TYPE)


def _refuse_others(query: Mapping[str, str], parameters: Sequence[str]) -> None:
    """Refuse an unknown parameter, because it would be ignored."""
    other = next((name for name in query if name not in parameters), None)
    if other is not None:
        raise PageError(
            400, f"There is no parameter {other!r:.40}; the parameters are {', '.join(parameters)}."
        )


def _number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    value = query.get(name)
    if value is None:
        return default
    if (
        not value.isascii()
        or not value.isdigit()
        or len(value) > 9
        or not low <= int(value) <= high
    ):
        raise PageError(
            400,
            f"The parameter {name} must be a whole number from {low} to {high}, not {value!r:.40}.",
        )
    return int(value)


def _least_share(query: Mapping[str, str]) -> float | None:
    value = query.get("least")
    if value is None:
        return None
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:  # also refuses nan
        raise PageError(
            400,
            "The parameter least must be a share above 0 and up to 1, such as 0.5, not "
            f"{value!r:.40}.",
        )
    return share
