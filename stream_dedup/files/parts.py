"""Write kept rows and duplicates of files into a folder. The index is on disk, so the data can be
larger than memory, and an interrupted run can be continued.

    FOLDER/kept/part-00000.parquet         unchanged rows of the source (.jsonl for sources without columns)
    FOLDER/duplicates/part-00000.parquet   rows with dedup_of, dedup_group, dedup_reason, dedup_distance, dedup_similarity
    FOLDER/unreadable/part-00000.parquet   rows that cannot be judged, with dedup_problem (.jsonl for rows that cannot be read)
    FOLDER/index                           the run's own index, deleted at the end; absent if --index names a lasting one
    FOLDER/progress.json                   progress of the run, and the identity of files and settings

Invariants: a part contains rows of one file only, and where it ends depends only on the source. A
part is counted in `progress.json` after its files are on disk, and is then never written again. After
a kill, the next run writes the other parts: documents that the index already judged keep their
verdict; the rest are judged. So a run that was killed and continued ends with the same files as an
uninterrupted run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import re
import secrets
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from stream_dedup.domain.disk import sync
from stream_dedup.domain.document import NO_TOPIC_ID, TOPIC_ID_BYTES, DeadLetter, Verdict
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.printable import counted
from stream_dedup.files.offline import Judged, OfflineDocument, open_store
from stream_dedup.fingerprinting import Content
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.contract import Store
from stream_dedup.inputs.charset import decode_page
from stream_dedup.inputs.columnar import json_of
from stream_dedup.inputs.sources import DAMAGED_FILE, RawDocument, SourceFile, read_documents

PART_ROWS, PART_BYTES = 20_000, 64 << 20
KINDS = ("kept", "duplicates", "unreadable")
_PROGRESS = "progress.json"
_NOT_JSON, _AS_TEXT, _ROUNDED = "not_json_", "as_text_", "rounded"
# Arrow types with values that JSON cannot express: NaN, nanoseconds; and extension types.
_TYPES_JSON_MAY_NOT_EXPRESS = re.compile("float|double|ns|extension")

Pending = deque[tuple[str, DeadLetter | None]]
Decode = Callable[[Iterator[RawDocument], Pending], Iterator[OfflineDocument]]
Judge = Callable[[Iterator[OfflineDocument], int], Iterator[Judged]]
ReportLetter = Callable[[str, DeadLetter], None]


class _Row(NamedTuple):
    """A row of the sources with its outcome. `position`: the number of the file, and of the row in
    it; `text`: the text that was judged.
    """

    position: tuple[int, int]
    raw: RawDocument
    outcome: Judged | DeadLetter
    text: Content = ""

    @property
    def kind(self) -> str:
        if isinstance(self.outcome, DeadLetter):
            return "unreadable"
        return "duplicates" if self.outcome.verdict is Verdict.DUPLICATE else "kept"


@dataclass(frozen=True, slots=True)
class PartFormat:
    """The format of parts. `name`: `parquet` or `jsonl`, None for the format of the source.

    `compression` of Parquet: None for that of the source, or SNAPPY if the source has none. `rows`:
    the maximum number of rows of a part, None for `PART_ROWS`.
    """

    name: str | None = None
    compression: str | None = None
    rows: int | None = None


@dataclass(slots=True)
class PartedOutput:
    """A run that judges `files` and writes their rows into `folder`.

    `identity`: identifies files and settings. `index`: the path of a lasting index.
    `report_letter`: receives the location and dead letter of each row that cannot be judged.
    `non_page_records`: the numbers of WARC records that are not pages, by type. `resumed`: the
    number of rows that earlier runs wrote. `judged`: the number of judged documents in complete
    parts; `written`: the number of all rows in them. `run_id`: used as the topic id of positions in
    the index, to distinguish this run's documents from those of other runs with the same index.

    The keys of `counts`: each kind, with its number of rows; `damaged`, with the number of damaged
    files; each added field, with the number of rows in which it replaced a value; `_NOT_JSON` or
    `_AS_TEXT` followed by a column, with the number of rows whose value JSON cannot express, or that
    became a text in Parquet; and `_ROUNDED`, with the number of JSON lines with rounded numbers.
    """

    folder: Path
    files: Sequence[SourceFile]
    identity: dict[str, Any]
    index: Path | None = None
    format: PartFormat = PartFormat()
    report_letter: ReportLetter = lambda _location, _letter: None
    non_page_records: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    is_done: bool = False
    resumed: int = 0
    _next: tuple[int, int] = (0, 0)
    _parts: int = 0
    judged: int = 0
    written: int = 0
    run_id: bytes = NO_TOPIC_ID

    def open(self) -> None:
        """Create the folder, or read the progress of an earlier run.

        Raises:
            InputError: the folder contains something else, or an earlier run used other files or
            settings.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if (self.folder / _PROGRESS).exists():
                progress = json.loads((self.folder / _PROGRESS).read_bytes())
                identity = json.loads(json.dumps(self.identity))
                if changed := [
                    name
                    for name, value in _flatten_identity(identity).items()
                    if _flatten_identity(progress["identity"]).get(name) != value
                ]:
                    raise InputError(
                        f"{self.folder} was written from other files or with other settings (changed: "
                        f"{', '.join(changed)}); name another folder, or remove this one."
                    )
                self.counts, self.is_done = Counter(progress["counts"]), progress["done"]
                self._next, self._parts = tuple(progress["next"]), progress["parts"]
                self.judged = progress["judged"]
                self.run_id = bytes.fromhex(progress["run"])
                self.resumed = sum(self.counts[kind] for kind in KINDS)
                self._drop_index()
            elif any(self.folder.iterdir()):
                raise InputError(
                    f"{self.folder} is not empty, and was not written by this command; name another "
                    "folder."
                )
            elif self.index is not None:  # the index also contains documents of other runs
                self.run_id = secrets.token_bytes(TOPIC_ID_BYTES)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.folder / _PROGRESS} is damaged; remove the folder, and run the command again."
            ) from error
        except OSError as error:
            raise InputError(
                f"The folder {self.folder} cannot be used: {error.strerror}."
            ) from error

    @contextlib.contextmanager
    def open_index(self, make_index: Callable[[Store], LogIndex]) -> Iterator[LogIndex]:
        """Yield the index; close it at the end.

        Raises:
            ConfigurationError: the lasting index has another recipe.
            StoreError: the index is damaged, or another process has it open.
        """
        self._save()  # before the index, because `open` refuses a folder without progress.json
        with contextlib.closing(open_store(self.index or self.folder / "index")) as store:
            yield make_index(store)
        self._drop_index()

    def _drop_index(self) -> None:
        if self.is_done and self.index is None:
            shutil.rmtree(self.folder / "index", ignore_errors=True)

    def run(self, decode: Decode, judge: Judge, advance: Callable[[int, int], None]) -> None:
        """Judge and write the rows that earlier runs did not write. `judge`: receives the documents
        and the number of the first document, and yields verdicts.
        """
        self._save()
        part: list[_Row] = []
        size = 0
        for row in self._judge_rows(decode, judge, advance):
            is_full = len(part) == (self.format.rows or PART_ROWS) or size >= PART_BYTES
            if part and (is_full or row.position[0] != part[0].position[0]):
                self._write_part(part)
                part, size = [], 0
            part.append(row)
            size += len(row.raw.raw)
        if part:
            self._write_part(part)
        self.is_done = True
        self._save()

    def _judge_rows(
        self, decode: Decode, judge: Judge, advance: Callable[[int, int], None]
    ) -> Iterator[_Row]:
        raw_rows: deque[tuple[tuple[int, int], RawDocument]] = deque()
        pending: Pending = deque()

        def raws() -> Iterator[RawDocument]:
            next_file, next_row = self._next
            for number in range(next_file, len(self.files)):
                first = next_row if number == next_file else 0
                rows = read_documents([self.files[number]], advance, self.non_page_records, first)
                for row_number, raw in enumerate(rows, first):
                    raw_rows.append(((number, row_number), raw))
                    yield raw

        def letters() -> Iterator[_Row]:
            while pending and (letter := pending[0][1]) is not None:
                self.report_letter(pending.popleft()[0], letter)
                yield _Row(*raw_rows.popleft(), letter)

        texts: deque[Content] = deque()

        def documents() -> Iterator[OfflineDocument]:
            for document in decode(raws(), pending):
                texts.append(document.text)
                yield document

        for judged in judge(documents(), self.judged):
            yield from letters()
            pending.popleft()
            yield _Row(*raw_rows.popleft(), judged, texts.popleft())
        yield from letters()

    def _write_part(self, part: Sequence[_Row]) -> None:
        part_name = f"part-{self._parts:05}"
        for kind in KINDS:
            chosen = [row for row in part if row.kind == kind]
            self.counts[kind] += sum(
                row.outcome.count if isinstance(row.outcome, DeadLetter) else 1 for row in chosen
            )
            self.counts.update(
                name for row in chosen for name in _added_fields(row) if _has_value(row.raw, name)
            )
            # Outcomes without a table row (`raw.row` is None), of a damaged file, become JSONL.
            for has_columns in (True, False):
                (self.folder / kind).mkdir(exist_ok=True)
                rows = [row for row in chosen if self._is_written_as_parquet(row) is has_columns]
                if rows and has_columns:
                    codec = self.format.compression or rows[0].raw.codec or "SNAPPY"
                    # pyarrow reports UNCOMPRESSED, but expects NONE.
                    codec = codec.replace("UNCOMPRESSED", "NONE")
                    replace_file(
                        self.folder / kind / f"{part_name}.parquet",
                        partial(_write_table, _to_table(rows, self.counts), codec),
                    )
                elif rows:
                    self.counts.update(
                        _NOT_JSON + name for name in _columns_json_cannot_express(rows)
                    )
                    replace_file(
                        self.folder / kind / f"{part_name}.jsonl", partial(_write_lines, rows)
                    )
        self.counts["damaged"] += sum(
            row.raw.lost is not None and row.raw.lost.error_class == DAMAGED_FILE for row in part
        )
        number, row_number = part[-1].position
        self._next = (number, row_number + 1)
        self._parts += 1
        self.judged += sum(isinstance(row.outcome, Judged) for row in part)
        self._save()

    def describe_replaced(self) -> str:
        """Return a sentence about source fields that were replaced by added fields; empty if none."""
        names = [
            f"{name} of {counted(count, 'row')}"
            for name, count in self.counts.items()
            if name.startswith("dedup_")
        ]
        location = " and ".join(str(self.folder / kind) for kind in KINDS[1:])
        return (
            f"In {location} added fields replaced fields of the source: {', '.join(names)}. The source "
            "still has them."
            if names
            else ""
        )

    def describe_incomplete_json(self) -> str:
        """Return a sentence about values that JSON cannot express; empty without any."""
        names = [
            f"{name.removeprefix(_NOT_JSON)} of {counted(count, 'row')}"
            for name, count in self.counts.items()
            if name.startswith(_NOT_JSON)
        ]
        return (
            "JSON cannot express NaN, infinity, nanoseconds, years after 9999, bytes that are not text, or "
            f"two columns of one name, so the JSON lines in {self.folder} lack {', '.join(names)}. Use --as parquet "
            "to keep them."
            if names
            else ""
        )

    def describe_changed_values(self) -> str:
        """Return a sentence about values of JSON lines that Parquet changed; empty without any."""
        changes = [
            f"{name.removeprefix(_AS_TEXT)} of {counted(count, 'row')} became text"
            for name, count in self.counts.items()
            if name.startswith(_AS_TEXT)
        ]
        if count := self.counts[_ROUNDED]:
            changes.append(f"numbers of {counted(count, 'row')} were rounded")
        return (
            "A column of Parquet has one type, and numbers have 64 bits, so in the Parquet files in "
            f"{self.folder} {', and '.join(changes)}. Use --as jsonl to keep them."
            if changes
            else ""
        )

    def describe_mixed_columns(self) -> str:
        """Return a sentence about columns that have different types in the Parquet files of a folder,
        which sources in JSONL can cause; empty without any.
        """
        mixed: list[str] = []
        for kind in KINDS:
            types: dict[str, set[str]] = {}
            for path in sorted((self.folder / kind).glob("part-*.parquet")):
                import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

                for column in pq.read_schema(path):
                    types.setdefault(column.name, set()).add(str(column.type))
            if names := [name for name, found in types.items() if len(found) > 1]:
                mixed.append(f"{self.folder / kind}: {', '.join(names)}")
        return (
            f"Columns have different types in the files of {'; '.join(mixed)}. Read the files with an "
            "explicit schema, or write JSON lines with --as jsonl."
            if mixed
            else ""
        )

    def _is_written_as_parquet(self, row: _Row) -> bool:
        return (
            row.raw.row is not None if self.format.name is None else self.format.name == "parquet"
        )

    def _save(self) -> None:
        fields = {
            "identity": self.identity,
            "counts": dict(self.counts),
            "done": self.is_done,
            "next": self._next,
            "parts": self._parts,
            "judged": self.judged,
            "run": self.run_id.hex(),
        }
        replace_file(self.folder / _PROGRESS, lambda path: path.write_text(json.dumps(fields)))
        self.written = sum(self.counts[kind] for kind in KINDS)


