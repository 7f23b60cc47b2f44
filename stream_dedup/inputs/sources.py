"""Read documents from files: Parquet, Arrow, JSONL, WARC, text files or lines, from a file, a folder
or standard input, also compressed.

Invariants: a document has the bytes of the file without the end of the line (a row of Parquet or
Arrow is one JSON object), also if they cannot be decoded. A record that cannot be read, or a
damaged part of a file, becomes a document with the reason in `lost`; all others are read. A path
without a file is an `InputError`.
"""

from __future__ import annotations

import contextlib
import glob
import io
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast

from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.printable import counted, printable
from stream_dedup.domain.terminal import note
from stream_dedup.inputs.columnar import SUFFIXES, json_of_rows, read_rows, require_pyarrow
from stream_dedup.inputs.compressed import Stretch, read_stretches, require, suffixes_of
from stream_dedup.inputs.fields import field_at, parse_json, scalar, without_line_number
from stream_dedup.inputs.remote_files import GLOB, RemoteFile, download, is_address, list_files
from stream_dedup.inputs.warc import read_pages
from stream_dedup.inputs.warc_records import RECORD_BYTES_MAX

Format = Literal["jsonl", "text", "lines", "warc", "columns"]
_Found: TypeAlias = tuple[Path, str, RemoteFile | None]
STANDARD_INPUT = "-"
# The error class of a dead letter for all records of a damaged part of a file.
DAMAGED_FILE = "DamagedFile"

_BUFFER_BYTES = 1 << 20

