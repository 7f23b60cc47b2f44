"""All missing packages of a role are named, with the command that installs them."""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType

import pytest

from stream_dedup.domain.extras import install_command, missing_packages


def test_all_missing_packages_of_a_role_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [
        missing_packages(role) for role in ("worker", "index", "insights", "search", "console")
    ] == [""] * 5

    monkeypatch.setitem(sys.modules, "tantivy", None)
    assert missing_packages("search") == (
        "The role search needs the package tantivy, which is not installed; install it with: "
        f"{install_command('search')}"
    )
    assert missing_packages("console") == ""

    for name in ("jinja2", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    assert missing_packages("search").startswith(
        "The role search needs the packages jinja2, tantivy and uvicorn, which are not installed"
    )
    assert missing_packages("console").startswith(
        "The role console needs the packages jinja2 and uvicorn, which are not installed"
    )
    assert missing_packages("worker") == ""


def test_a_package_that_was_imported_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some packages, such as faust, replace themselves by a module without a specification."""
    monkeypatch.setitem(sys.modules, "faust", ModuleType("faust"))

    assert missing_packages("insights") == ""


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (None, "pip install 'crawl-dedup[html]'"),
        (
            '{"url": "https://example.org/a.whl", "archive_info": {}}',
            "pip install 'crawl-dedup[html]'",
        ),
        ('{"url": "file:///my%20clone", "dir_info": {}}', "pip install '/my clone[html]'"),
        ('{"url": "file:///home", "dir_info": {"editable": true}}', "make -C /home setup"),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came_from(
    recorded: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is on a package index before the first release, so a clone's hint names the clone."""

    class Installed:
        def read_text(self, name: str) -> str | None:
            return {"direct_url.json": recorded}[name]

    monkeypatch.setattr(sys, "prefix", "/home/.venv")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: Installed())
    install_command.cache_clear()
    try:
        assert install_command("html") == command
    finally:
        install_command.cache_clear()
