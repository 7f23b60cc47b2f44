"""Text from outside never reaches a terminal raw."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.ground.printable import printable

ANYTHING = st.text(st.characters(blacklist_categories=()))


@given(ANYTHING | st.binary(), st.integers(1, 50))
def test_what_comes_out_is_printable_and_short(text: str | bytes, limit: int) -> None:
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
def test_what_a_terminal_would_obey_is_written_out(text: str | bytes, shown: str) -> None:
    assert printable(text) == shown