_PAGES = (".html", ".htm", ".xhtml")
_BY_SUFFIX: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".text": "text",
    **dict.fromkeys(_PAGES, "text"),
    ".warc": "warc",
    ".wet": "warc",
    **dict.fromkeys(SUFFIXES, "columns"),
}
HOW_TO_READ = (
    "Convert a JSON array or CSV to .jsonl or .parquet. Otherwise rename it, or on a command line add "
    "--format jsonl, text, lines, warc or columns."
)
"""The remedy for a file whose name shows no format that can be read."""
_OTHER_PACKINGS = {".bz2": "bzip2", ".xz": "xz", ".zip": "zip"}
_HIDDEN = (".", "_")
# Hugging Face's `save_to_disk` writes these files next to the rows.
_DESCRIBED = frozenset({"dataset_dict.json", "dataset_info.json"})
_DESCRIPTIONS = _DESCRIBED | {"state.json"}
# The first bytes of files that are neither JSON nor text: their kind, and the remedy.
_OTHER_KINDS = {
    rb"\xff\xfe|\xfe\xff|[^\0]\0[^\0]\0|\0[^\0]\0[^\0]": (
        "UTF-16",
        "convert it to UTF-8, for example with iconv -f utf-16 -t utf-8",
    ),
    rb"\x1f\x8b": ("gzip", "unpack it, or rename it to end in .gz"),
    rb"\x28\xb5\x2f\xfd": ("zstd", "unpack it, or rename it to end in .zst"),
    rb"BZh[1-9]1AY&SY": ("bzip2", "unpack it"),
    rb"\xfd7zXZ\0": ("xz", "unpack it"),
    rb"PK\x03\x04": ("zip", "unpack it"),
    rb"PAR1": ("Parquet", "rename it to end in .parquet"),
    rb"ARROW1\0": ("Arrow", "rename it to end in .arrow"),
}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read; `path` None is standard input. `name` is its name in messages and keys.

    The `path` of a file that is `remote` is its path below the address; `local_copy` copies it.
    """

    path: Path | None
    name: str
    form: Format
    remote: RemoteFile | None = None

    @property
    def size_bytes(self) -> int:
        """The size on disk; 0 for standard input."""
        if self.remote is not None:
            return self.remote.size_bytes
        return self.path.stat().st_size if self.path else 0

    @property
    def stamp(self) -> int | str:
        """A value that changes when the file is rewritten."""
        if self.remote is not None:
            return self.remote.stamp
        return self.path.stat().st_mtime_ns if self.path else 0

    @property
    def location(self) -> str:
        """The absolute path, without links, or the URL; `name` for standard input."""
        if self.remote is not None:
            return self.remote.address
        return self.name if self.path is None else str(self.path.resolve())

    @contextlib.contextmanager
    def local_copy(self) -> Iterator[SourceFile]:
        """Yield the file on this machine; of a remote file, a temporary copy.

        Raises:
            InputError: it cannot be copied.
        """
        if self.remote is None:
            yield self
        else:
            with download(self.remote.address, self.remote.name) as path:
                yield replace(self, path=path, remote=None)

    @property
    def can_be_read_again(self) -> bool:
        """Whether it is neither standard input nor a pipe."""
        return self.path is not None and not (self.path.is_fifo() or self.path.is_char_device())

    @property
    def is_page(self) -> bool:
        """Whether it is a web page, by its name."""
        return self.path is not None and suffixes_of(self.path)[0] in _PAGES


def is_file(text: str) -> bool:
    """Return whether a text is the path of a file; False for one that is too long for a path."""
    return os.path.isfile(text)  # noqa: PTH113 - Path.is_file raises for a text that is too long


def contain_objects(files: Iterable[SourceFile]) -> bool:
    """Return whether some of the files contain JSON objects: lines of JSONL, or rows."""
    return any(file.form in ("jsonl", "columns") for file in files)


@dataclass(frozen=True, slots=True)
class RawDocument:
    """One document. `name` is `pages.jsonl:12`, a text file's path or a page's URL; `raw` its bytes.

    `fields` is its parsed JSON; `problem` is an error message if a line of JSONL is not a JSON
    object, and `fields` is None then. Of a page in a WARC file, `charset` is the encoding that its
    server named, `time` when it was fetched. `is_page`: it is a web page, with its tags. A row of
    Parquet or Arrow has the form `jsonl`, and `row`: its (`pyarrow.RecordBatch`, index in it);
    `codec` is the compression of a Parquet file. `ending` is the end of a line.

    `lost` is the reason why it cannot be read, and `raw` is empty then: one record is missing, or,
    with the class `DAMAGED_FILE`, all records of a damaged part of the file.
    """

    name: str
    raw: bytes
    form: Format
    fields: dict[str, Any] | None = None
    problem: str | None = None
    charset: str | None = None
    time: str | None = None
    row: tuple[Any, int] | None = None
    is_page: bool = False
    lost: DeadLetter | None = None
    ending: bytes = b"\n"
    codec: str | None = None

    def omits_bytes(self, column: str) -> bool:
        """Return whether `fields` lacks a column because JSON cannot express its value."""
        return (
            self.row is not None
            and self.fields is not None
            and column not in self.fields
            and column in self.row[0].schema.names
        )


def find_files(target: str, form: str, unread_names: list[str] | None = None) -> list[SourceFile]:
    """Return the files of a target: the path or address of a file or folder, or a pattern of `*`, `**`
    and `?`; or `-`. `form` is a `Format` or `auto`.

    In folders and by patterns, hidden files (`.name`, `_name`, or below such a folder) are skipped.
    The names of other files that are not read are added to `unread_names`, some with the reason.

    Raises:
        InputError: there is nothing to read, or the name does not show the format.
    """
    if not target:
        raise InputError("A path is empty; name a file or a folder, such as . for the current one.")
    unread_names = [] if unread_names is None else unread_names
    target = target.removeprefix("file://")
    if target == STANDARD_INPUT:
        return [
            SourceFile(None, "standard input", "jsonl" if form == "auto" else cast("Format", form))
        ]
    path = Path(target)
    if is_address(target):
        return _select_files(
            [(Path(file.name), file.name, file) for file in list_files(target)],
            form,
            target,
            unread_names,
            target,
        )
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except OSError as error:
        raise InputError(
            f"{printable(target[:60])!r}... is not a path ({error.strerror}); name a file or a "
            "folder, and give texts as a list."
        ) from error
    if is_folder:
        found, unreadable = _list_folder(path)
        # A folder that cannot be read is reported like a file that cannot; otherwise its documents
        # would be missing without a message.
        return [
            *(
                _select_files(found, form, f"The folder {path}", unread_names)
                if found or not unreadable
                else []
            ),
            *unreadable,
        ]
    if not exists and any(sign in target for sign in GLOB):
        matches = [Path(name) for name in sorted(glob.glob(target, recursive=True))]  # noqa: PTH207 - also absolute
        found = [
            (match, match.as_posix(), None)
            for match in matches
            if "**" not in target or not match.is_dir()
        ]
        return _select_files(found, form, f"{target}, as a pattern,", unread_names, path.as_posix())
    if not exists:
        raise InputError(f"{path} does not exist; name a file, a folder, or - for standard input.")
    guessed = form_of(path) if form == "auto" else cast("Format", form)
    if guessed is None:
        packing = _OTHER_PACKINGS.get(path.suffix.lower())
        raise InputError(
            f"{path} is {packing}: unpack it, or pack it with gzip or zstd."
            if packing
            else f"{path} was not read, because its name does not show a supported format. "
            f"{HOW_TO_READ}"
        )
    return [SourceFile(path, path.name, guessed)]


def require_one_text(path: Path) -> None:
    """Raise `InputError` if a file, by its name, is not one uncompressed text or record."""
    if form_of(path) not in ("text", None):
        raise InputError(
            f"{path.name} contains many documents, but one is expected: put the text into a .txt "
            "file, or the JSON object into a .json file. `explain` also reads one row of a file: "
            f"{path.name}:12."
        )
    if suffixes_of(path)[1]:
        raise InputError(f"{path.name} is compressed; unpack it first.")


def _list_folder(folder: Path) -> tuple[list[_Found], list[SourceFile]]:
    """Return the paths below a folder that may be files of documents, and the folders that cannot be
    read; both sorted.
    """
    errors: list[OSError] = []
    found: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=errors.append):
        described = _DESCRIPTIONS if _DESCRIBED.intersection(names) else ()
        found += [Path(parent, name) for name in names if name not in described]
        found += [Path(parent, name) for name in folders if Path(parent, name).is_symlink()]
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
    unreadable = sorted(Path(error.filename) for error in errors)
    return (
        [(path, path.relative_to(folder).as_posix(), None) for path in sorted(found)],
        [SourceFile(path, path.relative_to(folder).as_posix(), "jsonl") for path in unreadable],
    )


def _select_files(
    found: Sequence[_Found], form: str, where: str, unread_names: list[str], pattern: str = ""
) -> list[SourceFile]:
    """Return the files of documents among (path, name, remote file or None). `pattern`: the pattern
    or address that found them, if any.

    Raises:
        InputError: there is none; the message begins with `where`.
    """
    # The length of the pattern before its first wildcard; -1 for a missing sign becomes the full length.
    fixed = min(pattern.find(sign) % (len(pattern) + 1) for sign in GLOB)
    root = pattern[:fixed].rpartition("/")[0]
    shows_hidden = any(sign in pattern for sign in GLOB) and _is_hidden(pattern.removeprefix(root))
    files, names = [], list[str]()
    for path, name, remote in found:
        if (
            not shows_hidden
            and _is_hidden(name.removeprefix(root))
            and not pattern.endswith(f"/{name}")
        ):
            continue
        why = _why_no_file(path) if remote is None else ""
        guessed = form_of(path) if form == "auto" else cast("Format", form)
        if why or guessed is None:
            names.append(f"{name} ({why})" if why else name)
        else:
            files.append(SourceFile(path, name, guessed, remote))
    if not files:
        kinds = ".jsonl, .ndjson, .parquet, .arrow, .txt, .html, .warc or .wet"
        listed = f"; it contains {shorten_names(names)}. {HOW_TO_READ}" if names else "."
        raise InputError(f"{where} contains no {kinds} files (plain, .gz or .zst){listed}")
    unread_names += names
    return files


def _is_hidden(name: str) -> bool:
    return any(part.startswith(_HIDDEN) for part in name.split("/"))


def not_read(names: Sequence[str]) -> str:
    """Return the message about files that were found and not read."""
    return f"{counted(len(names), 'file')} {'was' if len(names) == 1 else 'were'} not read: {shorten_names(names)}."


def shorten_names(names: Sequence[str]) -> str:
    """Return the first five names, and the number of the others, for a message."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _why_no_file(path: Path) -> str:
    """Return why a path in a folder is not a readable file; an empty string if it is one."""
    if path.is_dir():
        return "a link to a folder" if path.is_symlink() else "a folder"
    if not path.exists():
        return "a broken link"
    # Opening a pipe would block until a program writes to it.
    return "" if path.is_file() else "no regular file"


