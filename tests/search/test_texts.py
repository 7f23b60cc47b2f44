"""The engine: finds what a plain scan finds, and keeps its place and what it holds in one
commit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.prose import Dice
from stream_dedup.domain.errors import InputError, StoreError, VolumeError
from stream_dedup.fingerprinting import Languages
from stream_dedup.search import texts as text_engine
from stream_dedup.search.facts import EngineCheckpoint, GroupFacts, TextFacts
from stream_dedup.search.forgotten import ForgottenId, ForgottenIds, key_of, shown_key_of
from stream_dedup.search.query import WORDS_MAX, SearchQuery, pairs_of, parse_query, words_of
from stream_dedup.search.snippets import snippet_of
from stream_dedup.search.texts import TextIndex
from tests.tiers import few

MakeEngine = Callable[..., TextIndex]
LANGUAGES = Languages()
PLACE = EngineCheckpoint({"topics": "1"}, {("unique", 0): 7, ("duplicates", 3): 9})
# Few words, so that clues are found; signs between them that are operators elsewhere; scripts
# without spaces.
WORDS = st.sampled_from(
    ["fox", "dog", "brown", "the", "OR", "né", "שלום", "مرحبا", "ทดสอบ", "中文", "処理", "a"]
)
FEW_WORDS = ("fox", "dog", "brown", "the", "中文")
TEXTS = st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=12)
SIGNS = st.sampled_from([" ", ", ", "* ", " AND ", ' "', " -", "~2 ", ": ", "\u200f ", "\n"])


def scan(texts: Mapping[str, list[str]], clue: list[str], min_share: float) -> dict[str, Fraction]:
    """Return the texts (by name, in words) that hold at least that share of a clue, each with its
    share: all are looked at."""

    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}

    length = min(2, len(clue))
    wanted = runs(clue)
    shares = {
        name: Fraction(len(wanted & runs(words)), len(wanted)) for name, words in texts.items()
    }
    return {
        name: share
        for name, share in shares.items()
        if share >= Fraction(str(min_share)) and share > 0
    }


def facts(number: int, **changed: object) -> TextFacts:
    return TextFacts(f"unique-0@{number}", f"id{number}", number, 10, "unique", "new")._replace(
        **changed
    )  # type: ignore[arg-type]


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[..., TextIndex]]:
    """Make engines in folders of their own, or in a named one; all are closed at the end."""
    made: list[TextIndex] = []

    def make(folder: Path | None = None, *now: Callable[[], int]) -> TextIndex:
        made.append(TextIndex(folder or tmp_path / f"engine-{len(made)}", *now))
        return made[-1]

    yield make
    for one in made:
        one.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=TEXTS,
    clue=st.lists(WORDS, min_size=1, max_size=8),
    sign=SIGNS,
    min_share=st.sampled_from([0.01, 0.5, 0.75, 1.0]),
)
def test_a_clue_is_found_as_a_scan_finds_it(
    make_engine: MakeEngine,
    texts: list[list[str]],
    clue: list[str],
    sign: str,
    min_share: float,
) -> None:
    """The same documents with the same shares, best first, whatever pieces it is in and whatever
    stands between words."""
    engine = make_engine()
    in_words = {
        f"unique-0@{number}": words_of(" ".join(text), LANGUAGES)
        for number, text in enumerate(texts)
    }
    for number, words in enumerate(in_words.values()):
        engine.add_text(facts(number), words)
        if number % 4 == 3:
            engine.commit(PLACE)
    engine.commit(PLACE)

    wanted = parse_query(sign.join(clue), LANGUAGES)
    found = engine.find(wanted, 100, min_share)

    words = words_of(sign.join(clue), LANGUAGES)
    assert {one.facts.output_position: one.share for one in found} == {
        at: float(share) for at, share in scan(in_words, words, min_share).items()
    }
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    engine.close()


@pytest.mark.parametrize("limit", few([1, 2, 3]))
def test_the_best_are_found_however_many_hold_a_part(
    make_engine: MakeEngine, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for few, where more hold the rarest pairs: none that is better is left out."""
    monkeypatch.setattr(text_engine, "_RARE_PAIRS_MIN", 1)
    for seed in range(20):
        dice = Dice("the best", limit, seed)
        texts = [[dice.pick(FEW_WORDS) for _ in range(dice.below(17))] for _ in range(12)]
        clue = " ".join(dice.pick(FEW_WORDS) for _ in range(4 + dice.below(9)))
        engine = make_engine()
        in_words = {
            f"unique-0@{number}": words_of(" ".join(text), LANGUAGES)
            for number, text in enumerate(texts)
        }
        for number, words in enumerate(in_words.values()):
            engine.add_text(facts(number), words)
        engine.commit(PLACE)

        found = engine.find(parse_query(clue, LANGUAGES), limit, 0.5)

        held = scan(in_words, words_of(clue, LANGUAGES), 0.5)
        assert [one.share for one in found] == [
            float(share) for share in sorted(held.values(), reverse=True)[:limit]
        ]
        assert all(one.share == float(held[one.facts.output_position]) for one in found)
        engine.close()