def _flatten_identity(identity: dict[str, Any]) -> dict[str, Any]:
    return {**identity, **identity.get("settings", {}), "settings": None}


def _write_lines(rows: Sequence[_Row], path: Path) -> None:
    path.write_bytes(b"".join(_json_line(row) + row.raw.ending for row in rows))


def _write_table(table: Any, codec: str, path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    try:
        pq.write_table(table, path, compression=codec)
    except pa.ArrowNotImplementedError:  # such as intervals of months: write their JSON
        for index, column in enumerate(table.columns):
            try:
                pq.write_table(table.select([index]).slice(0, 0), pa.BufferOutputStream())
            except pa.ArrowNotImplementedError:
                values = [None if value is None else json_of(value) for value in column.to_pylist()]
                table = table.set_column(
                    index, table.column_names[index], pa.array(values, pa.string())
                )
        pq.write_table(table, path, compression=codec)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically and sync it; create its folder. `write` receives the path of a temporary
    file.

    Raises:
        InputError: the file cannot be written, the disk is full, or `path` is a folder, a pipe or a
        device.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} exists and is not a file; name another folder, or remove it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
        raise InputError(
            f"{path} was not written: the disk is full. Free or add space, and run the command "
            "again."
        ) from error
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def _added_fields(row: _Row) -> dict[str, Any]:
    if isinstance(row.outcome, DeadLetter):
        return {"dedup_problem": row.outcome.message}
    if row.kind == "kept":
        return {}
    judged = row.outcome
    return {
        "dedup_of": (judged.kept_id or b"").decode("utf-8", "replace"),
        "dedup_group": judged.kept_number,
        "dedup_reason": judged.reason.label,
        "dedup_distance": judged.distance,
        "dedup_similarity": judged.similarity,
    }