def find_all(
    targets: Sequence[str], form: str, unread_names: list[str] | None = None
) -> list[SourceFile]:
    """Return the files of several targets, in their order, each once. With more than one target,
    the name of a file is its whole path.

    `unread_names` and errors are those of `find_files`.
    """
    found = [file for target in targets for file in find_files(target, form, unread_names)]
    return once(found if len(targets) == 1 else map(whole_name, found))


def once(found: Iterable[SourceFile]) -> list[SourceFile]:
    """Return each file once, even if two targets or a link name it; report the repetitions."""
    files: dict[str, SourceFile] = {}
    repeated = [file.name for file in found if files.setdefault(file.location, file) is not file]
    if repeated:
        note(f"Each file is read once; these were named again: {shorten_names(repeated)}.")
    return list(files.values())


def whole_name(file: SourceFile) -> SourceFile:
    """Return a file with its whole path as name, which is unique among several folders."""
    if file.remote is not None:
        return replace(file, name=file.remote.address)
    return file if file.path is None else replace(file, name=file.path.as_posix())


def read_documents(
    files: Sequence[SourceFile],
    advance: Callable[[int, int], None] = lambda _documents, _bytes: None,
    non_page_records: Counter[str] | None = None,
    first: int = 0,
) -> Iterator[RawDocument]:
    """Yield every document of each file from number `first`; call `advance(documents, bytes on disk)`
    with the progress.

    `non_page_records` counts the records of WARC files that are not pages, by kind.

    Raises:
        InputError: a package that a file needs is not installed, or the format cannot be read from
        standard input.
    """
    for file in files:
        require_packages(file)
    for file in files:
        try:
            with file.local_copy() as local:
                if local.form == "columns" and local.path is not None:
                    yield from _rows(local, local.path, advance, first)
                else:
                    yield from itertools.islice(
                        _read(
                            local,
                            advance,
                            Counter() if non_page_records is None else non_page_records,
                        ),
                        first,
                        None,
                    )
        except InputError as error:
            yield _unread_rest(file, str(error))
        except OSError as error:
            yield _unread_rest(file, f"{file.name} cannot be read: {error.strerror or error}.")