def test_of_equals_the_kept_document_comes_first_even_if_few_are_asked_for(
    make_engine: MakeEngine,
) -> None:
    """A hundred copies do not hide what they are copies of."""
    engine = make_engine()
    for number in range(100):
        engine.add_text(
            facts(number, group_position="documents-0@50", verdict="duplicate"),
            ["one", "two", "three"],
        )
    engine.add_text(facts(100), ["one", "two", "three"])
    engine.commit(PLACE)

    assert (
        next(one.facts.output_position for one in engine.find(SearchQuery((("one", "two"),), 2), 3))
        == "unique-0@100"
    )


def test_groups_count_every_copy_once_over_commits(make_engine: MakeEngine) -> None:
    """A group adds up over commits; the largest and the newest come first; its copies are listed,
    the newest first."""
    engine = make_engine()
    groups = [3, 1, 2, 1, 3, 1, 1, 2, 3, 3, 3, 4]
    for number, group in enumerate(groups):
        engine.add_text(
            facts(number, group_position=f"documents-0@{group}", kept_id=f"kept{group}", size=100),
            ["w"],
        )
        if number % 3 == 2:
            engine.commit(PLACE)
    engine.commit(PLACE)

    counts = Counter(groups)
    largest = engine.groups("largest", 10)
    assert [one.copies for one in largest] == sorted(counts.values(), reverse=True)
    assert {one.position: (one.copies, one.bytes_wasted, one.id) for one in largest} == {
        f"documents-0@{group}": (count, 100 * count, f"kept{group}")
        for group, count in counts.items()
    }
    assert engine.groups("largest", 1, 1) == largest[1:2]
    assert engine.groups("largest", 1, 10**15) == [], "allocating that many rows ends the process"
    assert [one.position for one in engine.groups("newest", 2)] == [
        "documents-0@4",
        "documents-0@3",
    ]
    assert [one.time_ms for one in engine.copies_of("documents-0@3", 3)] == [10, 9, 8]
    assert [one.position for one in engine.groups_of_id("kept2")] == ["documents-0@2"]
    assert engine.group("documents-0@77") is None


def test_what_was_not_committed_is_gone_and_the_place_says_so(tmp_path: Path) -> None:
    """Closed before its commit, an engine holds what it held at the last one, and its place is that
    one's."""
    engine = TextIndex(tmp_path)
    assert engine.checkpoint is None
    for offset in range(3):
        engine.commit(EngineCheckpoint({"topics": "1"}, {("unique", 0): offset}))
    assert (engine.documents, engine._index.searcher().num_docs) == (0, 1), (
        "there is one place, which is no document"
    )
    engine.add_text(facts(1), ["one"])
    engine.commit(PLACE)
    engine.add_text(facts(2, group_position="documents-0@1"), ["one"])
    engine.close()

    again = TextIndex(tmp_path)
    assert again.checkpoint == PLACE
    assert [one.facts.output_position for one in again.find(SearchQuery((("one",),), 1), 9)] == [
        "unique-0@1"
    ]
    assert again.groups("largest", 9) == []
    again.close()


