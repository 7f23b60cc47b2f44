"""The public API: its page, its errors, and that its verdicts are those of the filter."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import multiprocessing
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import stream_dedup
from bench.mini_crawl import mini_crawl
from stream_dedup import (
    Answer,
    Index,
    Plan,
    Print,
    Recipe,
    StreamDedupError,
    dedup,
    fingerprint,
    judge,
    page_text,
    prints,
)
from stream_dedup.audit.scan import ComparedText, PlanRules
from stream_dedup.domain.errors import ConfigurationError, InputError, StoreError
from stream_dedup.domain.hosts import site_of
from stream_dedup.domain.plan import PLANS, parse
from stream_dedup.files.offline import OfflineDocument, judge_documents
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.log.records import DOCUMENTS_MAX
from tests import programs
from tests.examples import run

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"
LONG = " ".join(f"word{number}" for number in range(60))
GOOD = fingerprint(LONG)


def test_the_examples_of_the_page_pass() -> None:
    failed, tried, output = run(PAGE)

    assert failed == 0, output
    assert tried > 20


def test_every_public_name_is_there_and_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in stream_dedup.__all__:
        assert getattr(stream_dedup, name) is not None
        assert name == "__version__" or f"`{name}" in text
    assert dir(stream_dedup) == sorted(stream_dedup.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        stream_dedup.no_such_name  # noqa: B018


def test_importing_is_cheap_and_needs_no_kafka() -> None:
    """Importing loads nothing; the core loads neither Kafka's client nor, in memory, RocksDB."""
    code = (
        "import sys, stream_dedup\n"
        "heavy = ('numpy', 'numba', 'pydantic', 'confluent_kafka', 'rocksdict', 'rich')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "import stream_dedup.fingerprinting\n"
        "from stream_dedup import Index, fingerprint\n"
        "assert callable(fingerprint)\n"
        "print([name for name in ('confluent_kafka', 'rocksdict', 'typer') if name in "
        "sys.modules])\n"
    )

    ended = programs.run([sys.executable, "-c", code], seconds=120)

    assert ended.stdout.splitlines() == ["[]", "[]"]


@pytest.mark.parametrize("on_disk", [False, True])
def test_verdicts_are_those_of_the_filter(tmp_path: Path, on_disk: bool) -> None:
    """Verdicts are those of `check`, for texts and prints, in any batches and across restarts."""
    dice = random.Random(7)
    pages = mini_crawl(3, 200)
    documents = [
        OfflineDocument(page.id.encode(), page.text, site=site_of(page.id.encode()))
        for page in pages
    ]
    expected = list(judge_documents(documents, Recipe(), parse("bands")))
    path = tmp_path / "index" if on_disk else None
    index = Index(path)
    found: list[Answer] = []
    while len(found) < len(pages):
        part = pages[len(found) : len(found) + dice.randint(1, 40)]
        found += index.add_many(
            (page.id, fingerprint(page.text) if dice.random() < 0.3 else page.text) for page in part
        )
        if on_disk and dice.random() < 0.3:
            index.close()
            index = Index(path)
    index.close()

    kept = [None if verdict.kept_id is None else verdict.kept_id.decode() for verdict in expected]
    wanted = [
        (verdict.reason.label, verdict.distance, of, verdict.fingerprint)
        for verdict, of in zip(expected, kept, strict=True)
    ]
    assert [
        (
            answer.reason,
            answer.distance,
            answer.duplicate_of,
            None if answer.print.is_empty else answer.print.hex,
        )
        for answer in found
    ] == wanted
    assert {answer.reason for answer in found} >= {"new", "near", "unchanged", "empty"}


def test_documents_are_read_one_batch_ahead_of_their_verdicts() -> None:
    """An endless stream can be judged: no more than one batch is read ahead of its verdicts."""
    numbers = itertools.count()
    endless = (OfflineDocument(b"", f"text {number}") for number in numbers)
    verdicts = judge_documents(endless, Recipe(), PLANS["blocks"])
    for _ in range(3):
        next(verdicts)

    assert next(numbers) == DOCUMENTS_MAX


