"""Answer `/v1/find` and `/v1/groups` of a running search. Read-only.

    GET  /v1/find?q=TEXT[&limit=N][&offset=N][&order=ORDER][&host=HOST][&min_share=SHARE][&snippets=no]
    POST /v1/find[?limit=N...]                    the body is the text, in UTF-8
    GET  /v1/groups[?order=largest|newest][&limit=N][&offset=N]
    GET  /v1/groups?document=POSITION|ID[&limit=N][&offset=N]

The console (`ConsolePages`) serves both, with its token, path prefix, limits and error responses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

from starlette.requests import Request

from stream_dedup.console.app import ApiAnswers
from stream_dedup.console.pages import PageError, ThreadCall, refuse_unknown
from stream_dedup.domain.errors import InputError
from stream_dedup.search.finding import FOUND_MAX, MEMBERS_MAX, Finder
from stream_dedup.search.query import QUERY_BYTES_MAX

SNIPPETS_MAX: Final = 100
GROUPS_MAX: Final = 1000
_LIMIT: Final = 20


class SearchApi:
    """Answers requests to a search. `observe_seconds` gets the duration of each query."""

    def __init__(
        self, finder: Finder, observe_seconds: Callable[[float], None] = lambda _: None
    ) -> None:
        self._finder = finder
        self._observe_seconds = observe_seconds

    @property
    def answers(self) -> ApiAnswers:
        """The methods and the answering function of each path."""
        return {
            "v1/find": (("GET", "POST"), self._find),
            "v1/groups": (("GET",), self._groups),
        }

    async def _find(self, request: Request, call: ThreadCall) -> object:
        query = request.query_params
        refuse_unknown(query, ("q", "limit", "offset", "order", "host", "min_share", "snippets"))
        snippets = query.get("snippets", "yes")
        if snippets not in ("yes", "no"):
            raise InputError(f"The parameter snippets must be yes or no, not {snippets!r:.40}.")
        has_snippets = snippets == "yes"
        limit = _parse_number(
            query, "limit", _LIMIT, 1, SNIPPETS_MAX if has_snippets else FOUND_MAX
        )
        offset = _parse_number(query, "offset", 0, 0)
        min_share = _parse_min_share(query)
        text = await _read_body(request) if request.method == "POST" else query.get("q", "")
        started = time.monotonic()
        found = await call(
            lambda: self._finder.find(
                text,
                limit,
                min_share,
                offset=offset,
                order=query.get("order", "best"),
                host=query.get("host", ""),
                snippets=has_snippets,
            )
        )
        self._observe_seconds(time.monotonic() - started)
        return {"min_share": min_share, "offset": offset} | asdict(found)

    async def _groups(self, request: Request, call: ThreadCall) -> object:
        query = request.query_params
        refuse_unknown(query, ("document", "order", "limit", "offset"))
        document = query.get("document")
        default = _LIMIT if document is None else MEMBERS_MAX
        limit = _parse_number(query, "limit", default, 1, GROUPS_MAX)
        offset = _parse_number(query, "offset", 0, 0)
        if document is not None:
            group = await call(lambda: self._finder.group(document, limit, offset))
            if group is None:
                raise PageError(404, f"No copies of {document!r:.300} are known.")
            return {"offset": offset} | asdict(group)
        order = query.get("order", "largest")
        if order not in ("largest", "newest"):
            raise InputError(f"order must be largest or newest, not {order!r:.40}.")
        groups = await call(lambda: self._finder.groups(order, limit, offset))
        return {
            "order": order,
            "total": await call(self._finder.group_count),
            "offset": offset,
            "groups": [asdict(listed_group) | {"members": []} for listed_group in groups],
        }


async def _read_body(request: Request) -> str:
    body = await request.body()
    if len(body) > QUERY_BYTES_MAX:
        raise PageError(
            413,
            f"A search text has at most {QUERY_BYTES_MAX:,} bytes; a sentence or two is enough.",
        )
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"The search text is not UTF-8: {error.reason} at byte {error.start}."
        ) from error


def _parse_number(
    query: Mapping[str, str], name: str, default: int, low: int, high: int = 999_999_999
) -> int:
    value = query.get(name, str(default))
    is_number = value.isascii() and value.isdigit() and len(value) < 10
    if not is_number or not low <= int(value) <= high:
        raise InputError(
            f"The parameter {name} must be a whole number from {low} to {high}, not {value!r:.40}."
        )
    return int(value)


def _parse_min_share(query: Mapping[str, str]) -> float | None:
    value = query.get("min_share")
    if value is None:
        return None
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:  # also refuses nan
        raise InputError(
            "The parameter min_share must be a share above 0 and up to 1, such as 0.5, not "
            f"{value!r:.40}."
        )
    return share