def forgotten_id(identifier: str, log_offset: int) -> ForgottenId:
    return ForgottenId(key_of(identifier.encode()), shown_key_of(identifier), log_offset, 1000)


def test_what_was_forgotten_leaves_with_its_counts(make_engine: MakeEngine) -> None:
    """With the next commit: copies leave their groups' counts, a group without any is gone, a
    forgotten root has no id."""
    engine = make_engine()
    for number in range(6):
        known = facts(
            number,
            group_position=f"documents-0@{number % 2}",
            kept_id=f"kept{number % 2}",
            log_offset=number,
            size=10 + number,
        )
        engine.add_text(known, ["one"], key_of(b"id%d" % number))
    with pytest.raises(StoreError, match="since the last commit"):
        engine.forget(forgotten_id("id1", 9))
    engine.commit(PLACE)

    engine.forget(forgotten_id("id5", 9))
    engine.forget(forgotten_id("id5", 9))
    engine.forget(forgotten_id("id3", 9))
    engine.forget(forgotten_id("id2", 2))  # it was decided behind that
    engine.forget(forgotten_id("kept0", 9))
    engine.commit(PLACE)

    assert [one.facts.output_position for one in engine.find(SearchQuery((("one",),), 1), 9)] == [
        f"unique-0@{number}" for number in (4, 2, 1, 0)
    ]
    assert engine.group("documents-0@1") == GroupFacts("documents-0@1", "kept1", 1, 11, 1, 5, 1)
    assert engine.group("documents-0@0") == GroupFacts(
        "documents-0@0", "", 3, 36, 4, 4, 2, is_forgotten=True
    )
    assert (engine.groups_of_id("kept0"), engine.facts_of_id("id5")) == ([], [])
    assert sorted(one.log_offset for one in engine.forgotten()) == [2, 9, 9, 9]

    engine.forget(forgotten_id("id1", 10))
    engine.commit(PLACE)
    assert engine.group("documents-0@1") is None


