"""Send requests to a running search over HTTP, and format its responses."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from stream_dedup.domain.errors import FormatError, InputError
from stream_dedup.domain.printable import counted, utc_text
from stream_dedup.serving import http_client
from stream_dedup.serving.ports import addresses
from stream_dedup.settings.settings import Settings

CSV_MAX: Final = 10_000
CSV_COLUMNS: Final = (
    *("time", "share", "id", "host", "verdict", "output_position", "group_position"),
    *("fetches", "first", "newest"),
)


def find_path(
    limit: int, page: int, order: str, *, host: str | None, min_share: float | None, as_csv: bool
) -> str:
    """Return the path and query of a request for a page of documents, or (for CSV) for all documents
    without snippets.
    """
    query: dict[str, object] = {"limit": limit, "offset": limit * (page - 1), "order": order}
    if as_csv:
        query |= {"limit": CSV_MAX, "offset": 0, "snippets": "no"}
    query |= {} if host is None else {"host": host}
    query |= {} if min_share is None else {"min_share": min_share}
    return f"/v1/find?{urllib.parse.urlencode(query, errors='replace')}"


def summary_of(answer: dict[str, Any]) -> str:
    """Return a sentence: how many documents contain the text, and which of them are shown."""
    total = int(answer["total"])
    if not total and answer["is_whole"]:
        return (
            "No document contains the text, or most of it. Search for eight consecutive words, or with "
            "a lower --min-share."
        )
    hosts = counted(int(answer["hosts"]), "host")
    number = f"{'' if answer['is_whole'] else 'At least '}{total:,}"
    place = f" on {hosts}" if total else ""
    sentence = (
        f"{number} {'document' if total == 1 else 'documents'}{place} "
        f"{'contains' if total == 1 else 'contain'} the text, or most of it."
    )
    return " ".join([sentence, *page_notes(answer, len(answer["documents"]), total, "document")])


def page_notes(answer: dict[str, Any], shown: int, total: int, noun: str) -> list[str]:
    """Return a sentence: which of `total` rows a list shows; none if all. `noun` names a row."""
    if total and not shown:
        return ["This page is after the last one."]
    rows = f"{answer['offset'] + 1:,} to {answer['offset'] + shown:,} of {counted(total, noun)}"
    return [f"Shown: {rows} (--page, --limit)."] if shown < total else []


def csv_row(document: dict[str, Any]) -> list[str]:
    """Return the cells of a document, by `CSV_COLUMNS`."""
    return [_cell(document, name) for name in CSV_COLUMNS]


def _cell(document: dict[str, Any], name: str) -> str:
    if name in ("time", "first", "newest"):
        return utc_text(document[f"{name}_ms"])
    return f"{document[name]:.4f}" if name == "share" else str(document[name])


@contextmanager
def raise_if_other_version() -> Iterator[None]:
    """Raise an error if a response lacks a field; the search may be of another version."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            "The response is not that of a search of this version; use the same version of the search "
            "and of this command "
            f"({error!r:.100})."
        ) from error


def ask_search(
    settings: Settings, url: str | None, path: str, body: bytes | None = None
) -> dict[str, Any]:
    """Return the response of a search.

    Raises:
        InputError: no search answers, or it rejects the request.
        StreamDedupError: the search cannot answer now.
    """
    token = settings.console_token_file
    headers = {}
    if token is not None:
        try:
            headers["Authorization"] = f"Bearer {token.read_text().strip()}"
        except OSError as error:
            raise InputError(
                f"The token of the console cannot be read: {error.strerror}; see "
                "CONSOLE_TOKEN_FILE."
            ) from error
    remedy = "Start one with: stream-dedup run search --set http_port=8083; or name one with --search http://HOST:PORT."
    return http_client.ask_role(
        "search", [url] if url is not None else addresses(settings), path, remedy, body, headers
    )[1]
