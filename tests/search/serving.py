"""Serve the API of a search for a test."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from stream_dedup.console.app import ConsolePages
from stream_dedup.console.sources import ConsoleSources
from stream_dedup.search.api import SearchApi
from stream_dedup.search.finding import Finder
from stream_dedup.serving.http import HttpServer
from tests.serving.serving import serving


def pages_of_api(finder: Finder, token: Path | None = None, prefix: str = "") -> ConsolePages:
    """Return the console's pages with the API over a finder."""
    return ConsolePages(ConsoleSources(), prefix, token, SearchApi(finder).answers)


def serving_api(
    finder: Finder, token: Path | None = None, prefix: str = ""
) -> AbstractContextManager[HttpServer]:
    """Serve the API over a finder."""
    return serving(pages_of_api(finder, token, prefix).routes())
