"""Documents in files: Parquet, Arrow, JSONL, WARC, text files or lines, from a file, a folder or standard input, also packed.

Invariants: a document's bytes are given as they stand in the file, only without the line's end (a row of Parquet or
Arrow as one JSON object); nothing here judges
whether they can be used; whatever is wrong with a path is an `InputError`, before or where it is met.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from stream_dedup.ground.errors import InputError
from stream_dedup.inputs.columnar import SUFFIXES, json_of_rows, read_rows
from stream_dedup.inputs.packed import is_damage, suffixes_of, unpacking
from stream_dedup.inputs.warc import read_pages

Format = Literal["jsonl", "text", "lines", "warc", "columns"]
STANDARD_INPUT = "-"

_BY_SUFFIX: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".html": "text",
    ".htm": "text",
    ".warc": "warc",
    ".wet": "warc",
    **dict.fromkeys(SUFFIXES, "columns"),
}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read; `path` None is standard input. `name` is how it is called in messages and keys."""

    path: Path | None
    name: str
    form: Format

    @property
    def size_bytes(self) -> int:
        """The size on disk; 0 for standard input."""
        return self.path.stat().st_size if self.path else 0


def hold_objects(files: Iterable[SourceFile]) -> bool:
    """Return whether some of the files hold JSON objects: lines of JSONL, or rows, which are read as such."""
    return any(file.form in ("jsonl", "columns") for file in files)


@dataclass(frozen=True, slots=True)
class RawDocument:
    """One document: `name` is `pages.jsonl:12`, a text file's path or a page's URL, `raw` its bytes.

    `fields` is its JSON if it has any; `problem` says in a sentence why a line of JSONL is not a JSON object; then `fields`
    is None. Of a page in a WARC file, `charset` is what its server said, `time` when it was fetched. A row of Parquet or Arrow
    has the form `jsonl`, and `row`: its (`pyarrow.RecordBatch`, row of that).
    """

    name: str
    raw: bytes
    form: Format
    fields: dict[str, Any] | None = None
    problem: str | None = None
    charset: str | None = None
    time: str | None = None
    row: tuple[Any, int] | None = None


def find_files(target: str, form: str) -> list[SourceFile]:
    """Return the files that `target` (a file, a folder, or `-`) stands for; `form` is a `Format` or `auto`.

    Raises:
        InputError: there is nothing to read there, or its format cannot be told.
    """
    if target == STANDARD_INPUT:
        return [SourceFile(None, "standard input", "jsonl" if form == "auto" else _form(form))]
    path = Path(target)
    if path.is_dir():
        found = [
            SourceFile(one, one.relative_to(path).as_posix(), _guess(one) or "text" if form == "auto" else _form(form))
            for one in sorted(path.rglob("*"))
            if one.is_file() and (form != "auto" or _guess(one))
        ]
        if not found:
            kinds = ".jsonl, .ndjson, .parquet, .arrow, .txt, .html, .warc or .wet"
            raise InputError(f"The folder {path} holds no {kinds} files (plain, .gz or .zst).")
        return found
    if not path.exists():
        raise InputError(f"{path} does not exist; name a file, a folder, or - for standard input.")
    guessed = _guess(path) if form == "auto" else _form(form)
    if guessed is None:
        raise InputError(
            f"How {path} holds documents cannot be told from its name; add --format jsonl, text, lines, warc or columns."
        )
    return [SourceFile(path, path.name, guessed)]


def read_documents(
    files: Sequence[SourceFile],
    advance: Callable[[int, int], None] = lambda _documents, _bytes: None,
    passed_over: Counter[str] | None = None,
    first: int = 0,
) -> Iterator[RawDocument]:
    """Yield every document from number `first` of each file on; `advance(documents, bytes on disk)` is told how far it is.

    `passed_over` counts what a WARC file holds beside pages, by what it was.

    Raises:
        InputError: a file cannot be read, or its compression is damaged.
    """
    for file in files:
        try:
            if file.form == "columns":
                yield from _rows(file, advance, first)
            else:
                yield from islice(_read(file, advance, Counter() if passed_over is None else passed_over), first, None)
        except Exception as error:
            if not isinstance(error, OSError | EOFError) and not is_damage(error):
                raise
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"{file.name} cannot be read: {reason}.") from error