def test_mismatched_prints_and_indexes_are_refused(tmp_path: Path) -> None:
    """Another recipe, plan or volume, and a missing text, each raise an error."""
    other = Recipe(key=b"another key of enough bytes")
    with Index(tmp_path / "a") as index:
        with pytest.raises(ConfigurationError, match="but the index has"):
            index.add("1", fingerprint("text", other))
        with pytest.raises(ConfigurationError, match="but the index has"):
            index.query(fingerprint("text", other))
        with pytest.raises(InputError, match="None was given"):
            index.add("1", None)  # type: ignore[arg-type]
        with pytest.raises(StoreError):
            Index(tmp_path / "a")
    with pytest.raises(ConfigurationError, match="open it with the recipe"):
        Index(tmp_path / "a", recipe=other)
    with pytest.raises(ConfigurationError, match="cannot be compared"):
        fingerprint("a").distance(fingerprint("a", other))
    wide = Plan(width=256, blocks=16, radius=1, threshold=20)
    for path in (None, tmp_path / "a"):
        with pytest.raises(ConfigurationError, match="bits"):
            Index(path, plan=wide)
    with Index(tmp_path / "a") as index:
        assert len(index) == 0
    store = RocksStore(tmp_path / "b")
    LogIndex(store).bind("the log of a filter")
    store.close()
    with pytest.raises(StreamDedupError, match="the log of a filter"):
        Index(tmp_path / "b")


def test_prints_measure_the_similarity_of_texts() -> None:
    words = [f"word{number}" for number in range(200)]
    first = fingerprint(" ".join(words))
    other = fingerprint(" ".join([*words[:100], "changed", *words[101:]]))

    assert first.similarity(first) == 1.0
    assert 0.85 < first.similarity(other) < 1.0
    assert first.similarity(fingerprint("of something else " * 9)) < 0.1
    assert len(first.sketch) == 120
    chars = fingerprint("a text", "chars")
    assert chars == fingerprint("a text", Recipe("chars"))
    with pytest.raises(ConfigurationError, match="have no sketches"):
        chars.similarity(chars)
    with pytest.raises(ConfigurationError, match="cannot be compared"):
        first.similarity(chars)
    with (
        Index() as index,
        pytest.raises(
            InputError, match=r"128 bits and a sketch of 0 bytes; prints of .* 120 bytes"
        ),
    ):
        index.add("id", dataclasses.replace(first, sketch=b""))


def test_a_similarity_replaces_that_of_the_plan(tmp_path: Path) -> None:
    """`dedup`, `judge` and an index use it; an index stores it; invalid values are refused."""
    words = [f"word{number}" for number in range(200)]
    first = " ".join(words)
    other = " ".join([*words[:60], *(f"other{number}" for number in range(10)), *words[70:]])
    similarity = fingerprint(first).similarity(fingerprint(other))
    assert 0.7 < similarity < 0.95

    assert dedup([first, other])["is_duplicate"] == [False, True]
    assert dedup([first, other], similarity=0.95)["is_duplicate"] == [False, False]
    with Index(tmp_path / "a", similarity=0.95) as index:
        found = [answer.reason for answer in index.add_many([("1", first), ("2", other)])]
        assert found == ["new", "new"]
        assert [(match.id, match.similarity) for match in index.query(other)] == [("2", 1.0)]
    with Index(tmp_path / "a") as index:  # the similarity was stored
        thresholds = {"similarity": 95, "unsure": 95}
        assert index.plan == Plan(**{**dataclasses.asdict(PLANS["bands"]), **thresholds})
    with Index(tmp_path / "a", similarity=0.95), Index() as usual:
        usual.add("1", first)
        found = [(match.id, match.similarity) for match in usual.query(other)]
        assert found == [("1", int(100 * similarity) / 100)]
    lower = " ".join([*words[:60], *(f"other{number}" for number in range(33)), *words[93:]])
    assert 0.55 < fingerprint(first).similarity(fingerprint(lower)) < 0.7
    assert dedup([first, lower])["is_duplicate"] == [False, False]
    assert dedup([first, lower], similarity=0.55)["is_duplicate"] == [False, True]
    assert judge(prints([first, lower]), similarity=0.55)["is_duplicate"] == [False, True]
    with Index(similarity=0.55) as index:
        found = [answer.reason for answer in index.add_many([("1", first), ("2", lower)])]
        assert found == ["new", "near"]
    for refused in (1.5, "much", 0, 0.001):
        with pytest.raises(ConfigurationError, match=r"a share from 0.01 to 1, in hundredths"):
            Index(similarity=refused)  # type: ignore[arg-type]
    assert Index(similarity=0.7 + 0.1).plan.similarity == 80
    assert [round(100 * share) for share in np.arange(0.55, 0.95, 0.05)] == [
        Index(similarity=share).plan.similarity for share in np.arange(0.55, 0.95, 0.05)
    ]
    with pytest.raises(ConfigurationError, match=r"not '65'. Write per cent as 65%"):
        Index(similarity=65)
    with pytest.raises(ConfigurationError, match=r"such as 0.65 or 0.66, not '0.655'"):
        Index(similarity=0.655)
    with pytest.raises(ConfigurationError, match="compares no sketches"):
        dedup([first], plan="classic", similarity=0.7)
    with Index(recipe=Recipe("chars")) as index:
        index.add("1", first)
        assert [(match.id, match.similarity) for match in index.query(first)] == [("1", None)]


