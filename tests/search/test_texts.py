"""The engine finds what a plain scan finds, and commits its checkpoint with it."""

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
CHECKPOINT = EngineCheckpoint({"topics": "1"}, {("unique", 0): 7, ("duplicates", 3): 9})
# Few words, so that clues are found; signs between them that are operators elsewhere; scripts
# without spaces.
WORDS = st.sampled_from(
    ["fox", "dog", "brown", "the", "OR", "né", "שלום", "مرحبا", "ทดสอบ", "中文", "処理", "a"]
)
FEW_WORDS = ("fox", "dog", "brown", "the", "中文")
TEXTS = st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=12)
SIGNS = st.sampled_from([" ", ", ", "* ", " AND ", ' "', " -", "~2 ", ": ", "\u200f ", "\n"])


def scan(texts: Mapping[str, list[str]], clue: list[str], min_share: float) -> dict[str, Fraction]:
    """Return the texts that contain at least that share of a clue, with their shares."""

    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}

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
    """Make engines in new folders, or in a given one; all are closed at the end."""
    made: list[TextIndex] = []

    def make(folder: Path | None = None, *now: Callable[[], int]) -> TextIndex:
        made.append(TextIndex(folder or tmp_path / f"engine-{len(made)}", *now))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


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
            engine.commit(CHECKPOINT)
    engine.commit(CHECKPOINT)

    wanted = parse_query(sign.join(clue), LANGUAGES)
    found = engine.find(wanted, 100, min_share)

    words = words_of(sign.join(clue), LANGUAGES)
    assert {hit.facts.output_position: hit.share for hit in found} == {
        position: float(share) for position, share in scan(in_words, words, min_share).items()
    }
    assert [hit.share for hit in found] == sorted((hit.share for hit in found), reverse=True)
    engine.close()