def require_packages(file: SourceFile) -> None:
    """Raise `InputError` if a package that a file needs is not installed, or if its format cannot be
    read from standard input.
    """
    if file.path is None and file.form == "columns":
        raise InputError(
            "Parquet and Arrow cannot be read from standard input; give the file's name."
        )
    if file.path is None and file.form == "warc":
        raise InputError("A WARC file cannot be read from standard input; give its name.")
    if file.form == "columns":
        require_pyarrow("Parquet and Arrow files")
    if file.form == "warc":
        require("fastwarc", "WARC files")
    if file.path is not None and suffixes_of(file.path)[1] == ".zst":
        require("zstandard", "Files packed with zstd")


def _unread_rest(file: SourceFile, why: str) -> RawDocument:
    return RawDocument(file.name, b"", file.form, lost=DeadLetter("decode", DAMAGED_FILE, why))


def key_of(fields: dict[str, Any] | None, key_field: str | None) -> str | None:
    """Return the scalar at a dotted path of a JSON document, or at `id` or `url` if `key_field` is
    None; None if there is none, or it is empty.
    """
    values = (
        scalar(field_at(fields, path)) for path in ([key_field] if key_field else ["id", "url"])
    )
    return next(filter(None, values), None)


def _read(
    file: SourceFile, advance: Callable[[int, int], None], non_page_records: Counter[str]
) -> Iterator[RawDocument]:
    if file.path is None:
        yield from _documents(file, sys.stdin.buffer, itertools.count(1), advance)
    elif file.form == "warc":
        yield from _pages(file, file.path, advance, non_page_records)
    else:
        yield from _stretches(file, file.path, advance)


def _rows(
    file: SourceFile, path: Path, advance: Callable[[int, int], None], first: int
) -> Iterator[RawDocument]:
    reported = 0
    for rows in read_rows(path, first):
        found: list[Any] = [rows.lost] if rows.lost else json_of_rows(rows.batch)
        for index, row in enumerate(found):
            name = f"{file.name}:{rows.first + index}"
            if rows.is_large or (not rows.lost and len(row[0]) > RECORD_BYTES_MAX):
                yield _too_large(name, "columns")
            elif rows.lost:
                yield RawDocument(
                    name,
                    b"",
                    "columns",
                    lost=DeadLetter(
                        "decode",
                        "DamagedRecord" if rows.is_single_row else DAMAGED_FILE,
                        row,
                        count=rows.lost_rows,
                    ),
                )
            else:
                source_row = rows.batch, index
                yield RawDocument(name, row[0], "jsonl", row[1], row=source_row, codec=rows.codec)
        share = (
            file.size_bytes * (rows.first + len(found)) // rows.rows_of_file - reported
            if rows.rows_of_file
            else 0
        )
        advance(len(found), share)
        reported += share
    advance(0, file.size_bytes - reported)


def _pages(
    file: SourceFile,
    path: Path,
    advance: Callable[[int, int], None],
    non_page_records: Counter[str],
) -> Iterator[RawDocument]:
    read_before = 0
    for page in read_pages(path, file.name, non_page_records):
        location = f"{file.name}@{page.offset}"
        if page.lost is not None:
            yield RawDocument(location, b"", "warc", lost=page.lost)
        else:
            name = page.url or location
            yield RawDocument(
                name, page.body, "warc", charset=page.charset, time=page.time, is_page=page.is_html
            )
        advance(1, page.offset - read_before)
        read_before = page.offset
    advance(0, file.size_bytes - read_before)