def test_a_page_that_is_fetched_again_is_no_copy(make_engine: MakeEngine) -> None:
    """It is counted beside the copies of its group, also as what is forgotten leaves; a page without
    a copy is no group in the list, and has its members."""
    engine = make_engine()
    for number, reason in enumerate(("near", "unchanged", "revised", "exact", "unchanged")):
        group = f"documents-0@{number // 4}"
        one = facts(
            number + 1, reason=reason, group_position=group, kept_id="kept", log_offset=number
        )
        engine.add_text(one, ["one"], key_of(one.id.encode()))
    engine.commit(PLACE)

    def told(position: str) -> tuple[int, int, int]:
        group = engine.group(position)
        assert group is not None
        return group.copies, group.fetched_again, group.bytes_wasted

    assert (told("documents-0@0"), told("documents-0@1")) == ((2, 2, 20), (0, 1, 0))
    assert [one.position for one in engine.groups("newest", 9)] == ["documents-0@0"]
    assert engine.group_count == 1
    for identifier, left in (("id2", (2, 1, 20)), ("id1", (1, 1, 10)), ("id4", (0, 1, 0))):
        engine.forget(forgotten_id(identifier, 9))
        engine.commit(PLACE)
        assert told("documents-0@0") == left
    assert engine.groups("largest", 9) == []


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("is_release_first", [False, True])
def test_a_released_copy_counts_once_as_a_kept_document(
    make_engine: MakeEngine, is_release_first: bool, commits: bool
) -> None:
    """In whichever order its two records are read; the group knows it, also without another copy,
    and until it is forgotten."""
    engine = make_engine()
    group = {"group_position": "documents-0@9", "kept_id": "kept", "verdict": "duplicate"}
    copy = facts(1, source_position="documents-0@1", reason="near", similarity=0.7, **group)
    copy = copy._replace(output_position="duplicates-0@1", better="longest")
    release = facts(1, source_position="documents-0@1", reason="released")
    other = facts(2, source_position="documents-0@2", reason="near", **group)
    records = [release, copy] if is_release_first else [copy, release]
    for record in (records[0], other, records[1]):
        hosts = ["b.example", "a.example"] if record.is_copy else ()
        engine.add_text(record, ["one"], key_of(record.id.encode()), hosts)
        if commits:
            engine.commit(PLACE)
    engine.commit(PLACE)

    found = engine.find(SearchQuery((("one",),), 1), 9)
    joined = release._replace(group_position="documents-0@9", similarity=0.7)
    assert [one.facts.output_position for one in found] == ["unique-0@1", "unique-0@2"]
    assert [found[0].facts, engine.facts_at("duplicates-0@1")] == [joined, joined]
    assert engine.kept_at("documents-0@1") == [joined]
    assert engine.copies_of("documents-0@9", 9, are_released=True) == [joined]
    assert [one.id for one in engine.copies_of("documents-0@9", 9)] == ["id2"]
    assert engine.best_of("documents-0@9") is None
    assert [one.copies for one in engine.host_pairs("", 9)] == [1]
    kept = engine.group("documents-0@9")
    assert kept is not None
    assert (kept.copies, kept.released, kept.bytes_wasted, kept.id) == (1, 1, 10, "kept")

    engine.forget(forgotten_id("id2", 9))
    engine.commit(PLACE)
    kept = engine.group("documents-0@9")
    assert kept is not None
    assert (kept.copies, kept.released, kept.bytes_wasted) == (0, 1, 0)
    assert (engine.groups("largest", 9), engine.host_pairs("", 9)) == ([], [])
    engine.forget(forgotten_id("id1", 9))
    engine.commit(PLACE)
    assert (engine.group("documents-0@9"), engine.documents) == (None, 0)


def test_which_hosts_copied_which_is_counted_among_all_documents(
    make_engine: MakeEngine,
) -> None:
    """As a scan counts them: how many, the first copy, the newest; of a host and its subdomains,
    and without what was forgotten."""
    engine, hosts = make_engine(), ("b.example", "sub.a.example", "a.example")
    copies = [
        (
            facts(number, group_position="documents-0@0", kept_id="kept", log_offset=number),
            (hosts[number % 2], hosts[2 - number % 3 % 2]),
        )
        for number in range(1, 13)
    ]
    for one, pair in copies:
        engine.add_text(one, ["one"], key_of(one.id.encode()), pair)
    engine.add_text(
        facts(20, group_position="documents-0@0", kept_id="kept"), ["one"]
    )  # fetched again
    engine.commit(PLACE)
    engine.forget(forgotten_id("id1", 9))
    engine.commit(PLACE)

    def counted(wanted: str) -> set[tuple[str, int, str, int]]:
        found: dict[str, list[TextFacts]] = {}
        for one, pair in copies[1:]:
            if not wanted or any(host.endswith(wanted) for host in pair):
                found.setdefault(" ".join(pair), []).append(one)
        return {
            (key, len(copies), copies[0].output_position, copies[-1].time_ms)
            for key, copies in found.items()
        }

    for wanted in ("", "a.example", "sub.a.example", "b.example", "nobody.example"):
        told = engine.host_pairs(wanted, 10)
        assert {
            (
                f"{pair.copier} {pair.source}",
                pair.copies,
                pair.earliest.output_position,
                pair.newest_ms,
            )
            for pair in told
        } == counted(wanted)
        assert [pair.copies for pair in told] == sorted(
            (pair.copies for pair in told), reverse=True
        )
    assert len(engine.host_pairs("", 1)) == 1
    engine.forget(forgotten_id("kept", 99))
    engine.commit(PLACE)
    assert engine.host_pairs("", 10) == [], "a host of a forgotten kept document"
    assert 0 < engine.committed_ms <= time.time() * 1000