def test_an_index_that_cannot_be_opened_names_the_argument(tmp_path: Path) -> None:
    """The error names no setting of the filter, if the index is open or has no valid folder."""
    (tmp_path / "file").write_text("")
    with Index(tmp_path / "a"):
        for path in (tmp_path / "a", tmp_path / "file" / "a"):
            with pytest.raises(StoreError, match=r"--index, --to or Index\(path\)\.$") as error:
                Index(path)
            assert "STREAM_DEDUP" not in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"similarity": 0.95},
        {"similarity": 0.5},
        {"plan": "classic"},
        {"plan": "128:4:0:28~16:75%:64"},
        {"plan": "bands"},
    ],
    ids=str,
)
def test_a_reopened_index_judges_by_its_new_options(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """It compares stored prints by the new plan's predicate and names the earliest near one."""
    words = [f"word{number}" for number in range(200)]
    others = [f"other{number}" for number in range(45)]
    texts = [
        " ".join([*words[:100], *others[:changed], *words[100 + changed :]])
        for changed in (0, 2, 6, 12, 20, 30, 45)
    ]
    with Index(tmp_path / "a", similarity=1) as index:
        assert {answer.reason for answer in index.add_many(enumerate(texts[::2]))} == {"new"}
    with Index(tmp_path / "a", **options) as index:
        plan = index.plan
    with Index(tmp_path / "a") as index:
        assert index.plan == plan
        probes = [(100 + number, f"{text} more") for number, text in enumerate(texts)]
        found = [(answer.reason, answer.duplicate_of) for answer in index.add_many(probes)]

    kept = {str(number): fingerprint(text) for number, text in enumerate(texts[::2])}
    expected: list[tuple[str, str | None]] = []
    for number, text in probes:
        added = fingerprint(text)
        near = [
            name
            for name, known in kept.items()
            if PlanRules(plan).is_near(
                ComparedText.of_number(int(added.hex, 16), added.features, added.sketch),
                ComparedText.of_number(int(known.hex, 16), known.features, known.sketch),
            )
        ]
        expected.append(("near", near[0]) if near else ("new", None))
        kept |= {} if near else {str(number): added}
    assert found == expected
    assert ("near", "0") in found


def test_a_whole_number_is_an_id() -> None:
    """It is stored as its digits and found by either form; a boolean is not an id."""
    with Index() as index:
        answers = index.add_many([(7, LONG), (np.int64(8), LONG)])

        assert [(answer.id, answer.duplicate_of) for answer in answers] == [("7", None), ("8", "7")]
        assert index.add("7", LONG).reason == "unchanged"
        assert (7 in index, "7" in index, True in index, 7.0 in index) == (True, True, False, False)
        with pytest.raises(InputError, match="a text or a whole number, and a bool"):
            index.add(True, LONG)
        assert index.remove(7) == 1


def test_a_plan_can_be_made_from_its_name() -> None:
    assert Plan("bands") is PLANS["bands"]  # type: ignore[call-arg, arg-type]
    with pytest.raises(ConfigurationError, match="did you mean 'bands'"):
        Plan("bandz")  # type: ignore[call-arg, arg-type]


def test_an_index_lists_and_removes_ids(tmp_path: Path) -> None:
    """Ids are listed in order, also after reopening; a removed page can be added again."""
    pages = [
        (f"page {number}", " ".join(f"word{number * 7 + place}" for place in range(40)))
        for number in range(0, 90, 9)
    ]
    with Index(tmp_path / "a") as index:
        assert list(index) == []
        assert "page 0" not in index
        index.add_many([*pages, ("a copy", pages[0][1]), ("empty", " ")])
        assert list(index) == [name for name, _ in pages]
        assert "page 9" in index
        assert "a copy" not in index
        assert 5 not in index  # type: ignore[comparison-overlap]
        assert index.remove("page 9") == 1
        assert index.remove("page 9") == 0
        assert index.remove("a copy") == 0
    with Index(tmp_path / "a") as index:
        assert list(index) == [name for name, _ in pages if name != "page 9"]
        assert len(index) == 9
        assert "page 9" not in index
        assert index.query(pages[1][1]) == []
        assert index.add("again", pages[1][1]).reason == "new"
        contents = [text for _, text in pages] + [" ", fingerprint(pages[2][1])]
        assert index.query_many(contents) == [index.query(content) for content in contents]
        shown = [[match.id for match in found] for found in index.query_many(contents)[:3]]
        assert shown == [["page 0"], ["again"], ["page 18"]]
        assert index.query_many([]) == []
        with pytest.raises(InputError, match=r"^Row 1: A text or a Print is expected, and an int"):
            index.query_many(["a", 5])  # type: ignore[list-item]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_closed_index_raises_an_error(tmp_path: Path, on_disk: bool) -> None:
    """Every call raises the same error; closing the index again does nothing."""
    index = Index(tmp_path / "a" if on_disk else None)
    index.add("1", LONG)
    index.close()
    index.close()

    calls: list[Callable[[], object]] = [
        lambda: index.add("2", LONG),
        lambda: index.query(LONG),
        lambda: len(index),
    ]
    for call in [
        *calls,
        lambda: "1" in index,
        lambda: list(index),
        lambda: index.remove("1"),
        lambda: index.plan,
    ]:
        with pytest.raises(StoreError, match=r"^This index is closed; open it again\.$"):
            call()
    assert repr(index).endswith(", closed>")


def test_prints_of_equal_texts_are_equal() -> None:
    made = fingerprint("Grüße")

    assert made == fingerprint("GRÜSSE")
    assert hash(made) == hash(fingerprint("Grüße"))
    assert made == Print(made.recipe, made.hex, made.features, made.digest, sketch=made.sketch)
    assert made.hex in repr(made)
    assert fingerprint(" ").is_empty
    assert Index().query(" ") == []


AN_ID = "An id must be a text or a whole number, and "
A_TEXT = "A text or a Print is expected, and "
A_PAIR = "A pair of an id and a text or Print is expected"


# One example of each kind of error; the test below covers every argument.
@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (lambda index: index.add(5.0, "a text"), f"{AN_ID}a float was given"),
        (lambda index: index.add("", "a text"), "The id is empty"),
        (lambda index: index.add("id", b"a text"), f"{A_TEXT}a bytes object was given"),
        (lambda index: index.add("id", "a", scope=5), "A scope must be a text or None, and an int"),
        (lambda index: index.query("a", limit=-1), "The limit is -1; it must be at least 1"),
        (lambda index: index.query_many("a"), "The contents must be a column or a list, and a str"),
        (
            lambda _: fingerprint("a", recipe=5),
            "A recipe must be a Recipe or its string, such as 'words', and an int",
        ),
        (
            lambda _: dedup(["a"], plan=5),
            "A plan must be a Plan or its string, such as 'bands', and an int",
        ),
        (lambda _: dedup(["a"], text=None), "text= must be the name of a column, and None was"),
        (lambda _: GOOD.similarity("x"), "The other print must be a Print, and a str was given"),
        (lambda index: index.add_many([("a", "b"), ("a", "b", "c")]), f"Row 1: {A_PAIR}"),
        (lambda index: index.add_many([5]), f"Row 0: {A_PAIR}, and an int was given"),
        (lambda index: index.add_many([(5.0, "b")]), f"Row 0: {AN_ID}a float was given"),
    ],
)
def test_an_invalid_document_raises_an_error(use: Callable[[Index], object], sentence: str) -> None:
    index = Index()
    with pytest.raises(InputError, match=f"^{sentence}"):
        use(index)

    assert len(index) == 0


