"""What a role lacks is said whole, with how to get it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from stream_dedup.domain.extras import lacking


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [lacking(role) for role in ("worker", "index", "insights", "search", "console")] == [
        ""
    ] * 5

    monkeypatch.setitem(sys.modules, "tantivy", None)
    assert lacking("search") == (
        "The role search needs the package tantivy, which is not installed; install it with: pip "
        "install 'crawl-dedup[search]'"
    )
    assert lacking("console") == ""

    for name in ("jinja2", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    assert lacking("search").startswith(
        "The role search needs the packages jinja2, tantivy and uvicorn, which are not installed"
    )
    assert lacking("console").startswith(
        "The role console needs the packages jinja2 and uvicorn, which are not installed"
    )
    assert lacking("worker") == ""


def test_a_package_that_was_imported_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that took its own place with a module that has no specification, as faust does."""
    monkeypatch.setitem(sys.modules, "faust", ModuleType("faust"))

    assert lacking("insights") == ""