@pytest.mark.parametrize("seed", few(range(10)))
def test_a_group_tells_since_when_and_which_copy_is_the_best(
    make_engine: MakeEngine, seed: int
) -> None:
    """The first and the last time of its copies, what the log has counted, and the last copy in the
    log that beat all before it; in whatever order they are read, and also once some were forgotten.
    A copy without a time has none to tell."""
    dice, engine = Dice("groups", seed), make_engine()
    copies = []
    for number in range(40):
        better = dice.pick(("", "", "longest", "newest"))
        place = {
            "log_offset": number // 3,
            "log_row": number % 3,
            "better": better,
            "counted": dice.below(2) * number,
        }
        known = facts(
            number,
            group_position=f"documents-0@{dice.below(4)}",
            time_ms=dice.below(6) * 1000,
            **place,
        )
        copies.append(known)
    on_the_way = list(copies)
    while on_the_way:
        one = on_the_way.pop(dice.below(len(on_the_way)))
        engine.add_text(one, ["w"], key_of(one.id.encode()))
        if dice.below(5) == 0:
            engine.commit(PLACE)
    engine.commit(PLACE)

    counted = {
        one.group_position: max(
            copy.counted for copy in copies if copy.group_position == one.group_position
        )
        for one in copies
    }
    for _ in range(4):
        for position, most in counted.items():
            own = [one for one in copies if one.group_position == position]
            times = [one.time_ms for one in own if one.time_ms]
            told = engine.group(position)
            if not own:
                assert told is None
                continue
            assert told is not None
            assert (told.oldest_ms, told.newest_ms) == (
                min(times, default=0),
                max(times, default=0),
            )
            assert (told.copies, told.counted) == (len(own), most)
            best = engine.best_of(position)
            expected = max(
                (one for one in own if one.better),
                key=lambda one: (one.log_offset, one.log_row),
                default=None,
            )
            assert (best and (best.output_position, best.better)) == (
                expected and (expected.output_position, expected.better)
            )
        for _ in range(8):
            gone = copies.pop(dice.below(len(copies)))
            engine.forget(ForgottenId(key_of(gone.id.encode()), shown_key_of(gone.id), 99, 0))
        engine.commit(PLACE)


def test_of_two_take_downs_the_later_holds() -> None:
    """Of an id, and of ids that are shown alike, in whatever order they are told; what no log
    decided goes by its time."""
    known = ForgottenIds([forgotten_id("a", 9), forgotten_id("a", 5)])

    assert [known.covers(key_of(b"a"), offset, 0) for offset in (8, 9, 10)] == [True, False, False]
    assert [known.hides_displayed_id("a", offset, 0) for offset in (8, 9, 10)] == [
        True,
        False,
        False,
    ]
    assert [known.covers(key_of(b"a"), -1, time_ms) for time_ms in (0, 1000, 1001)] == [
        True,
        True,
        False,
    ]
    assert not known.covers(key_of(b"b"), 0, 0)
    assert not known.hides_displayed_id("", 0, 0)
    known = ForgottenIds(
        [forgotten_id("a", 9)], now_ms=lambda: 5000
    )  # a time ahead says nothing of whether it came before
    assert [known.covers(key_of(b"a"), -1, time_ms) for time_ms in (1001, 5000, 5001)] == [
        False,
        False,
        True,
    ]
    assert [known.hides_displayed_id("a", -1, time_ms) for time_ms in (5000, YEAR_9999_MS)] == [
        False,
        True,
    ]
    assert not known.covers(key_of(b"a"), 10, YEAR_9999_MS)