ARGUMENTS: dict[str, Callable[[Any], object]] = {
    f"{call.__name__}({name}=)": (
        lambda value, call=call, name=name, usual=usual: call(**{**usual, name: value})
    )  # type: ignore[misc]
    for call, usual, names in (
        (fingerprint, {"content": LONG}, "content recipe"),
        (dedup, {"source": [LONG]}, "source text id vector recipe plan similarity nulls returns"),
        (prints, {"source": [LONG]}, "source text id vector recipe"),
        (judge, {"source": prints([LONG])}, "source recipe plan similarity"),
        (Recipe, {}, "preset width key floor languages"),
        (Plan, dataclasses.asdict(PLANS["bands"]), " ".join(dataclasses.asdict(PLANS["bands"]))),
        (
            Print,
            {name: getattr(GOOD, name) for name in GOOD.__slots__},
            "recipe hex features digest sketch",
        ),
        (Index, {}, "path recipe plan similarity"),
    )
    for name in names.split()
}
ARGUMENTS |= {
    f"{kind.__name__}.{call}({name}=)": (
        lambda value, kind=kind, call=call, name=name, usual=usual: getattr(kind(), call)(
            **{**usual, name: value}
        )  # type: ignore[misc]
    )
    for kind, call, usual, names in (
        (Index, "add", {"identifier": "1", "content": LONG}, "identifier content scope"),
        (Index, "add_many", {"documents": [("1", LONG)]}, "documents scope"),
        (Index, "add_columns", {"ids": ["1"], "contents": [LONG]}, "ids contents scope"),
        (Index, "query", {"content": LONG}, "content scope limit"),
        (Index, "query_many", {"contents": [LONG]}, "contents scope limit"),
        (Index, "remove", {"identifier": "1"}, "identifier"),
        (Index, "__contains__", {"identifier": "1"}, "identifier"),
        (lambda: GOOD, "similarity", {"other": GOOD}, "other"),
        (lambda: GOOD, "distance", {"other": GOOD}, "other"),
        (lambda: PLANS["bands"], "with_similarity", {"similarity": 70}, "similarity"),
    )
    for name in names.split()
}
ODD: list[object] = [None, 5, -1, "x", [], b"x", float("nan"), object(), np.int64(3)]
ODD += [np.array(3), np.zeros((2, 2, 2))]
ODD += [[odd] for odd in ODD] + [{"text": odd} for odd in ODD] + [{"text": [odd]} for odd in ODD]


