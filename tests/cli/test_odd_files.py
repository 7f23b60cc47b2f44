"""Only the damaged records and files of an input are lost, and commands report them."""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import signal
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from stream_dedup import dedup
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.extras import install_command
from stream_dedup.domain.terminal import progress
from stream_dedup.files import checking, parts
from stream_dedup.loading import seeds
from stream_dedup.settings.layers import load_settings
from tests.cli.running import Run, jsonl
from tests.cli.test_load import Broker, run_load
from tests.inputs.warc_files import BROKEN, WHOLE, gzipped, http, page, record

SOURCE = random.Random(20261127)
WORDS = [f"word{number}" for number in range(2000)]
NEIGHBOURS = [record(name, http(page(name))) for name in "ac"]


def text(length: int = 120) -> str:
    return " ".join(SOURCE.choice(WORDS) for _ in range(length))


def verdicts(out: str) -> dict[str, str]:
    return {row["location"]: row["verdict"] for row in map(json.loads, out.splitlines())}


def write_folder(folder: Path) -> None:
    """Write three good files, and between them a Parquet file and a packed one that are cut off,
    and an odd WARC file."""
    folder.mkdir()
    lines = [json.dumps({"id": number, "text": text()}) + "\n" for number in range(200)]
    (folder / "a.jsonl").write_text("".join(lines[:5]))
    pq.write_table(pa.table({"text": [text() for _ in range(50)]}), folder / "b.parquet")
    (folder / "b.parquet").write_bytes((folder / "b.parquet").read_bytes()[:-100])
    (folder / "c.jsonl.gz").write_bytes(gzipped("".join(lines).encode())[:-2000])
    pq.write_table(pa.table({"text": [text() for _ in range(7)]}), folder / "d.parquet")
    (folder / "e.warc").write_bytes(NEIGHBOURS[0] + BROKEN["cut_gzip"] + NEIGHBOURS[1])
    (folder / "f.jsonl").write_text("".join(lines[:6]))


def test_odd_whole_records_are_judged_and_lost_ones_are_counted(run: Run, tmp_path: Path) -> None:
    """The exit code is 0, or 1 for a lost record with `--strict`."""
    (tmp_path / "whole.warc").write_bytes(NEIGHBOURS[0] + WHOLE["much_too_long"] + NEIGHBOURS[1])
    (tmp_path / "a.warc").write_bytes(NEIGHBOURS[0] + BROKEN["cut_body"] + NEIGHBOURS[1])
    where = f"a.warc@{len(NEIGHBOURS[0])}"

    whole = run("check", tmp_path / "whole.warc", "--strict", "--json")
    ended = run("check", tmp_path / "a.warc")
    strict = run("check", tmp_path / "a.warc", "--strict", "--json")

    assert (whole.code, whole.err, ended.code, strict.code) == (0, "", 0, 1)
    assert verdicts(whole.out) == {f"http://{name}.example/": "unique" for name in "abc"}
    assert "unreadable  1 (decode 1)" in ended.out
    assert "documents   3" in ended.out
    assert ended.err.startswith(
        f"{where}: The record at byte {len(NEIGHBOURS[0]):,} of a.warc (http://b.example/) has a "
        "truncated body"
    )
    expected = {"http://a.example/": "unique", where: "dead-letter", "http://c.example/": "unique"}
    assert verdicts(strict.out) == expected


def test_the_rows_of_a_lost_row_group_are_counted(run: Run, tmp_path: Path) -> None:
    """One line reports a lost row group, and all commands count its rows."""
    path, table = tmp_path / "a.parquet", pa.table({"text": [text() for _ in range(200)]})
    pq.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
    raw = path.read_bytes()
    first = raw.index(table["text"][0].as_py().encode())
    path.write_bytes(raw[: first - 30] + bytes(30) + raw[first:])

    listed = run("check", path)
    to_folder = run("check", path, "--to", tmp_path / "out", "--json")
    printed = run("prints", path, "--to", tmp_path / "prints", "--json")
    judged = run("judge", tmp_path / "prints")

    assert listed.err.startswith("a.parquet:0: Rows 0 to 99 of a.parquet cannot be read")
    for ended in (listed, judged):
        assert "100 (decode 100)" in ended.out
        assert "documents   200" in ended.out
        assert "more that cannot be read" not in ended.err
    for ended in (to_folder, printed):
        assert ended.json["unreadable"] == 100