def _has_value(raw: RawDocument, name: str) -> bool:
    """Return whether a row has a value in a field, even if its JSON omits the value."""
    has_value = raw.fields is not None and raw.fields.get(name) is not None
    return has_value or raw.omits_bytes(name)


def _columns_json_cannot_express(rows: Iterable[_Row]) -> Iterator[str]:
    """Yield for each row the columns whose value JSON cannot express."""
    last_batch, columns = None, dict[str, bool]()
    for raw in (row.raw for row in rows):
        if raw.row is None or raw.fields is None:
            continue
        batch, index = raw.row
        if len(raw.fields) < len(batch.schema.names):
            yield from sorted(set(batch.schema.names) - raw.fields.keys())
        if batch is not last_batch:  # all rows of a batch have the same types
            last_batch, columns = batch, _columns_json_may_not_express(batch.schema)
        for name, is_repeated in columns.items():
            if (
                is_repeated
                or not _is_finite(raw.fields.get(name))
                or _has_nanoseconds(batch.column(name), index)
            ):
                yield name


def _columns_json_may_not_express(schema: Any) -> dict[str, bool]:
    """Return the columns whose type or repeated name JSON may not express. The value is True if
    several columns have the name.
    """
    count = Counter(schema.names)
    return {
        column.name: count[column.name] > 1
        for column in schema
        if count[column.name] > 1 or _TYPES_JSON_MAY_NOT_EXPRESS.search(str(column.type))
    }


