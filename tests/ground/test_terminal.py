"""What the commands print is safe to show and complete."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stream_dedup.ground.terminal import note, print_json, print_table

HOSTILE = "a\x1b[31m\u202e\x9b2J\nb\ud800"


@pytest.mark.parametrize("value", [{"id": HOSTILE}, [HOSTILE], HOSTILE])
def test_json_is_one_harmless_line_with_the_value_unchanged(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
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
