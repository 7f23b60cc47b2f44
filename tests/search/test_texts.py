"""The engine: finds what a plain scan finds, and keeps its place and what it holds in one commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_dedup.fingerprinting import Languages
from stream_dedup.ground.errors import StoreError, VolumeError
from stream_dedup.search.clue import Clue, clue_of, pairs_of, words_of
from stream_dedup.search.texts import EnginePlace, TextFacts, TextIndex
from tests.search.scan import scan

LANGUAGES = Languages()
PLACE = EnginePlace({"topics": "1"}, {("unique", 0): 7, ("duplicates", 3): 9})
# Few words, so that clues are found; signs between them that are operators elsewhere; scripts without spaces.
WORDS = st.sampled_from(["fox", "dog", "brown", "the", "OR", "né", "שלום", "مرحبا", "ทดสอบ", "中文", "処理", "a"])
TEXTS = st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=12)
SIGNS = st.sampled_from([" ", ", ", "* ", " AND ", ' "', " -", "~2 ", ": ", "\u200f ", "\n"])


def facts(number: int, **changed: object) -> TextFacts:
    return TextFacts(f"unique-0@{number}", f"id{number}", number, 10, "unique", "new")._replace(**changed)  # type: ignore[arg-type]


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[[], TextIndex]]:
    made: list[TextIndex] = []

    def make() -> TextIndex:
        made.append(TextIndex(tmp_path / f"engine-{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS, clue=st.lists(WORDS, min_size=1, max_size=8), sign=SIGNS, least=st.sampled_from([0.01, 0.5, 0.75, 1.0]))
def test_a_clue_is_found_as_a_scan_finds_it(
    make_engine: Callable[[], TextIndex], texts: list[list[str]], clue: list[str], sign: str, least: float
) -> None:
    """The same documents with the same shares, best first, whatever pieces it is in and whatever stands between words."""
    engine = make_engine()
    in_words = {f"unique-0@{number}": words_of(" ".join(text), LANGUAGES) for number, text in enumerate(texts)}
    for number, words in enumerate(in_words.values()):
        engine.add(facts(number), words)
        if number % 4 == 3:
            engine.commit(PLACE)
    engine.commit(PLACE)

    wanted = clue_of(sign.join(clue), LANGUAGES)
    found = engine.find(wanted, 100, least)

    words = words_of(sign.join(clue), LANGUAGES)
    assert {one.facts.at: one.share for one in found} == {
        at: float(share) for at, share in scan(in_words, words, least).items()
    }
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    engine.close()


def test_of_equals_the_kept_document_comes_first_even_if_few_are_asked_for(make_engine: Callable[[], TextIndex]) -> None:
    """A hundred copies do not hide what they are copies of."""
    engine = make_engine()
    for number in range(100):
        engine.add(facts(number, group="documents-0@50", verdict="duplicate"), ["one", "two", "three"])
    engine.add(facts(100), ["one", "two", "three"])
    engine.commit(PLACE)

    assert next(one.facts.at for one in engine.find(Clue((("one", "two"),), 2), 3)) == "unique-0@100"


def test_a_copy_of_the_text_is_kept_where_it_is_given(make_engine: Callable[[], TextIndex]) -> None:
    engine = make_engine()
    engine.add(facts(1), ["one"], "One!\n")
    engine.add(facts(2), ["one"])
    engine.commit(PLACE)

    assert {one.facts.at: one.text for one in engine.find(Clue((("one",),), 1), 9)} == {
        "unique-0@1": "One!\n",
        "unique-0@2": "",
    }


def test_groups_count_every_copy_once_over_commits(make_engine: Callable[[], TextIndex]) -> None:
    """A group adds up over commits; the largest and the newest come first; its copies are listed, the newest first."""
    engine = make_engine()
    groups = [3, 1, 2, 1, 3, 1, 1, 2, 3, 3, 3, 4]
    for number, group in enumerate(groups):
        engine.add(facts(number, group=f"documents-0@{group}", of_id=f"kept{group}", size=100), ["w"])
        if number % 3 == 2:
            engine.commit(PLACE)
    engine.commit(PLACE)

    counts = Counter(groups)
    largest = engine.groups("largest", 10)
    assert [one.copies for one in largest] == sorted(counts.values(), reverse=True)
    assert {one.position: (one.copies, one.bytes_wasted, one.id) for one in largest} == {
        f"documents-0@{group}": (count, 100 * count, f"kept{group}") for group, count in counts.items()
    }
    assert [one.position for one in engine.groups("newest", 2)] == ["documents-0@4", "documents-0@3"]
    assert [one.time_ms for one in engine.copies_of("documents-0@3", 3)] == [10, 9, 8]
    assert [one.position for one in engine.groups_of_id("kept2")] == ["documents-0@2"]
    assert engine.group("documents-0@77") is None


def test_what_was_not_committed_is_gone_and_the_place_says_so(tmp_path: Path) -> None:
    """Closed before its commit, an engine holds what it held at the last one, and its place is that one's."""
    engine = TextIndex(tmp_path)
    assert engine.place is None
    for offset in range(3):
        engine.commit(EnginePlace({"topics": "1"}, {("unique", 0): offset}))
    assert engine.documents == 1, "there is one place"
    engine.add(facts(1), ["one"])
    engine.commit(PLACE)
    engine.add(facts(2, group="documents-0@1"), ["one"])
    engine.close()

    again = TextIndex(tmp_path)
    assert again.place == PLACE
    assert [one.facts.at for one in again.find(Clue((("one",),), 1), 9)] == ["unique-0@1"]
    assert again.groups("largest", 9) == []
    again.close()


def test_ids_can_be_forgotten_and_the_old_leave(make_engine: Callable[[], TextIndex]) -> None:
    """With the next commit: a document by its id with the group it began, and all that are older than a time."""
    engine = make_engine()
    for number in range(4):
        engine.add(facts(number, group=f"documents-0@{number}", of_id=f"kept{number}"), ["one"])
    engine.commit(PLACE)
    engine.forget("id3")
    engine.forget("kept3")
    engine.drop_before(2)
    engine.commit(PLACE)

    assert [one.facts.at for one in engine.find(Clue((("one",),), 1), 9)] == ["unique-0@2"]
    assert [one.position for one in engine.groups("newest", 9)] == ["documents-0@2"]
    assert engine.place == PLACE


def test_a_folder_that_is_open_or_damaged_is_refused_in_a_sentence(tmp_path: Path) -> None:
    engine = TextIndex(tmp_path / "one")
    with pytest.raises(VolumeError, match="Is another search running on it"):
        TextIndex(tmp_path / "one")
    engine.close()
    with pytest.raises(StoreError, match="closed"):
        engine.commit(PLACE)

    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "meta.json").write_text("{")
    with pytest.raises(VolumeError, match="delete it: it is filled anew"):
        TextIndex(tmp_path / "two")


def test_pairs_are_different_ones_in_their_order() -> None:
    assert pairs_of(["a", "b", "a", "b"]) == (("a", "b"), ("b", "a"))
    assert pairs_of(["a"]) == (("a",),)
    assert pairs_of([]) == ()