def test_only_damaged_files_are_lost(run: Run, tmp_path: Path) -> None:
    """The good files are judged and written, each bad one is a line, and the exit code is 1, again
    when run again."""
    write_folder(tmp_path / "data")

    listed = run("check", tmp_path / "data", "--json")
    to_folder = run("check", tmp_path / "data", "--to", tmp_path / "out", "--json")

    found = verdicts(listed.out)
    assert listed.code == to_folder.code == 1
    shown = [where for where, verdict in found.items() if verdict == "dead-letter"]
    assert shown == ["b.parquet", "c.jsonl.gz", f"e.warc@{len(NEIGHBOURS[0])}"]
    shown = {"a.jsonl:1", "c.jsonl.gz:1", "d.parquet:6", "http://c.example/", "f.jsonl:6"}
    assert shown <= set(found)
    counts = to_folder.json
    kept = sum(verdict == "unique" for verdict in found.values())
    assert (counts["kept"], counts["unreadable"]) == (kept, 3)
    assert counts["duplicates"] == len(found) - kept - 3
    assert to_folder.err.splitlines()[0].startswith("b.parquet cannot be read as a Parquet file")
    unreadable = [
        path.read_text() for path in sorted((tmp_path / "out" / "unreadable").glob("*.jsonl"))
    ]
    problems = [json.loads(line) for part in unreadable for line in part.splitlines()]
    shown = [problem["id"] for problem in problems]
    assert shown == ["b.parquet", "c.jsonl.gz", f"e.warc@{len(NEIGHBOURS[0])}"]
    assert all(problem["dedup_problem"] for problem in problems)
    assert run("check", tmp_path / "data", "--to", tmp_path / "out").code == 1


def test_unreadable_rows_and_row_groups_are_written_separately(run: Run, tmp_path: Path) -> None:
    """A row with a null keeps its columns; a damaged row group has none."""
    path = tmp_path / "a.parquet"
    texts = [None if number == 7 else f"{number} {text(20)}" for number in range(40)]
    pq.write_table(
        pa.table({"text": texts}),
        path,
        row_group_size=10,
        use_dictionary=False,
        compression="none",
        write_statistics=False,
    )
    raw = path.read_bytes()
    position = raw.index(texts[20].encode()) - 4  # its length
    path.write_bytes(raw[:position] + b"\xff\xff\xff\x7f" + raw[position + 4 :])

    ended = run("check", path, "--to", tmp_path / "out", "--json")

    assert ended.code == 1
    expected = {"to": str(tmp_path / "out"), "kept": 29, "duplicates": 0, "unreadable": 11}
    assert ended.json == expected
    (rows,), (lost,) = (
        sorted((tmp_path / "out" / "unreadable").glob(f"*.{kind}")) for kind in ("parquet", "jsonl")
    )
    assert pq.read_table(rows).to_pylist() == [
        {"text": None, "dedup_problem": pq.read_table(rows)["dedup_problem"][0].as_py()}
    ]
    assert json.loads(lost.read_text())["dedup_problem"].startswith(
        "Rows 20 to 29 of a.parquet cannot be read"
    )


def test_files_without_a_readable_text_exit_1(run: Run, tmp_path: Path) -> None:
    """All rows dead letters: 1, in both forms; the fields that are there are named once, and the
    setting."""
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl({"url": f"u{number}", "body": text()} for number in range(3)))

    ended, written = run("check", path), run("check", path, "--to", tmp_path / "out")

    assert ended.code == written.code == 1
    assert (
        ended.err.count(
            "has the fields url, body. Name the field with the text: STREAM_DEDUP_TEXT_FIELD"
        )
        == 1
    )
    assert run("check", path, "--text-field", "body").code == 0
    pq.write_table(pa.table({"body": [[1.0, 2.0]]}), tmp_path / "b.parquet")
    for file, named in ((path, "field"), (tmp_path / "b.parquet", "column")):
        vectors = run("check", file, "--vector-field", "nosuch")
        assert vectors.code == 1
        assert f"Name the {named} with the vector" in vectors.err
        assert "--vector-field" in vectors.err