def test_the_old_leave_and_take_downs_stay(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for number in range(4):
        engine.add_text(
            facts(number, group_position=f"documents-0@{number}", kept_id=f"kept{number}"), ["one"]
        )
    engine.commit(PLACE)
    engine.forget(ForgottenId("key", "shown", 1, 1))
    engine.drop_before(2)
    engine.commit(PLACE)

    assert [one.facts.output_position for one in engine.find(SearchQuery((("one",),), 1), 9)] == [
        "unique-0@3",
        "unique-0@2",
    ]
    assert [one.position for one in engine.groups("newest", 9)] == [
        "documents-0@3",
        "documents-0@2",
    ]
    assert engine.forgotten() == [ForgottenId("key", "shown", 1, 1)]
    assert engine.checkpoint == PLACE


YEAR_9999_MS = 253_402_300_000_000


def test_a_time_that_lies_ahead_is_that_of_its_reading(
    make_engine: MakeEngine,
) -> None:
    """Producers may write any time: documents of the year 9999 leave in their turn."""
    engine = make_engine(None, lambda: 1_000)
    engine.add_text(facts(1, time_ms=YEAR_9999_MS), ["one"])
    engine.commit(PLACE)
    found = engine.facts_at("unique-0@1")
    assert found is not None
    assert found.time_ms == 1_000
    engine.drop_before(1_001)
    engine.commit(PLACE)
    assert engine.facts_at("unique-0@1") is None


def test_no_forgotten_id_lies_in_the_folder(tmp_path: Path) -> None:
    """What is kept of a take-down, and with copies of what they are copies of, is a digest or
    nothing."""
    engine = TextIndex(tmp_path)
    engine.forget(forgotten_id("https://secret.example", 5))
    engine.commit(PLACE)
    engine.close()

    found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert (b"secret" in found, key_of(b"https://secret.example").encode() in found) == (
        False,
        True,
    )


def test_a_folder_that_is_open_or_damaged_is_refused_in_a_sentence(tmp_path: Path) -> None:
    engine = TextIndex(tmp_path / "one")
    with pytest.raises(
        StoreError,
        match=r"another process has it open\. Stop that search, or .* STREAM_DEDUP_STATE_DIR\.$",
    ) as held:
        TextIndex(tmp_path / "one")
    assert held.value.exit_code == 1, "it may have ended by the next start"
    engine.close()
    with pytest.raises(StoreError, match="closed"):
        engine.commit(PLACE)

    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "meta.json").write_text("{")
    with pytest.raises(VolumeError, match="Delete the folder, and the search fills a new one"):
        TextIndex(tmp_path / "two")


@pytest.mark.parametrize(
    "write",
    [
        lambda engine: engine.add_text(facts(1), ["one"]),
        lambda engine: engine.commit(PLACE),
        lambda engine: engine.drop_before(5),
        lambda engine: engine.forget(forgotten_id("kept1", 5)),
    ],
)
def test_a_full_disk_is_told_at_any_write(
    write: Callable[[TextIndex], object], tmp_path: Path
) -> None:
    """The engine's own threads meet it, and its next call says so, whichever that is."""
    engine = TextIndex(tmp_path)
    broken = MagicMock()
    for name in ("add_document", "commit", "delete_documents_by_query", "delete_documents_by_term"):
        getattr(broken, name).side_effect = ValueError("An index writer was killed.")
    engine._writer = broken

    with pytest.raises(StoreError, match="could not be written; is the disk full") as raised:
        write(engine)
    assert raised.value.exit_code == 1


def test_pairs_are_different_ones_in_their_order() -> None:
    assert pairs_of(["a", "b", "a", "b"]) == (("a", "b"), ("b", "a"))
    assert pairs_of(["a"]) == (("a",),)
    assert pairs_of([]) == ()


