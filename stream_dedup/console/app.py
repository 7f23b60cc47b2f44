"""Serve the console over HTTP: each page as HTML (`decisions`) and as JSON (`decisions.json`), tables
as CSV, and the stylesheet, script and icon.

Invariants: pages accept only GET and HEAD; `api` names the methods of each of its paths; sources are
called in threads, at most `CALLS_MAX` at a time, each with a timeout of `WAIT_SECONDS`; if a source
fails, the page shows a notice and the rest of its contents; links are relative.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stream_dedup.console import pages, rendering, tables
from stream_dedup.console.access import TokenGuard
from stream_dedup.console.pages import PageAnswer, PageError, ThreadCall
from stream_dedup.console.source_calls import BoundedCalls, as_page_errors, title_of
from stream_dedup.console.sources import ConsoleSources
from stream_dedup.console.tables import TABLES
from stream_dedup.domain.problem_details import PROBLEM_TYPE, problem

CALLS_MAX: Final = 8
WAIT_SECONDS = 8.0
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_FILES: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "console.svg": "image/svg+xml",
}


ApiAnswer = Callable[[Request, ThreadCall], Awaitable[Any]]
"""Returns the value of the JSON response to a request."""
ApiAnswers = Mapping[str, tuple[Sequence[str], ApiAnswer]]
"""By path: the allowed methods, and the function that answers."""


class ConsolePages:
    """Serves pages from `sources`. `prefix`: a path such as `/dedup` that a proxy does not remove;
    `token_file`: the file with the token that requests need; `api`: further paths that answer in
    JSON.
    """

    def __init__(
        self,
        sources: ConsoleSources,
        prefix: str = "",
        token_file: Path | None = None,
        api: ApiAnswers = MappingProxyType({}),
    ) -> None:
        self._sources = sources
        self._prefix = prefix.rstrip("/")
        self._guard = TokenGuard(token_file)
        self._api = api
        self._calls = BoundedCalls(CALLS_MAX, WAIT_SECONDS)
        folder = resources.files("stream_dedup.console") / "static"
        self._files = {name: (folder / name).read_bytes() for name in _FILES}
        self._version = hashlib.sha256(b"".join(self._files.values())).hexdigest()[:12]

    def routes(self) -> list[BaseRoute]:
        """Return the routes for `HttpServer`: under `/`, and also under the prefix if there is one."""
        endpoints: dict[str, Callable[[Request], Awaitable[Response]]] = {}
        for name, answer in pages.PAGES.items():
            endpoints["" if name == "now" else name] = partial(self._page, name, answer)
            endpoints[f"{name}.json"] = self._with_problems(
                partial(self._page_as_json, name, answer)
            )
        for name in TABLES:
            endpoints[f"{name}.csv"] = self._with_problems(partial(self._table, name))
        endpoints |= {name: partial(self._file, name) for name in _FILES}
        roots = dict.fromkeys(("", self._prefix))
        routes: list[BaseRoute] = [
            Route(f"{root}/{path}", endpoint, methods=["GET"])
            for root in roots
            for path, endpoint in endpoints.items()
        ]
        routes += [
            Route(
                f"{root}/{path}",
                self._with_problems(partial(self._api_answer, answer)),
                methods=methods,
            )
            for root in roots
            for path, (methods, answer) in self._api.items()
        ]
        if self._prefix:
            routes.append(Route(self._prefix, self._to_root, methods=["GET"]))
        # Last, because they match every other path.
        return routes + [
            Route(f"{root}/{{name}}", self._unknown_path, methods=["GET"], include_in_schema=False)
            for root in roots
        ]

    async def _page(self, name: str, answer: PageAnswer, request: Request) -> Response:
        try:
            with self._check_and_convert_errors(request):
                values = await self._values(name, answer, request)
            template, status = f"{name}.html", 200
        except PageError as error:
            template, status = "problem.html", error.status
            values = {"sentence": str(error), "title": title_of(status)}
        common = {
            "page": name,
            "version": self._version,
            "json_address": name and f"{name}.json",
            "query": dict(request.query_params),
        }
        body = await run_in_threadpool(rendering.page, template, common | values)
        return Response(body, status, _HEADERS | _challenge(status), "text/html; charset=utf-8")

    async def _unknown_path(self, request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)  # a program gets a problem that lists the known paths
        return await self._page("", pages.answer_unknown, request)

    def _with_problems(
        self, make: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint for programs: it returns the response of `make`, or its error as an RFC 9457
        problem.
        """

        async def respond(request: Request) -> Response:
            try:
                with self._check_and_convert_errors(request):
                    return await make(request)
            except PageError as error:
                return _json(problem(error.status, str(error)), error.status, PROBLEM_TYPE)

        return respond

    async def _page_as_json(self, name: str, answer: PageAnswer, request: Request) -> Response:
        return _json(await self._values(name, answer, request))

    async def _api_answer(self, answer: ApiAnswer, request: Request) -> Response:
        return _json(await answer(request, self._calls))

    async def _table(self, name: str, request: Request) -> Response:
        page = TABLES[name].page or name
        answer = pages.CSV_ANSWERS.get(page, pages.PAGES[page])
        values = await self._values(page, answer, request, is_cut=False)
        body = await run_in_threadpool(rendering.table, name, values[TABLES[name].rows])
        headers = _HEADERS | {"Content-Disposition": f'attachment; filename="{name}.csv"'}
        return Response(body, 200, headers, "text/csv; charset=utf-8")

    async def _file(self, name: str, request: Request) -> Response:
        del request
        return Response(
            self._files[name], 200, _HEADERS | {"Cache-Control": "max-age=86400"}, _FILES[name]
        )

    async def _to_root(self, request: Request) -> Response:
        del request
        return Response(
            status_code=308, headers={"Location": self._prefix.rpartition("/")[2] + "/"}
        )

    @contextlib.contextmanager
    def _check_and_convert_errors(self, request: Request) -> Iterator[None]:
        """Raise a `PageError` if the token is missing, and for each error in the `with` block."""
        refusal = self._guard.refusal(request.headers.get("authorization", ""))
        if refusal:
            raise PageError(401, refusal)
        with as_page_errors():
            yield

    async def _values(
        self, name: str, answer: PageAnswer, request: Request, *, is_cut: bool = True
    ) -> dict[str, Any]:
        query = request.query_params
        pages.refuse_unknown_parameters(answer, query, is_table=name in TABLES)
        values = await answer(self._sources, query, self._calls)
        return tables.arrange(name, values, query.get("sort", ""), is_cut=is_cut)


def _json(value: Any, status: int = 200, media_type: str = "application/json") -> Response:
    # ASCII, because a lone surrogate cannot be encoded as UTF-8.
    body = json.dumps(value, default=_to_json)
    return Response(body, status, _HEADERS | _challenge(status), media_type)


def _challenge(status: int) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": 'Basic realm="stream-dedup console", charset="UTF-8"'}
    return {"Retry-After": "1"} if status == 503 else {}


def _to_json(value: Any) -> Any:
    """Return a dataclass as a dict with its fields and properties, any other value as text."""
    if is_dataclass(value) and not isinstance(value, type):
        attributes = vars(type(value)).items()
        return asdict(value) | {
            name: getattr(value, name)
            for name, attribute in attributes
            if isinstance(attribute, property)
        }
    return str(value)