def test_a_missing_id_field_is_reported(run: Run, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [text()], "url": ["u"]}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text(
        jsonl({"id": 1, "text": text()} | more for more in ({}, {"key": 2}))
    )

    columns = run("check", tmp_path / "a.parquet", "--id-field", "nosuch")
    lines = run("check", tmp_path / "a.jsonl", "--id-field", "key")

    assert (columns.code, columns.out) == (1, "")
    assert (
        "has no column 'nosuch'; its columns are text, url. Name the column with the id with --id-field."
        in columns.err
    )
    assert lines.code == 0
    assert "1 of 2 documents have no 'key' (STREAM_DEDUP_ID_FIELD, --id-field)" in lines.err


def test_a_text_field_in_a_struct_is_suggested(run: Run, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "page": [{"text": text()}]}), tmp_path / "a.parquet")

    ended = run("check", tmp_path / "a.parquet")

    assert ended.code == 1
    assert (
        "are n, page. Name the column with the text with --text-field, such as page.text."
        in ended.words
    )
    assert run("check", tmp_path / "a.parquet", "--text-field", "page.text").code == 0


@pytest.mark.parametrize("column", ["text", "id", "title"])
def test_a_column_that_a_file_has_twice_is_refused(run: Run, tmp_path: Path, column: str) -> None:
    """By `check`, `load` and `seed`; other columns can have one name."""
    table = pa.table({"text": [text()], "id": ["1"], "title": ["t"], "n": [1]})
    path = tmp_path / "files" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(table.append_column(column, table[column]), path)
    sentence = f"a.parquet has 2 columns '{column}'; give one of them another name."

    assert sentence in run("check", path).words
    with pytest.raises(InputError, match=sentence):
        run_load(tmp_path, Broker())
    with pytest.raises(InputError, match=sentence):
        list(
            seeds._read_files(
                load_settings({}, environ={}), str(path), "auto", None, seeds.SeedTotals()
            )
        )
    pq.write_table(table.append_column("n", table["n"]), path)
    assert run("check", path).code == 0


def article(number: int, comments: int = 0) -> str:
    """Return a page of a site whose menu is longer than its articles; `comments` of readers stand
    below."""
    words = random.Random(number)
    menu = "".join(
        f"<li><a href='/{word}'>Section {word} of the site</a></li>" for word in WORDS[:120]
    )
    body = "".join(f"<p>{' '.join(words.choice(WORDS) for _ in range(40))}.</p>" for _ in range(4))
    blocks = "".join(
        f"<div class='comment'><p>{' '.join(words.choice(WORDS) for _ in range(25))}.</p></div>"
        for _ in range(comments)
    )
    below = (
        f"<section id='comments' class='comments'><h2>Comments</h2>{blocks}</section>"
        if comments
        else ""
    )
    return (
        f"<html><head><title>{number}</title></head><body><nav><ul>{menu}</ul></nav>"
        "<article><h1>Article "
        f"{number}</h1>{body}{below}</article><footer><ul>{menu}</ul></footer></body></html>"
    )


def test_pages_are_judged_by_their_main_text(run: Run, tmp_path: Path) -> None:
    """Forty articles with one menu, in a WARC file and as files, are forty; what is written is
    their text."""
    pages = [article(number) for number in range(40)]
    (tmp_path / "pages").mkdir()
    (tmp_path / "a.warc.gz").write_bytes(
        b"".join(
            gzipped(record(f"p{n}", http(page_html.encode()))) for n, page_html in enumerate(pages)
        )
    )
    for number, page_html in enumerate(pages):
        (tmp_path / "pages" / f"{number}.html").write_text(page_html)

    for target in (tmp_path / "a.warc.gz", tmp_path / "pages"):
        ended = run("check", target, "--to", tmp_path / f"to {target.name}", "--json")

        assert (ended.code, ended.err) == (0, "")
        assert ended.json["kept"] == 40
        kept = "".join(
            path.read_text() for path in (tmp_path / f"to {target.name}" / "kept").iterdir()
        )
        assert "<p>" not in kept
        assert "Section word1" not in kept
        assert "Article 17" in kept
        assert dedup(target)["is_duplicate"] == [False] * 40