# -- clues of every kind: found, or refused in a sentence; and where a text holds one


@pytest.mark.parametrize("text", ["", "   ", "***", '"" AND', "\u200f\u200d"])
def test_nothing_is_no_clue_but_an_operator_is_a_word(text: str) -> None:
    if "AND" in text:
        assert parse_query(text, LANGUAGES).pairs == (("and",),)
        return
    with pytest.raises(InputError, match="The search text has no word"):
        parse_query(text, LANGUAGES)


def test_a_clue_of_ten_megabytes_is_refused_and_a_long_one_cut() -> None:
    with pytest.raises(InputError, match="10,000,000 bytes; the limit is 1,000,000"):
        parse_query("a " * 5_000_000, LANGUAGES)

    clue = parse_query(" ".join(f"w{number}" for number in range(10_000)), LANGUAGES)
    assert (clue.words, len(clue.pairs)) == (10_000, WORDS_MAX - 1)


@pytest.mark.parametrize(
    ("text", "clue", "marked"),
    [
        ("The quick brown fox jumps.", "QUICK, brown", ["quick brown"]),
        ("我们在北京大学学习中文", "北京大学学习", ["北京大学学习"]),
        ("これは日本語の文章です。", "日本語の文章", ["日本語の文章"]),
        ("שלום עולם טוב מאוד", "עולם טוב", ["עולם טוב"]),
        ("Cafe\u0301 au lait, s'il vous plai\u0302t", "CAFÉ AU lait", ["Cafe\u0301 au lait,"]),
        ("one two one three", "three", ["three"]),
        ("Paid 2.5 million.", "1.5 million", ["million."]),
        ("Paid 1.5 million.", "1.5 million", ["1.5 million."]),
        ("7,200 for 40 piles", "9,200 for 40", ["for 40"]),
        ("ทดสอบภาษาไทย", "ภาษาไทย", ["ภาษาไทย"]),
    ],
)
def test_the_words_that_match_are_marked(text: str, clue: str, marked: list[str]) -> None:
    snippet = snippet_of(text, parse_query(clue, LANGUAGES), LANGUAGES)

    assert "".join(piece for piece, _ in snippet) == text
    assert [piece for piece, matches in snippet if matches] == marked


def test_of_a_long_text_the_piece_with_the_clue_is_shown() -> None:
    text = "filler words " * 2_000 + "here the needle lies hidden " + "more filler " * 2_000
    snippet = snippet_of(text, parse_query("the needle lies hidden", LANGUAGES), LANGUAGES)

    assert [piece for piece, matches in snippet if matches] == ["the needle lies hidden"]
    assert snippet[0] == ("… ", False)
    assert snippet[-1] == (" …", False)
    assert sum(len(piece) for piece, _ in snippet) < 800


@given(text=st.text(max_size=40).map(lambda piece: 12 * piece), clue=st.text(max_size=60))
def test_a_snippet_is_a_piece_of_its_text(text: str, clue: str) -> None:
    try:
        wanted = parse_query(clue, LANGUAGES)
    except InputError:
        return
    shown = "".join(piece for piece, _ in snippet_of(text, wanted, LANGUAGES))

    assert shown.removeprefix("… ").removesuffix(" …") in text or shown in text


def test_of_a_short_clue_less_must_be_held() -> None:
    """Where nobody says how much: a changed word of Japanese breaks four of seven pairs."""

    def needed(pairs: int, min_share: float | None = None) -> int:
        return SearchQuery(
            tuple((f"{number}", "x") for number in range(pairs)), pairs + 1
        ).needed_pairs(min_share)

    assert [needed(pairs) for pairs in (1, 2, 3, 7, 10, 11, 59)] == [1, 1, 2, 3, 4, 6, 30]
    assert [needed(pairs, 0.5) for pairs in (1, 7, 10, 59)] == [1, 4, 5, 30]