def _stretches(
    file: SourceFile, path: Path, advance: Callable[[int, int], None]
) -> Iterator[RawDocument]:
    """Yield the documents of a file of lines or of one text, and a lost one for each damaged part of a
    compressed file.
    """
    packing = suffixes_of(path)[1]
    numbers = itertools.count(1)
    reported = 0

    def advance_to(documents: int, size: int) -> None:
        nonlocal reported
        more = packed.tell() - reported if packing else size
        reported += more
        advance(documents, more)

    with path.open("rb") as packed:
        for stretch in read_stretches(packed, packing):
            with io.BufferedReader(stretch, _BUFFER_BYTES) as stream:
                yield from _documents(file, stream, numbers, advance_to, stretch)
            if stretch.damage:
                line = next(numbers) - 1
                after = f" after line {line:,}" if line else ""
                yield _unread_rest(
                    file,
                    f"{file.name} cannot be read{after}: {stretch.damage}. The damaged part is lost.",
                )
                if file.form == "text":
                    break  # the whole text is lost
    advance(0, file.size_bytes - reported)


def _documents(
    file: SourceFile,
    stream: BinaryIO | io.BufferedReader,
    numbers: Iterator[int],
    advance: Callable[[int, int], None],
    stretch: Stretch | None = None,
) -> Iterator[RawDocument]:
    """Yield the documents of `stream`, but not one that `stretch` cuts off before a damaged part."""
    if file.form == "text":
        raw = stream.read(RECORD_BYTES_MAX + 1)
        if not file.is_page:
            _require_text(file, raw)
        if len(raw) > RECORD_BYTES_MAX:
            size = len(raw) + _skip(stream, b"")
            advance(1, size)
            yield _too_large(file.name, "text")
        elif stretch is None or stretch.is_whole:
            advance(1, len(raw))
            yield RawDocument(file.name, raw, "text", is_page=file.is_page)
        return
    while line := stream.readline(RECORD_BYTES_MAX + 1):
        if len(line) > RECORD_BYTES_MAX:
            advance(1, len(line) + _skip(stream, line))
            yield _too_large(f"{file.name}:{next(numbers)}", file.form)
            continue
        if (
            stretch is not None
            and stretch.damage
            and not stretch.is_whole
            and not line.endswith(b"\n")
        ):
            return
        number = next(numbers)
        if number == 1:
            _require_text(file, line)
        raw = line.rstrip(b"\r\n")
        is_blank = not raw.strip()
        if not is_blank:
            document = _line(file, f"{file.name}:{number}", raw)
            yield replace(document, ending=b"\r\n") if line.endswith(b"\r\n") else document
        advance(0 if is_blank else 1, len(line))


def _skip(stream: BinaryIO | io.BufferedReader, line: bytes) -> int:
    """Read the rest of a line, or of a text if `line` is empty; return its number of bytes."""
    size, is_text = 0, not line
    read = stream.read if is_text else stream.readline
    while (is_text or not line.endswith(b"\n")) and (line := read(_BUFFER_BYTES)):
        size += len(line)
    return size


def _too_large(name: str, form: Format) -> RawDocument:
    why = f"{name} is larger than {RECORD_BYTES_MAX >> 20} MiB."
    return RawDocument(name, b"", form, lost=DeadLetter("decode", "TooLarge", why))


def _require_text(file: SourceFile, raw: bytes) -> None:
    """Raise `InputError` if a file that begins with `raw` is neither JSON nor text."""
    for beginning, (kind, remedy) in _OTHER_KINDS.items():
        if re.match(beginning, raw):
            raise InputError(f"{file.name} is {kind}: {remedy}.")


def _line(file: SourceFile, name: str, raw: bytes) -> RawDocument:
    if file.form == "lines":
        return RawDocument(name, raw, "lines")
    try:
        fields = parse_json(raw)
    except (ValueError, RecursionError, MemoryError) as error:
        return RawDocument(
            name, raw, "jsonl", problem=without_line_number(f"{name} is not JSON: {error}.")
        )
    if not isinstance(fields, dict):
        return RawDocument(name, raw, "jsonl", problem=f"{name} is JSON, but not an object.")
    return RawDocument(name, raw, "jsonl", fields)


def form_of(path: Path) -> Format | None:
    """Return the format of a file by its name; None if the name does not show it."""
    return _BY_SUFFIX.get(suffixes_of(path)[0])