def test_comments_of_readers_do_not_make_a_page_unique(run: Run, tmp_path: Path) -> None:
    versions = [record(f"v{count}", http(article(1, count).encode())) for count in (2, 8, 20)]
    (tmp_path / "a.warc").write_bytes(b"".join(versions))

    found = list(verdicts(run("check", tmp_path / "a.warc", "--json").out).values())
    assert found == ["unique", "duplicate", "duplicate"]


def test_check_names_the_extra_that_pages_need(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extra, pages are refused and plain texts are judged."""
    (tmp_path / "a.warc").write_bytes(NEIGHBOURS[0])
    (tmp_path / "b.warc").write_bytes(record("t", http(b"plain text", kind="text/plain")))
    from importlib.util import find_spec

    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "resiliparse" else find_spec(name)
    )

    ended = run("check", tmp_path / "a.warc")

    assert (ended.code, ended.out) == (78, "")
    assert ended.err.count("\n") == 1
    assert install_command("html") in ended.err
    assert run("check", tmp_path / "b.warc").code == 0


def test_texts_that_look_like_pages_are_reported_once(run: Run, tmp_path: Path) -> None:
    """Fields with markup are judged as they are, and that is said, with the setting; not if pages
    are expected."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        jsonl({"id": f"https://a.example/{number}", "text": article(number)} for number in range(3))
    )

    plain, html = run("check", path), run("check", path, "--set", "text_is=html")

    assert plain.err.count("3 of 3 documents look like web pages, but are judged with their") == 1
    assert plain.err.count("look like") == 1
    assert "STREAM_DEDUP_TEXT_IS=html" in plain.err
    assert html.err == ""
    assert "duplicate" in plain.out
    assert "unique     3 (new 3)" in html.out
    with pytest.warns(UserWarning, match="like web pages.*first is Row 0\\.") as warned:
        dedup([article(0), article(1)])
    found = {Path(warning.filename).name for warning in warned}
    assert found == {"test_odd_files.py"}


def test_one_page_among_many_rows_causes_no_warning(run: Run, tmp_path: Path) -> None:
    """Up to a hundredth of the rows may look like pages, in files and in tables."""
    texts = [f"{article(0) if number == 7 else ''} row {number} " * 3 for number in range(100)]
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl({"text": text} for text in texts))

    assert "look like" not in run("check", path).err
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        dedup(texts)
    assert not [warning for warning in warned if "web page" in str(warning.message)]
    path.write_text(path.read_text() + json.dumps({"text": article(1)}) + "\n")
    assert "2 of 101 documents look like web pages" in run("check", path).err


@pytest.mark.parametrize("shape", ["check", "index", "to", "against", "judge", "dedup"])
def test_repeated_ids_across_files_are_reported_once(run: Run, tmp_path: Path, shape: str) -> None:
    """Ids that repeat across files make documents versions of one document; URLs are no error."""
    (tmp_path / "data").mkdir()
    words = " ".join(f"word{number}" for number in range(80))
    for name in ("a", "b"):
        rows = [
            {"id": "https://a.example/1", "text": words},
            *({"id": f"{n}", "text": f"{words} {n}"} for n in range(3)),
        ]
        rows.append({"id": f"{name}9", "text": f"{words} {name}"})
        (tmp_path / "data" / f"{name}.jsonl").write_text(
            jsonl({**row, "text": row["text"] + " z"} for row in rows)
        )
    data = tmp_path / "data"
    args: list[Any] = ["check", data]
    if shape == "dedup":
        with pytest.warns(
            UserWarning,
            match=r"^3 documents have the id of a document in another file, the first '0', so each "
            "is judged as that document's next version: ",
        ) as warned:
            dedup(data, similarity=1)
        assert len(warned) == 1
        return
    if shape == "judge":
        run("prints", data, "--to", tmp_path / "prints")
        args = ["judge", tmp_path / "prints"]
    elif shape == "against":
        args += ["--against", data]
    elif shape != "check":
        args += [f"--{shape}", tmp_path / "out"]

    ended = run(*args, "--similarity", "1")

    sentence = "3 documents have the id of a document in another file, the first '0', so each is judged as "
    assert ended.err.count(sentence) == (shape != "against")


def test_a_bar_with_a_total_has_share_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(
        "stream_dedup.domain.terminal.Console",
        lambda **_: Console(file=shown, force_terminal=True, width=150),
    )
    for total in (100, None):
        with progress("checking", total) as advance:
            advance(3, 25)
    known, unknown = shown.getvalue().rsplit("checking", 1)
    assert "25%" in known
    assert "left" in known
    assert "%" not in unknown
    assert "left" not in unknown


