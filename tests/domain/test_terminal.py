"""What the commands print is safe to show and complete: text from outside never reaches a terminal
raw."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.domain.printable import printable
from stream_dedup.domain.terminal import note, print_json, print_table

HOSTILE = "a\x1b[31m\u202e\x9b2J\nb\ud800"


@pytest.mark.parametrize("value", [{"id": HOSTILE}, [HOSTILE], HOSTILE])
def test_json_is_one_harmless_line_with_the_value_unchanged(
    value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    print_json(value)

    line = capsys.readouterr().out
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert json.loads(line) == value


def test_json_of_ordinary_text_stays_readable(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "Grüße, 世界"})

    assert capsys.readouterr().out == '{"text": "Grüße, 世界"}\n'


def test_tables_and_notes_are_harmless_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "[bold]x[/bold]"], [[HOSTILE, "y" * 500]])
    note(HOSTILE)

    shown = capsys.readouterr()
    assert all(line.isprintable() for line in (shown.out + shown.err).splitlines())
    assert "a\\x1b[31m\\u202e\\x9b2J\\nb\\ud800" in shown.out + shown.err
    assert "[bold]x[/bold]" in shown.out
    assert shown.out.count("y") == 500


ANYTHING = st.text(st.characters(blacklist_categories=()))


@given(ANYTHING | st.binary(), st.integers(1, 50))
def test_printable_text_is_printable_and_short(text: str | bytes, limit: int) -> None:
    shown = printable(text, limit)

    assert shown.isprintable()
    assert len(shown) <= limit


@given(st.text(st.characters(whitelist_categories=("L", "N", "P", "S")), max_size=40))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text == printable(text.encode())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\r\t", "a\\nb\\r\\t"),
        ("a\u202eb\u200b", "a\\u202eb\\u200b"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800", "\\ud800"),
        (b"a\xff\x00", "a\\xff\\x00"),
    ],
)
def test_control_characters_are_escaped(text: str | bytes, shown: str) -> None:
    assert printable(text) == shown
