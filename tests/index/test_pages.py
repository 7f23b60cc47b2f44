"""What is gathered of pages is what stands in them, whichever form they have; a damaged page is an error."""

from __future__ import annotations

import os
import random
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stream_dedup.ground.errors import FormatError
from stream_dedup.ground.lazy import Ids
from stream_dedup.index.tables.tags import crcs_of
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.pages import EntryPage, gather, same_ids, taken

SOME = np.dtype([("place", "<u2"), ("print", "<u8", (3,)), ("state", "u1"), ("offset", "<i8")])
OFFSETS = np.dtype([("offset", "<i8")])


def made(chance: random.Random, limbs: int) -> tuple[EntryPage | bytes, NDArray[Any], list[bytes]]:
    """Return a page of random entries in one of its forms, their rows and their ids."""
    count = chance.randint(1, layout.PAGE_ENTRIES)
    kind = layout.row_type(limbs)
    rows = np.frombuffer(chance.randbytes(count * kind.itemsize), kind).copy()
    ids = [chance.randbytes(chance.choice([0, 1, 300])) for _ in range(count)]
    rows["ids_end"] = np.cumsum([len(one) for one in ids])
    if chance.random() < 0.5:
        return EntryPage(rows.tobytes(), b"".join(ids)), rows, ids
    return layout.encode_rows(layout.encode_parts(rows, 1)[0], count, b"".join(ids)), rows, ids


@seed(int(os.environ["TEST_SEED"]))
@settings(deadline=None)  # the first call may compile
@given(number=st.integers(0, 2**32 - 1))
def test_what_is_gathered_is_what_the_pages_hold(number: int) -> None:
    """Any fields of any entries of any pages, asked for in any order, some more than once."""
    chance = random.Random(number)
    pages = [made(chance, 3) for _ in range(chance.randint(1, 6))]
    asked = [
        (which, chance.randrange(len(pages[which][2])))
        for which in (chance.randrange(len(pages)) for _ in range(chance.randrange(20)))
    ]
    which, places = (np.array([one[at] for one in asked], np.int64) for at in (0, 1))
    for wanted in (SOME, OFFSETS, layout.row_type(3)):
        found = gather([page for page, _, _ in pages], which, places, layout.row_type(3), wanted)
        ids = found.ids()

        for name in wanted.names or ():
            assert found.rows[name].tolist() == [pages[page][1][name][place].tolist() for page, place in asked]
        assert list(ids) == [pages[page][2][place] for page, place in asked]
        assert ids.joined == b"".join(ids)


@seed(int(os.environ["TEST_SEED"]))
@settings(deadline=None)
@given(ids=st.lists(st.binary(max_size=13)), number=st.integers(0, 2**32 - 1))
def test_ids_in_one_piece_are_what_they_are_one_by_one(ids: list[bytes], number: int) -> None:
    """Some of them in any order, whether they are others' too, and their CRC-32; an empty one is nobody's and has none."""
    chance = random.Random(number)
    blob, others = Ids.of(ids), [chance.choice([one, one[1:], one + b"x", b"x" * len(one)]) for one in ids]
    places = [chance.randrange(len(ids)) for _ in range(len(ids))]

    assert list(blob) == [blob[at] for at in range(len(blob))] == ids
    assert list(taken(blob, np.array(places, np.int64))) == [ids[at] for at in places]
    assert same_ids(blob, Ids.of(others)).tolist() == [one == other != b"" for one, other in zip(ids, others, strict=True)]
    assert crcs_of(ids).tolist() == [zlib.crc32(one) or bool(one) for one in ids]
    assert crcs_of([bytes.fromhex("ffffffff"), bytes.fromhex("9d0ad96d")]).tolist() == [0xFFFFFFFF, 1]  # which has 0


def test_a_damaged_page_is_an_error() -> None:
    """Cut anywhere, too short for the place, or with ids that end before they begin or behind the page."""
    kind = layout.row_type(2)
    rows = np.zeros(3, kind)
    rows["ids_end"] = [4, 4, 6]
    value = layout.encode_rows(layout.encode_parts(rows, 1)[0], 3, b"abcdef")
    first = np.zeros(1, np.int64)

    assert gather([value], first, first + 2, kind, OFFSETS).ids()[0] == b"ef"
    for cut in range(len(value)):
        with pytest.raises(FormatError, match="damaged; give the index an empty volume"):
            gather([b"a page before", value[:cut]], first + 1, first + 2, kind, OFFSETS)
    with pytest.raises(FormatError, match="damaged"):
        gather([value], first, first + 3, kind, OFFSETS)
    rows["ids_end"] = [4, 3, 6]
    with pytest.raises(FormatError, match="damaged"):
        gather([layout.encode_rows(layout.encode_parts(rows, 1)[0], 3, b"abcdef")], first, first + 1, kind, OFFSETS)
    with pytest.raises(FormatError, match="damaged"):
        gather([EntryPage(rows.tobytes(), b"abc")], first, first, kind, OFFSETS)
