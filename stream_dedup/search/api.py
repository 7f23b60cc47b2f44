"""`/v1/find` and `/v1/groups` of a running search. It is read-only.

    GET  /v1/find?q=TEXT[&limit=N][&offset=N][&order=ORDER][&host=HOST][&least=SHARE][&snippets=no]
    POST /v1/find[?limit=N...]                    the body is the text, in UTF-8
    GET  /v1/groups[?order=largest|newest][&limit=N]
    GET  /v1/groups?of=POSITION|ID[&limit=N]

The console serves both (`ConsolePages`), with its token, prefix, limits and problems.
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
_FOUND: Final = 20


class SearchApi:
    """The answers of a search. `answered` gets the seconds that each query took."""

    def __init__(self, finder: Finder, answered: Callable[[float], None] = lambda _: None) -> None:
        self._finder = finder
        self._answered = answered

    @property
    def answers(self) -> ApiAnswers:
        """The answers by path."""
        return {
            "v1/find": (("GET", "POST"), self._find),
            "v1/groups": (("GET",), self._groups),
        }

    async def _find(self, request: Request, call: ThreadCall) -> object:
        query = request.query_params
        refuse_unknown(query, ("q", "limit", "offset", "order", "host", "least", "snippets"))
        snippets = query.get("snippets", "yes")
        if snippets not in ("yes", "no"):
            raise InputError(f"The parameter snippets must be yes or no, not {snippets!r:.40}.")
        has_snippets = snippets == "yes"
        limit = _number(query, "limit", _FOUND, 1, SNIPPETS_MAX if has_snippets else FOUND_MAX)
        offset = _number(query, "offset", 0, 0, FOUND_MAX)
        least = _least_share(query)
        text = await _body(request) if request.method == "POST" else query.get("q", "")
        began = time.monotonic()
        found = await call(
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

    async def _groups(self, request: Request, call: ThreadCall) -> object:
        query = request.query_params
        refuse_unknown(query, ("of", "order", "limit"))
        named = query.get("of")
        default = _FOUND if named is None else MEMBERS_MAX
        limit = _number(query, "limit", default, 1, GROUPS_MAX)
        if named is not None:
            group = await call(lambda: self._finder.group(named, limit))
            if group is None:
                raise PageError(404, f"No copies of {named!r:.300} are known.")
            return asdict(group)
        order = query.get("order", "largest")
        if order not in ("largest", "newest"):
            raise InputError(f"order must be largest or newest, not {order!r:.40}.")
        groups = await call(lambda: self._finder.groups(order, limit))
        total = await call(self._finder.group_count)
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
        raise InputError(
            f"The search text is not UTF-8: {error.reason} at byte {error.start}."
        ) from error


def _number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    value = query.get(name, str(default))
    is_number = value.isascii() and value.isdigit() and len(value) < 10
    if not is_number or not low <= int(value) <= high:
        raise InputError(
            f"The parameter {name} must be a whole number from {low} to {high}, not {value!r:.40}."
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
        raise InputError(
            "The parameter least must be a share above 0 and up to 1, such as 0.5, not "
            f"{value!r:.40}."
        )
    return share
