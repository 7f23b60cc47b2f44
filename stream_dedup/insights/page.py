"""The console: what the hosts do, as a page at `/` and as JSON at `/v1/hosts`. GET only.

Invariants: everything that came from a crawl is escaped, and no address is a link; the page loads
nothing from elsewhere, and says so in its policy; what is shown was made by the loop as one value,
so that no request holds it up; it is rendered once for all who ask at a time.
"""

from __future__ import annotations

import html
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from stream_dedup.ground.printable import printable
from stream_dedup.insights.counts import ReasonCounts
from stream_dedup.insights.ledger import BegunEvent, Signals, View, rfc3339
from stream_dedup.service.http import KeptAnswer

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_STYLE: Final = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 0 0 2em }
th, td { padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child, td.text { text-align: left } thead th { position: sticky; top: 0; background: #fff }
"""
_COLUMNS: Final = (
    "host",
    "documents",
    "duplicates",
    "unchanged",
    "exact",
    "near",
    "returned",
    "revised",
    "bytes",
    "wasted",
    "last change",
    "going on",
)


class Console:
    """The routes of the role; `show` gives them what to say."""

    HOSTS_MAX: Final = 200

    def __init__(self) -> None:
        self.show(View(), owns=False)

    def show(self, view: View, *, owns: bool) -> None:
        """Show this from now on. `owns`: whether this replica is the one that counts."""
        self._page: KeptAnswer[Response] = KeptAnswer(
            lambda: HTMLResponse(page_of(view, owns=owns), headers=_HEADERS)
        )
        self._hosts: KeptAnswer[Response] = KeptAnswer(
            lambda: JSONResponse(json_of(view, owns=owns), headers={"Cache-Control": "no-store"})
        )

    def routes(self) -> list[BaseRoute]:
        """Return the routes for `HttpServer`."""

        async def page(_: Request) -> Response:
            return await self._page.get()

        async def hosts(_: Request) -> Response:
            return await self._hosts.get()

        return [Route("/", page, methods=["GET"]), Route("/v1/hosts", hosts, methods=["GET"])]


def json_of(view: View, *, owns: bool) -> dict[str, object]:
    """Return what the console shows as JSON."""
    return {
        "counting": owns,
        "known": view.known,
        "total": view.total._asdict(),
        "other": view.other._asdict(),
        "hosts": [one.as_json() for one in view.hosts],
        "events": [
            {"host": one.host} | one.event.as_json(rfc3339(one.event.since_ms))
            for one in view.recent
        ],
    }


def page_of(view: View, *, owns: bool) -> str:
    """Return the page."""
    total = view.total
    intro = f"{view.known:,} hosts are known; the {len(view.hosts):,} that waste most bytes are below, each by its own window."
    if not owns:
        intro = (
            "This replica does not count now: another one has the partition, or it is being taken "
            "over. " + intro
        )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>stream-dedup: hosts</title>"
        f"<style>{_STYLE}</style><h1>Hosts</h1><p>{intro}</p>"
        f"<p>All of them: {total.documents:,} documents, "
        f"{_share(total.duplicates, total.documents)} duplicates, "
        f"{_size(total.bytes_wasted)} of {_size(total.bytes)} wasted. Without a host: "
        f"{view.other.documents:,} documents.</p>"
        + _table(_COLUMNS, [_host(one) for one in view.hosts])
        + "<h2>Lately begun</h2>"
        + _table(
            ("host", "what", "documents", "fell on", "since"), [_event(one) for one in view.recent]
        )
        + "</html>"
    )


def _host(one: Signals) -> list[str]:
    counts: ReasonCounts = one.counts
    return [
        one.host,
        f"{counts.documents:,}",
        _share(counts.duplicates, counts.documents),
        _share(counts.unchanged, counts.documents),
        f"{counts.exact:,}",
        f"{counts.near:,}",
        f"{counts.returned:,}",
        f"{counts.revised:,}",
        _size(counts.bytes),
        _size(counts.bytes_wasted),
        "never" if one.last_change_ms is None else rfc3339(one.last_change_ms),
        ", ".join(sorted({event.kind for event in one.events})),
    ]


def _event(one: BegunEvent) -> list[str]:
    event = one.event
    return [
        one.host,
        event.kind,
        f"{event.ids:,}",
        event.of or event.position,
        rfc3339(event.since_ms),
    ]


def _table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    if not rows:
        return "<p>None.</p>"
    top = "".join(f"<th>{head}</th>" for head in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(printable(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