@pytest.mark.parametrize("limit", few([1, 2, 3]))
def test_the_best_texts_are_found_for_any_limit(
    make_engine: MakeEngine, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No better text is left out where more than `limit` texts contain the rarest pairs."""
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
        engine.commit(CHECKPOINT)

        found = engine.find(parse_query(clue, LANGUAGES), limit, 0.5)

        expected_shares = scan(in_words, words_of(clue, LANGUAGES), 0.5)
        assert [hit.share for hit in found] == [
            float(share) for share in sorted(expected_shares.values(), reverse=True)[:limit]
        ]
        assert all(hit.share == float(expected_shares[hit.facts.output_position]) for hit in found)
        engine.close()


def test_the_kept_document_comes_before_its_copies(
    make_engine: MakeEngine,
) -> None:
    """A hundred copies do not hide their kept document."""
    engine = make_engine()
    for number in range(100):
        engine.add_text(
            facts(number, group_position="documents-0@50", verdict="duplicate"),
            ["one", "two", "three"],
        )
    engine.add_text(facts(100), ["one", "two", "three"])
    engine.commit(CHECKPOINT)

    assert (
        next(hit.facts.output_position for hit in engine.find(SearchQuery((("one", "two"),), 2), 3))
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
            engine.commit(CHECKPOINT)
    engine.commit(CHECKPOINT)

    counts = Counter(groups)
    largest = engine.groups("largest", 10)
    assert [entry.copies for entry in largest] == sorted(counts.values(), reverse=True)
    assert {entry.position: (entry.copies, entry.bytes_wasted, entry.id) for entry in largest} == {
        f"documents-0@{group}": (count, 100 * count, f"kept{group}")
        for group, count in counts.items()
    }
    assert engine.groups("largest", 1, 1) == largest[1:2]
    assert engine.groups("largest", 1, 10**15) == [], "allocating that many rows ends the process"
    assert [entry.position for entry in engine.groups("newest", 2)] == [
        "documents-0@4",
        "documents-0@3",
    ]
    assert [copy.time_ms for copy in engine.copies_of("documents-0@3", 3)] == [10, 9, 8]
    assert [entry.position for entry in engine.groups_of_id("kept2")] == ["documents-0@2"]
    assert engine.group("documents-0@77") is None


def test_only_committed_documents_and_the_checkpoint_are_kept(tmp_path: Path) -> None:
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
    engine.commit(CHECKPOINT)
    engine.add_text(facts(2, group_position="documents-0@1"), ["one"])
    engine.close()

    reopened = TextIndex(tmp_path)
    assert reopened.checkpoint == CHECKPOINT
    assert [hit.facts.output_position for hit in reopened.find(SearchQuery((("one",),), 1), 9)] == [
        "unique-0@1"
    ]
    assert reopened.groups("largest", 9) == []
    reopened.close()


def forgotten_id(identifier: str, log_offset: int) -> ForgottenId:
    return ForgottenId(key_of(identifier.encode()), shown_key_of(identifier), log_offset, 1000)


def test_forgotten_documents_are_removed_with_their_counts(make_engine: MakeEngine) -> None:
    """With the next commit: copies leave their groups' counts, a group without any is gone, a
    forgotten root has no id."""
    engine = make_engine()
    for number in range(6):
        document = facts(
            number,
            group_position=f"documents-0@{number % 2}",
            kept_id=f"kept{number % 2}",
            log_offset=number,
            size=10 + number,
        )
        engine.add_text(document, ["one"], key_of(b"id%d" % number))
    with pytest.raises(StoreError, match="since the last commit"):
        engine.forget(forgotten_id("id1", 9))
    engine.commit(CHECKPOINT)

    engine.forget(forgotten_id("id5", 9))
    engine.forget(forgotten_id("id5", 9))
    engine.forget(forgotten_id("id3", 9))
    engine.forget(forgotten_id("id2", 2))  # decided after this take-down
    engine.forget(forgotten_id("kept0", 9))
    engine.commit(CHECKPOINT)

    assert [hit.facts.output_position for hit in engine.find(SearchQuery((("one",),), 1), 9)] == [
        f"unique-0@{number}" for number in (4, 2, 1, 0)
    ]
    assert engine.group("documents-0@1") == GroupFacts("documents-0@1", "kept1", 1, 11, 1, 5, 1)
    assert engine.group("documents-0@0") == GroupFacts(
        "documents-0@0", "", 3, 36, 4, 4, 2, is_forgotten=True
    )
    assert (engine.groups_of_id("kept0"), engine.facts_of_id("id5")) == ([], [])
    assert sorted(take_down.log_offset for take_down in engine.forgotten()) == [2, 9, 9, 9]

    engine.forget(forgotten_id("id1", 10))
    engine.commit(CHECKPOINT)
    assert engine.group("documents-0@1") is None


def test_a_page_that_is_fetched_again_is_no_copy(make_engine: MakeEngine) -> None:
    """A group counts fetches apart from copies, also after take-downs."""
    engine = make_engine()
    for number, reason in enumerate(("near", "unchanged", "revised", "exact", "unchanged")):
        group = f"documents-0@{number // 4}"
        page = facts(
            number + 1, reason=reason, group_position=group, kept_id="kept", log_offset=number
        )
        engine.add_text(page, ["one"], key_of(page.id.encode()))
    engine.commit(CHECKPOINT)

    def read_counts(position: str) -> tuple[int, int, int]:
        group = engine.group(position)
        assert group is not None
        return group.copies, group.fetched_again, group.bytes_wasted

    assert (read_counts("documents-0@0"), read_counts("documents-0@1")) == ((2, 2, 20), (0, 1, 0))
    assert [group.position for group in engine.groups("newest", 9)] == ["documents-0@0"]
    assert engine.group_count == 1
    assert [copy.id for copy in engine.copies_of("documents-0@0", 9)] == ["id4", "id1"]
    groups = [engine.group(f"documents-0@{finder}") for finder in range(2)]
    assert [group and (group.oldest_ms, group.newest_ms) for group in groups] == [(1, 4), (0, 0)]
    for identifier, left in (("id2", (2, 1, 20)), ("id1", (1, 1, 10)), ("id4", (0, 1, 0))):
        engine.forget(forgotten_id(identifier, 9))
        engine.commit(CHECKPOINT)
        assert read_counts("documents-0@0") == left
    assert engine.groups("largest", 9) == []
    engine.drop_before(9)
    engine.commit(CHECKPOINT)
    assert read_counts("documents-0@0") == (0, 1, 0)


@pytest.mark.parametrize("between", ["nothing", "a commit", "a restart"])
@pytest.mark.parametrize("is_release_first", [False, True])
def test_a_released_copy_counts_once_as_a_kept_document(
    make_engine: MakeEngine, tmp_path: Path, is_release_first: bool, between: str
) -> None:
    """In whichever order its two records are read; the group knows it, also without another copy,
    and until it is forgotten."""
    engine = make_engine(tmp_path / "engine")
    group = {"group_position": "documents-0@9", "kept_id": "kept", "verdict": "duplicate"}
    copy = facts(1, source_position="documents-0@1", reason="near", similarity=0.7, **group)
    copy = copy._replace(output_position="duplicates-0@1", better="longest")
    release = facts(1, source_position="documents-0@1", reason="released")
    other = facts(2, source_position="documents-0@2", reason="near", **group)
    records = [release, copy] if is_release_first else [copy, release]
    for record in (records[0], other, records[1]):
        hosts = ["b.example", "a.example"] if record.is_duplicate else ()
        engine.add_text(record, ["one"], key_of(record.id.encode()), hosts)
        if between != "nothing":
            engine.commit(CHECKPOINT)
        if between == "a restart":
            engine.close()
            engine = make_engine(tmp_path / "engine")
    engine.commit(CHECKPOINT)

    found = engine.find(SearchQuery((("one",),), 1), 9)
    joined = release._replace(group_position="documents-0@9", similarity=0.7)
    assert [match.facts.output_position for match in found] == ["unique-0@1", "unique-0@2"]
    assert [found[0].facts, engine.facts_at("duplicates-0@1")] == [joined, joined]
    assert engine.kept_at("documents-0@1") == [joined]
    assert engine.copies_of("documents-0@9", 9, are_released=True) == [joined]
    assert [match.id for match in engine.copies_of("documents-0@9", 9)] == ["id2"]
    assert engine.best_of("documents-0@9") is None
    assert [match.copies for match in engine.host_pairs("", 9)] == [1]
    kept = engine.group("documents-0@9")
    assert kept is not None
    assert (kept.copies, kept.released, kept.bytes_wasted, kept.id) == (1, 1, 10, "kept")

    engine.forget(forgotten_id("id2", 9))
    engine.commit(CHECKPOINT)
    kept = engine.group("documents-0@9")
    assert kept is not None
    assert (kept.copies, kept.released, kept.bytes_wasted) == (0, 1, 0)
    assert (engine.groups("largest", 9), engine.host_pairs("", 9)) == ([], [])
    engine.forget(forgotten_id("id1", 9))
    engine.commit(CHECKPOINT)
    assert (engine.group("documents-0@9"), engine.documents) == (None, 0)


def test_host_pairs_count_the_copies_between_hosts(
    make_engine: MakeEngine,
) -> None:
    """As a scan counts them: how many, the first copy, the newest; of a host, not of its
    subdomains, and without what was forgotten."""
    engine, hosts = make_engine(), ("b.example", "sub.a.example", "a.example")
    copies = [
        (
            facts(number, group_position="documents-0@0", kept_id="kept", log_offset=number),
            (hosts[number % 2], hosts[2 - number % 3 % 2]),
        )
        for number in range(1, 13)
    ]
    for copy, pair in copies:
        engine.add_text(copy, ["one"], key_of(copy.id.encode()), pair)
    engine.add_text(
        facts(20, group_position="documents-0@0", kept_id="kept"), ["one"]
    )  # fetched again
    engine.commit(CHECKPOINT)
    engine.forget(forgotten_id("id1", 9))
    engine.commit(CHECKPOINT)

    def counted(wanted: str) -> set[tuple[str, int, str, int]]:
        found: dict[str, list[TextFacts]] = {}
        for copy, pair in copies[1:]:
            if not wanted or wanted in pair:
                found.setdefault(" ".join(pair), []).append(copy)
        return {
            (key, len(copies), copies[0].output_position, copies[-1].time_ms)
            for key, copies in found.items()
        }

    for wanted in ("", "a.example", "sub.a.example", "b.example", "nobody.example"):
        pairs = engine.host_pairs(wanted, 10)
        assert {
            (
                f"{pair.copier} {pair.source}",
                pair.copies,
                pair.earliest.output_position,
                pair.newest_ms,
            )
            for pair in pairs
        } == counted(wanted)
        assert [pair.copies for pair in pairs] == sorted(
            (pair.copies for pair in pairs), reverse=True
        )
    assert len(engine.host_pairs("", 1)) == 1
    engine.forget(forgotten_id("kept", 99))
    engine.commit(CHECKPOINT)
    assert engine.host_pairs("", 10) == [], "a host of a forgotten kept document"
    assert 0 < engine.committed_ms <= time.time() * 1000


@pytest.mark.parametrize("seed", few(range(10)))
def test_a_group_has_its_times_and_its_best_copy(make_engine: MakeEngine, seed: int) -> None:
    """The first and the last time of its copies, what the log has counted, and the last copy in the
    log that beat all before it; in whatever order they are read, and also once some were forgotten.
    A copy without a time has none to tell."""
    dice, engine = Dice("groups", seed), make_engine()
    copies = []
    for number in range(40):
        better = dice.pick(("", "", "longest", "newest"))
        fields = {
            "log_offset": number // 3,
            "log_row": number % 3,
            "better": better,
            "counted": dice.below(2) * number,
        }
        new_copy = facts(
            number,
            group_position=f"documents-0@{dice.below(4)}",
            time_ms=dice.below(6) * 1000,
            **fields,
        )
        copies.append(new_copy)
    unread = list(copies)
    while unread:
        member = unread.pop(dice.below(len(unread)))
        engine.add_text(member, ["w"], key_of(member.id.encode()))
        if dice.below(5) == 0:
            engine.commit(CHECKPOINT)
    engine.commit(CHECKPOINT)

    counted = {
        member.group_position: max(
            copy.counted for copy in copies if copy.group_position == member.group_position
        )
        for member in copies
    }
    for _ in range(4):
        for position, most in counted.items():
            members = [member for member in copies if member.group_position == position]
            times = [member.time_ms for member in members if member.time_ms]
            group = engine.group(position)
            if not members:
                assert group is None
                continue
            assert group is not None
            assert (group.oldest_ms, group.newest_ms) == (
                min(times, default=0),
                max(times, default=0),
            )
            assert (group.copies, group.counted) == (len(members), most)
            best = engine.best_of(position)
            expected = max(
                (member for member in members if member.better),
                key=lambda member: (member.log_offset, member.log_row),
                default=None,
            )
            assert (best and (best.output_position, best.better)) == (
                expected and (expected.output_position, expected.better)
            )
        for _ in range(8):
            gone = copies.pop(dice.below(len(copies)))
            engine.forget(ForgottenId(key_of(gone.id.encode()), shown_key_of(gone.id), 99, 0))
        engine.commit(CHECKPOINT)


def test_the_later_of_two_take_downs_applies() -> None:
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
    )  # a time in the future does not show whether the record is older
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


def test_drop_before_removes_documents_and_keeps_take_downs(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for number in range(4):
        engine.add_text(
            facts(number, group_position=f"documents-0@{number}", kept_id=f"kept{number}"), ["one"]
        )
    engine.commit(CHECKPOINT)
    engine.forget(ForgottenId("key", "shown", 1, 1))
    engine.drop_before(2)
    engine.commit(CHECKPOINT)

    assert [hit.facts.output_position for hit in engine.find(SearchQuery((("one",),), 1), 9)] == [
        "unique-0@3",
        "unique-0@2",
    ]
    assert [group.position for group in engine.groups("newest", 9)] == [
        "documents-0@3",
        "documents-0@2",
    ]
    assert engine.forgotten() == [ForgottenId("key", "shown", 1, 1)]
    assert engine.checkpoint == CHECKPOINT


YEAR_9999_MS = 253_402_300_000_000


def test_a_time_in_the_future_is_replaced_by_the_time_of_reading(
    make_engine: MakeEngine,
) -> None:
    """Producers may write any time, and documents of the year 9999 must expire too."""
    engine = make_engine(None, lambda: 1_000)
    engine.add_text(facts(1, time_ms=YEAR_9999_MS), ["one"])
    engine.commit(CHECKPOINT)
    found = engine.facts_at("unique-0@1")
    assert found is not None
    assert found.time_ms == 1_000
    engine.drop_before(1_001)
    engine.commit(CHECKPOINT)
    assert engine.facts_at("unique-0@1") is None


def test_the_folder_contains_no_forgotten_id(tmp_path: Path) -> None:
    """What is kept of a take-down, and with copies of what they are copies of, is a digest or
    nothing."""
    engine = TextIndex(tmp_path)
    engine.forget(forgotten_id("https://secret.example", 5))
    engine.commit(CHECKPOINT)
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
    ) as refused:
        TextIndex(tmp_path / "one")
    assert refused.value.exit_code == 1, "it may have ended by the next start"
    engine.close()
    with pytest.raises(StoreError, match="closed"):
        engine.commit(CHECKPOINT)

    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "meta.json").write_text("{")
    with pytest.raises(VolumeError, match="Delete the folder, and the search fills a new one"):
        TextIndex(tmp_path / "two")


@pytest.mark.parametrize(
    "write",
    [
        lambda engine: engine.add_text(facts(1), ["one"]),
        lambda engine: engine.commit(CHECKPOINT),
        lambda engine: engine.drop_before(5),
        lambda engine: engine.forget(forgotten_id("kept1", 5)),
    ],
)
def test_a_full_disk_is_reported_at_any_write(
    write: Callable[[TextIndex], object], tmp_path: Path
) -> None:
    """The engine's threads fail, and its next call reports it, whichever that is."""
    engine = TextIndex(tmp_path)
    broken = MagicMock()
    for name in ("add_document", "commit", "delete_documents_by_query", "delete_documents_by_term"):
        getattr(broken, name).side_effect = ValueError("An index writer was killed.")
    engine._writer = broken

    with pytest.raises(StoreError, match=r"could not be written\. Is the disk full") as raised:
        write(engine)
    assert raised.value.exit_code == 1


def test_pairs_are_distinct_and_in_order() -> None:
    assert pairs_of(["a", "b", "a", "b"]) == (("a", "b"), ("b", "a"))
    assert pairs_of(["a"]) == (("a",),)
    assert pairs_of([]) == ()


# -- queries of every kind, and snippets


@pytest.mark.parametrize("text", ["", "   ", "***", '"" AND', "\u200f\u200d"])
def test_a_query_without_words_is_refused_and_operators_are_words(text: str) -> None:
    if "AND" in text:
        assert parse_query(text, LANGUAGES).pairs == (("and",),)
        return
    with pytest.raises(InputError, match="The search text has no word"):
        parse_query(text, LANGUAGES)


def test_a_query_of_ten_megabytes_is_refused_and_a_long_one_cut() -> None:
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


def test_the_snippet_of_a_long_text_is_the_piece_with_the_clue() -> None:
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


def test_a_short_query_needs_a_smaller_share_of_its_pairs() -> None:
    """A changed word of Japanese breaks four of seven pairs."""

    def needed(pairs: int, min_share: float | None = None) -> int:
        return SearchQuery(
            tuple((f"{number}", "x") for number in range(pairs)), pairs + 1
        ).needed_pairs(min_share)

    assert [needed(pairs) for pairs in (1, 2, 3, 7, 10, 11, 59)] == [1, 1, 2, 3, 4, 6, 30]
    assert [needed(pairs, 0.5) for pairs in (1, 7, 10, 59)] == [1, 4, 5, 30]