@pytest.mark.parametrize("use", ARGUMENTS.values(), ids=ARGUMENTS)
def test_an_argument_of_any_kind_is_accepted_or_raises_an_error(
    use: Callable[[Any], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = {}
    for value in ODD:
        try:
            use(value)
        except StreamDedupError as error:
            ended |= {} if str(error).endswith(".") else {repr(value): str(error)}
        except Exception as error:  # noqa: BLE001 - all are reported at once
            ended[repr(value)] = repr(error)

    assert ended == {}


def test_add_many_adds_all_documents_or_none(tmp_path: Path) -> None:
    """A bad row, however late, is named and leaves the index as it was."""
    rows: list[tuple[str, object]] = [(page.id, page.text) for page in mini_crawl(5, 3000)]
    bad = [*rows[:2500], ("bad", None), *rows[2500:]]
    foreign = [
        *rows[:2500],
        ("bad", fingerprint("a text", Recipe(key=b"another key of sixteen bytes"))),
    ]
    with Index(tmp_path / "index") as index:
        for given, error in ((bad, InputError), (foreign, ConfigurationError)):
            with pytest.raises(error, match=r"^Row 2500: "):
                index.add_many(iter(given))  # type: ignore[arg-type]
            assert len(index) == 0
        found = index.add_many(iter(rows))  # type: ignore[arg-type]

        assert len(found) == len(rows)
        assert found == Index().add_many(rows)  # type: ignore[arg-type]


class Column:
    def __init__(self, method: str, values: list[object]) -> None:
        setattr(self, method, lambda: values)


@pytest.mark.parametrize("method", ["to_pylist", "to_list", "tolist"])
def test_columns_are_added_as_rows_are(method: str) -> None:
    index = Index()

    found = index.add_columns(
        Column(method, ["1", "2"]), Column(method, ["some words", "some words"])
    )

    assert [answer.reason for answer in found] == ["too-short", "exact"]
    with pytest.raises(InputError, match="Row 1: A text or a Print is expected, and None"):
        index.add_columns(Column(method, ["3", "4"]), Column(method, ["new words", None]))
    with pytest.raises(InputError, match="different lengths: 1 ids and 2 contents"):
        index.add_columns(["5"], ("a", "b"))
    with pytest.raises(InputError, match="must be a column or a list, and an int"):
        index.add_columns(5, ["a"])
    assert len(index) == 1


def test_a_page_has_the_text_that_is_judged(tmp_path: Path) -> None:
    """Bytes are decoded by the encoding that the server names; it also works after a fork."""
    menu = "".join(f"<li><a href='/{n}'>Größe {n}</a></li>" for n in range(40))
    page = f"<body><nav><ul>{menu}</ul></nav><article><p>{LONG} größer</p></article></body>"
    (tmp_path / "a.html").write_text(page)
    text = page_text(page)

    assert text == f"{LONG} größer"
    assert page_text(page.encode("cp1252"), "windows-1252") == text
    assert dedup(tmp_path / "a.html")["reason"] == ["new"]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        edited = [page.replace("größer", f"kleiner{n}") for n in range(30)]
        assert pool.map(page_text, edited) == [f"{LONG} kleiner{n}" for n in range(30)]
    with pytest.raises(InputError, match="another encoding"):
        page_text(f"<p>{'größer ' * 40}".encode("utf-16-le"), "utf-8")
    with pytest.warns(UserWarning, match="stream_dedup.page_text"):
        dedup([page])


def test_public_names_do_not_collide_with_modules() -> None:
    assert inspect.isfunction(stream_dedup.fingerprint)
    folder = Path(stream_dedup.__file__).parent
    assert not [
        name
        for name in stream_dedup.__all__
        if (folder / name).exists() or (folder / f"{name}.py").exists()
    ]


def test_a_copy_that_is_fetched_again_is_a_copy_again() -> None:
    """Only kept pages can be `unchanged`, as the how-to on host signals documents."""
    page = " ".join(f"word{number}" for number in range(100))
    index = Index()
    index.add("https://a.example/1", page)

    found = {
        copy: [index.add(f"https://{copy}.example/1", text).reason for _ in range(2)]
        for copy, text in (("a", page), ("b", page), ("c", f"{page} and more"))
    }

    expected = {"a": ["unchanged", "unchanged"], "b": ["exact", "exact"], "c": ["near", "near"]}
    assert found == expected


def test_a_match_has_the_similarity_of_the_answer() -> None:
    other = LONG.replace("word7 ", "another ")
    index = Index()
    index.add("a", LONG)
    (match,) = index.query(other)
    assert match.similarity == index.add("b", other).similarity == round(match.similarity, 2)


def test_a_table_and_a_missing_page_raise_errors() -> None:
    with pytest.raises(InputError, match=r"^A page must be a text or bytes, and None was given"):
        page_text(None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a Table was given; pass its columns to add_columns\."):
        Index().add_many(pa.table({"id": ["a"], "text": [LONG]}))  # type: ignore[arg-type]