def _has_nanoseconds(column: Any, row: int) -> bool:
    """Return whether a time in a column is not a whole number of microseconds."""
    if getattr(column.type, "unit", "") != "ns":
        return False
    nanoseconds = column[row].value
    return nanoseconds is not None and nanoseconds % 1000 != 0


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _json_line(row: _Row) -> bytes:
    raw = row.raw
    if row.kind == "kept" and raw.form == "jsonl":
        return raw.raw
    if raw.lost is not None:
        fields: dict[str, Any] = {"id": raw.name}
    elif raw.form == "jsonl" and raw.fields is not None:
        fields = raw.fields
    else:
        is_judged = raw.form != "jsonl" and isinstance(row.outcome, Judged)
        fields = {
            "id": raw.name,
            "text": row.text if is_judged else decode_page(raw.raw, raw.charset),
        }
    values = {**fields, **_added_fields(row)}
    return (json.dumps(values) if raw.row is None else json_of(values)).encode()


def _to_table(rows: Sequence[_Row], counts: Counter[str]) -> Any:
    """Return rows as a table with the columns of their source and the added ones. Count changed values
    of JSON lines in `counts`.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if any(row.raw.row is None for row in rows):
        return _table_of_lines([_fields_of(row, counts) for row in rows], counts)
    runs: list[
        tuple[Any, list[int]]
    ] = []  # (batch, indices of rows), to copy rows of a batch at once
    for row in rows:
        batch, index = row.raw.row or (None, 0)
        if not runs or runs[-1][0] is not batch:
            runs.append((batch, []))
        runs[-1][1].append(index)
    table = pa.Table.from_batches(
        [batch.take(pa.array(indices, pa.int64())) for batch, indices in runs]
    ).combine_chunks()
    added = [_added_fields(row) for row in rows]
    for name in added[0]:
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, _to_column([fields[name] for fields in added], name))
    return table


def _fields_of(row: _Row, counts: Counter[str]) -> dict[str, Any]:
    """Return the fields of a row, with the added ones. U+FFFD replaces lone surrogates, which Arrow
    refuses. Count in `counts` each row with a number that a float rounds.
    """
    is_rounded = False

    def to_float(text: str) -> float:
        nonlocal is_rounded
        number = float(text)
        is_rounded |= repr(number) != text and Decimal(repr(number)) != Decimal(text)
        return number

    is_object = row.raw.form == "jsonl" and row.raw.row is None and row.raw.fields is not None
    line = row.raw.raw if is_object else _json_line(row)
    text = line.decode("utf-8-sig", "replace")
    parse = partial(json.loads, parse_float=to_float)
    if "\\u" in text:
        text = (
            json.dumps(parse(text), ensure_ascii=False)
            .encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
        )
    fields: dict[str, Any] = parse(text)
    counts[_ROUNDED] += is_rounded
    return fields | _added_fields(row)


def _table_of_lines(lines: Sequence[dict[str, Any]], counts: Counter[str]) -> Any:
    """Return JSON objects as a table. A column with values of several types becomes a column of texts,
    in which values that are not texts are written as JSON; these are counted in `counts`.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra

    names = dict.fromkeys(name for line in lines for name in line)
    table = pa.table({name: _to_column([line.get(name) for line in lines], name) for name in names})
    texts = [column.name for column in table.schema if column.type == pa.string()]
    counts.update(
        _AS_TEXT + name
        for name in texts
        for line in lines
        if not isinstance(line.get(name), str | None)
    )
    return table


def _to_column(values: Sequence[Any], name: str) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    kinds = {
        "dedup_group": pa.int64(),
        "dedup_distance": pa.int32(),
        "dedup_similarity": pa.float64(),
    }
    added = pa.string() if name.startswith("dedup_") else None
    try:
        return pa.array(values, kinds.get(name, added))
    except (pa.ArrowException, OverflowError, TypeError):
        texts = (value if isinstance(value, str | None) else json_of(value) for value in values)
        return pa.array(list(texts), pa.string())