def key_of(fields: dict[str, Any] | None, key_field: str | None) -> str | None:
    """Return what stands at a dotted path of a JSON document, else at `id`, else at `url`; None if it is no scalar."""
    for path in [key_field] if key_field else ["id", "url"]:
        found: Any = fields
        if isinstance(fields, dict) and path in fields:
            found = fields[path]
        else:
            for name in path.split("."):
                found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, list) and found:
            found = found[0]
        if isinstance(found, str | int | float) and not isinstance(found, bool):
            return str(found)
    return None


def _read(file: SourceFile, advance: Callable[[int, int], None], passed_over: Counter[str]) -> Iterator[RawDocument]:
    if file.form == "warc":
        yield from _pages(file, advance, passed_over)
        return
    if file.path is None:
        yield from _lines(file, sys.stdin.buffer, None, advance)
        return
    with file.path.open("rb") as plain:
        _, packing = suffixes_of(file.path)
        if not packing:
            yield from _lines(file, plain, plain, advance)
            return
        with unpacking(packing, plain) as unpacked:
            yield from _lines(file, unpacked, plain, advance)


def _rows(file: SourceFile, advance: Callable[[int, int], None], first: int) -> Iterator[RawDocument]:
    if file.path is None:
        raise InputError("Parquet and Arrow cannot be read from standard input; give the file's name.")
    told = 0
    for batch, start, rows_of_file in read_rows(file.path, first):
        for place, (raw, fields) in enumerate(json_of_rows(batch)):
            yield RawDocument(f"{file.name}:{start + place}", raw, "jsonl", fields, row=(batch, place))
        share = file.size_bytes * (start + batch.num_rows) // rows_of_file - told if rows_of_file else 0
        advance(batch.num_rows, share)
        told += share
    advance(0, file.size_bytes - told)


def _pages(file: SourceFile, advance: Callable[[int, int], None], passed_over: Counter[str]) -> Iterator[RawDocument]:
    if file.path is None:
        raise InputError("A WARC file cannot be read from standard input; give its name.")
    read_before = 0
    for page in read_pages(file.path, passed_over):
        yield RawDocument(page.url, page.body, "warc", charset=page.charset, time=page.time)
        advance(1, page.position - read_before)
        read_before = page.position
    advance(0, file.size_bytes - read_before)


def _lines(
    file: SourceFile, stream: IO[bytes], packed: IO[bytes] | None, advance: Callable[[int, int], None]
) -> Iterator[RawDocument]:
    """Yield the documents of `stream`; progress is measured in `packed`, what is on disk, None for standard input."""
    if file.form == "text":
        raw = stream.read()
        advance(1, file.size_bytes)
        yield RawDocument(file.name, raw, "text")
        return
    read_before = 0
    for number, line in enumerate(stream, 1):
        read = read_before + len(line) if packed is None or packed is stream else packed.tell()
        raw = line.rstrip(b"\r\n")
        is_blank = not raw.strip()
        if not is_blank:
            yield _line(file, f"{file.name}:{number}", raw)
        advance(0 if is_blank else 1, read - read_before)
        read_before = read


def _line(file: SourceFile, name: str, raw: bytes) -> RawDocument:
    if file.form == "lines":
        return RawDocument(name, raw, "lines")
    try:
        fields = json.loads(raw.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError, MemoryError) as error:
        return RawDocument(name, raw, "jsonl", problem=f"{name} is not JSON: {error}.")
    if not isinstance(fields, dict):
        return RawDocument(name, raw, "jsonl", problem=f"{name} is JSON, but not an object.")
    return RawDocument(name, raw, "jsonl", fields)


def _guess(path: Path) -> Format | None:
    return _BY_SUFFIX.get(suffixes_of(path)[0])


def _form(form: str) -> Format:
    forms: dict[str, Format] = {"jsonl": "jsonl", "text": "text", "lines": "lines", "warc": "warc", "columns": "columns"}
    return forms[form]