def test_without_a_terminal_progress_is_printed_as_lines(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line has the number of documents and the share; a quick command prints none."""
    monkeypatch.setattr("stream_dedup.domain.terminal.LINE_SECONDS", 0)
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": 1, "text": text()}) + "\n")

    ended = run("check", tmp_path / "a.jsonl")

    assert f"checking {tmp_path / 'a.jsonl'}: 1 document, 100% of the bytes" in ended.err


def test_the_bar_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a long name, millions of documents and hours left."""
    shown = io.StringIO()
    monkeypatch.setattr(
        "stream_dedup.domain.terminal.Console",
        lambda **_: Console(file=shown, force_terminal=True, width=80),
    )
    with progress(f"checking {'name' * 20}", 100) as advance:
        advance(12_345_678, 25)
    (bar,) = {line for line in shown.getvalue().splitlines() if "12,345,678 documents" in line}
    assert "left" in bar


def test_an_interrupted_check_reports_what_it_has_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --to the next run continues; with --index the judged documents are in the index."""
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl({"id": n, "text": text()} for n in range(3000)))
    read = checking.read_documents

    def interrupted(files: Sequence[Any], *arguments: Any) -> Iterator[Any]:
        yield from itertools.islice(read(files, *arguments), 2500)
        if files:
            raise KeyboardInterrupt

    monkeypatch.setattr(checking, "read_documents", interrupted)
    monkeypatch.setattr(parts, "read_documents", interrupted)
    to = ("--to", tmp_path / "out", "--rows-per-file", "500")

    written, indexed, plain = (
        run("check", path, *options) for options in (to, ("--index", tmp_path / "index"), ())
    )

    assert written.code == indexed.code == plain.code == 130
    assert written.err == (
        f"Interrupted. {tmp_path / 'out'} contains 1,500 rows; run the same command again to "
        "continue.\n"
    )
    assert indexed.err == (
        f"Interrupted. The index {tmp_path / 'index'} contains at least 2,000 documents of this run; "
        "the next run reports them as unchanged.\n"
    )
    assert plain.err == ""


def test_sigterm_says_how_to_continue_as_ctrl_c_does(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl({"id": n, "text": text()} for n in range(3)))
    read = checking.read_documents

    def terminated(files: Sequence[Any], *arguments: Any) -> Iterator[Any]:
        for row in read(files, *arguments):
            signal.raise_signal(signal.SIGTERM)
            yield row

    monkeypatch.setattr(parts, "read_documents", terminated)
    # Without the handler of the command this one would be called, and the run would go on.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    ended = run("check", path, "--to", tmp_path / "out")
    signal.signal(signal.SIGTERM, before)

    assert ended.code == 130
    assert ended.err == (
        f"Interrupted. {tmp_path / 'out'} contains 0 rows; run the same command again to continue.\n"
    )


def test_dedup_returns_a_row_for_each_unreadable_document(tmp_path: Path) -> None:
    """As many rows as documents and losses, a warning with their number; and an error if there is
    nothing else."""
    write_folder(tmp_path / "data")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.parquet").write_bytes(b"no such thing")

    with pytest.warns(
        UserWarning, match=r"^3 of \d+ rows cannot be read, the first: b\.parquet cannot be read"
    ):
        found = dedup(tmp_path / "data")

    lost = [number for number, reason in enumerate(found["reason"]) if reason == "unreadable"]
    shown = [found["id"][number] for number in lost]
    assert shown == ["b.parquet", "c.jsonl.gz", f"e.warc@{len(NEIGHBOURS[0])}"]
    assert not any(found["is_duplicate"][number] for number in lost)
    shown = found["is_duplicate"][-6:]
    assert shown == [True] * 6
    with pytest.raises(InputError, match=r"^No row can be read: a\.parquet cannot be read"):
        dedup(tmp_path / "bad")


def test_dedup_names_rows_without_an_id_by_their_location(tmp_path: Path) -> None:
    """A line without a text or without JSON does not cost the others."""
    lines = [
        {"key": 1, "text": text()},
        {"text": text()},
        {"key": 2, "text": None},
        {"key": 3, "text": text()},
    ]
    (tmp_path / "a.jsonl").write_text(jsonl(lines) + "no JSON\n")

    with (
        pytest.warns(UserWarning, match="^1 of 5 rows have no 'key'"),
        pytest.warns(UserWarning, match=r"^2 of 5 rows cannot be read, the first: a\.jsonl:3 con"),
    ):
        found = dedup(tmp_path / "a.jsonl", id="key")

    assert found["reason"] == ["new", "new", "unreadable", "new", "unreadable"]
    assert found["id"] == ["1", "a.jsonl:2", "a.jsonl:3", "3", "a.jsonl:5"]


def test_load_sends_whole_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is lost is counted and not sent; a file that was mended is sent by the next run."""
    write_folder(tmp_path / "files")
    (tmp_path / "files" / "c.jsonl.gz").rename(tmp_path / "c.jsonl.gz")
    broker = Broker()

    code, values = run_load(tmp_path, broker)

    totals = json.loads(capsys.readouterr().out)
    assert code == 1
    assert (totals["documents"], totals["unreadable"]) == (len(values), 2) == (5 + 7 + 2 + 6, 2)
    assert not any(b"\x1f\x8b" in value for value in values)
    pq.write_table(pa.table({"text": [text()]}), tmp_path / "files" / "b.parquet")
    code, values = run_load(tmp_path, broker)
    assert (code, len(values)) == (0, 21)
    assert json.loads(capsys.readouterr().out)["unreadable"] == 1


def test_seeds_keep_their_offsets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is lost is counted and named; the others have the places that they have in the file."""
    (tmp_path / "a.warc").write_bytes(NEIGHBOURS[0] + BROKEN["cut_zstd"] + NEIGHBOURS[1])
    totals = seeds.SeedTotals()

    ((_, messages),) = seeds._read_files(
        load_settings({}, environ={}), str(tmp_path / "a.warc"), "auto", None, totals
    )

    expected = [(0, b"http://a.example/"), (2, b"http://c.example/")]
    assert [(message.offset, message.key) for message in messages] == expected
    assert (totals.lost.count, totals.lost.damaged) == (1, 0)
    assert totals.lost.exit_code(2, is_strict=False) == 0
    assert (
        totals.lost.exit_code(2, is_strict=True) == totals.lost.exit_code(0, is_strict=False) == 1
    )
    errors = capsys.readouterr().err
    assert f"a.warc@{len(NEIGHBOURS[0])}: The record at byte" in errors
    assert "These are web pages, but the filter judges them with their tags" in errors


def test_texts_in_another_encoding_are_no_copies_of_each_other(run: Run, tmp_path: Path) -> None:
    """Without their letters these texts look equal, and no text is dropped."""
    words = [
        " ".join("".join(SOURCE.choices("абвгдежзиклмн", k=6)) for _ in range(40))
        for _ in range(20)
    ]
    texts = [
        f"Новость: {body}, harbour.example, the 24th of November 2026, by our own correspondent."
        for body in words
    ]
    lines = [json.dumps({"text": body}, ensure_ascii=False).encode("cp1251") for body in texts]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    good = text()

    ended = run("check", tmp_path / "a.jsonl", "--to", tmp_path / "out", "--json")
    with pytest.warns(
        UserWarning, match=r"^20 of 21 rows cannot be read, the first: Row 0: .* are not UTF-8"
    ):
        kept = dedup(
            [*(body.encode("cp1251").decode("utf-8", "replace") for body in texts), good],
            returns="mask",
        )

    assert (ended.code, ended.json["unreadable"]) == (1, 20)
    assert "are not UTF-8 (U+FFFD)" in ended.err
    assert kept.all()


def test_a_column_of_bytes_that_are_not_utf_8_is_reported(run: Run, tmp_path: Path) -> None:
    """`check` and `dedup` do not report that the column is missing."""
    path = tmp_path / "pages.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "text": [b"caf\xe9", b"a text"]}), path)

    problem = "The column 'text' contains bytes that are not UTF-8 text."
    assert run("check", path).err == f"pages.parquet:0: {problem}\n"
    with pytest.warns(UserWarning, match=re.escape(problem)):
        assert dedup(path)["reason"] == ["unreadable", "too-short"]
