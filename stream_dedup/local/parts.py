"""Files into a folder of kept rows and duplicates, with the index on disk: larger than memory, and resumable.

    FOLDER/kept/part-00000.parquet         rows as they are in the source; .jsonl if the source has no columns
    FOLDER/duplicates/part-00000.parquet   rows with dedup_of, dedup_group, dedup_reason, dedup_distance, dedup_similarity
    FOLDER/unreadable/part-00000.parquet   rows that cannot be judged, with dedup_problem; .jsonl where there is not even a row
    FOLDER/index                           the fingerprints
    FOLDER/progress.json                   how far it is; of which files and settings

Invariants: a part holds rows of one file, and where it ends depends on the source alone. `progress.json` counts a part once
its files are on disk; what lies in front of that is never written again, and what lies behind is written anew with the
verdicts that the index gave first. So a run that was killed and goes on ends with the same files as one that was not.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stream_dedup.fingerprinting import Content, Recipe
from stream_dedup.ground.document import DeadLetter, Verdict
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.plan import Plan
from stream_dedup.inputs.charset import decode_page
from stream_dedup.inputs.sources import DAMAGED_FILE, RawDocument, SourceFile, read_documents
from stream_dedup.local.datasets import similarity_of
from stream_dedup.local.offline import Judged, OfflineDocument, judge_documents

PART_ROWS, PART_BYTES = 20_000, 64 << 20
KINDS = ("kept", "duplicates", "unreadable")
_PROGRESS = "progress.json"

Pending = deque[tuple[str, DeadLetter | None]]
Decode = Callable[[Iterator[RawDocument], Pending], Iterator[OfflineDocument]]
Tell = Callable[[str, DeadLetter], None]


class _Row(NamedTuple):
    """A row with what became of it; `at` is (file, row of it), `text` what was judged."""

    at: tuple[int, int]
    raw: RawDocument
    outcome: Judged | DeadLetter
    text: Content = ""

    @property
    def kind(self) -> str:
        if isinstance(self.outcome, DeadLetter):
            return "unreadable"
        return "duplicates" if self.outcome.verdict is Verdict.DUPLICATE else "kept"


@dataclass(slots=True)
class PartedOutput:
    """A run over `files` into `folder`. `identity` says of which files and settings its output is.

    `tell` gets each row that cannot be judged, by its place; `passed_over` counts what a WARC file holds beside pages.
    `counts` has `kept`, `duplicates`, `unreadable`, and of these, as `damaged`, the files that cannot be read as a whole.
    """

    folder: Path
    files: Sequence[SourceFile]
    identity: dict[str, Any]
    tell: Tell = lambda _where, _letter: None
    passed_over: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    is_done: bool = False
    resumed: int = 0
    _next: tuple[int, int] = (0, 0)
    _parts: int = 0
    _safe: int = 0

    def open(self) -> None:
        """Begin the folder, or find out how far a former run came.

        Raises:
            InputError: the folder holds something else, or was begun with other files or settings.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if (self.folder / _PROGRESS).exists():
                found = json.loads((self.folder / _PROGRESS).read_bytes())
                if found["identity"] != json.loads(json.dumps(self.identity)):
                    raise InputError(
                        f"{self.folder} was begun with other files or other settings; name another folder, or remove this one."
                    )
                self.counts, self.is_done = Counter(found["counts"]), found["done"]
                self._next, self._parts, self._safe = tuple(found["next"]), found["parts"], found["judged"]
                self.resumed = sum(self.counts[kind] for kind in KINDS)
            elif any(self.folder.iterdir()):
                raise InputError(f"{self.folder} is not empty, and was not begun by this command; name another folder.")
            else:
                self._save()
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.folder / _PROGRESS} is damaged; remove the folder, and begin anew.") from error
        except OSError as error:
            raise InputError(f"The folder {self.folder} cannot be used: {error.strerror}.") from error

    def run(self, decode: Decode, recipe: Recipe, plan: Plan, advance: Callable[[int, int], None]) -> None:
        """Judge and write what a former run did not.

        Raises:
            StoreError: the index in the folder is damaged, or another process has it open.
        """
        from stream_dedup.index.store import RocksStore  # noqa: PLC0415 - only who writes into a folder needs RocksDB

        store = RocksStore(os.fspath(self.folder / "index"))
        part: list[_Row] = []
        size = 0
        try:
            for row in self._rows(decode, recipe, plan, store, advance):
                is_full = len(part) == PART_ROWS or size >= PART_BYTES
                if part and (is_full or row.at[0] != part[0].at[0]):
                    self._close(part)
                    part, size = [], 0
                part.append(row)
                size += len(row.raw.raw)
            if part:
                self._close(part)
        finally:
            store.close()
        self.is_done = True
        self._save()
        shutil.rmtree(self.folder / "index", ignore_errors=True)  # nobody asks it any more

    def _rows(
        self, decode: Decode, recipe: Recipe, plan: Plan, store: Any, advance: Callable[[int, int], None]
    ) -> Iterator[_Row]:
        read: deque[tuple[tuple[int, int], RawDocument]] = deque()
        pending: Pending = deque()

        def raws() -> Iterator[RawDocument]:
            start, row = self._next
            for number in range(start, len(self.files)):
                first = row if number == start else 0
                found = read_documents([self.files[number]], advance, self.passed_over, first)
                for place, raw in enumerate(found, first):
                    read.append(((number, place), raw))
                    yield raw

        def letters() -> Iterator[_Row]:
            while pending and (letter := pending[0][1]) is not None:
                self.tell(pending.popleft()[0], letter)
                yield _Row(*read.popleft(), letter)

        texts: deque[Content] = deque()

        def documents() -> Iterator[OfflineDocument]:
            for document in decode(raws(), pending):
                texts.append(document.text)
                yield document

        for judged in judge_documents(documents(), recipe, plan, store=store, first=self._safe, safe=lambda: self._safe):
            yield from letters()
            pending.popleft()
            yield _Row(*read.popleft(), judged, texts.popleft())
        yield from letters()

    def _close(self, part: Sequence[_Row]) -> None:
        for kind in KINDS:
            chosen = [row for row in part if row.kind == kind]
            self.counts[kind] += len(chosen)
            # Of a file with columns, too, there may be no row where it is damaged.
            for has_columns in (True, False):
                if rows := [row for row in chosen if (row.raw.row is not None) is has_columns]:
                    _write(self.folder / kind, f"part-{self._parts:05}", rows)
        self.counts["damaged"] += sum(row.raw.lost is not None and row.raw.lost.error_class == DAMAGED_FILE for row in part)
        number, place = part[-1].at
        self._next = (number, place + 1)
        self._parts += 1
        self._safe += sum(isinstance(row.outcome, Judged) for row in part)
        self._save()

    def _save(self) -> None:
        fields = {
            "identity": self.identity,
            "counts": dict(self.counts),
            "done": self.is_done,
            "next": self._next,
            "parts": self._parts,
            "judged": self._safe,
        }
        _replace(self.folder / _PROGRESS, lambda path: path.write_text(json.dumps(fields)))


def _write(folder: Path, name: str, rows: Sequence[_Row]) -> None:
    folder.mkdir(exist_ok=True)
    if rows[0].raw.row is None:
        lines = b"".join(_line(row) + b"\n" for row in rows)
        _replace(folder / f"{name}.jsonl", lambda path: path.write_bytes(lines))
        return
    import pyarrow.parquet as pq  # noqa: PLC0415 - an extra

    table = _table(rows)
    _replace(folder / f"{name}.parquet", lambda path: pq.write_table(table, path))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that it is there as a whole, and on the disk, or not at all."""
    beside = path.with_name(f".{path.name}.new")
    write(beside)
    for one, replaced in ((beside, False), (path.parent, True)):
        if replaced:
            beside.replace(path)
        descriptor = os.open(one, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _added(row: _Row) -> dict[str, Any]:
    if isinstance(row.outcome, DeadLetter):
        return {"dedup_problem": row.outcome.message}
    if row.kind == "kept":
        return {}
    judged = row.outcome
    return {
        "dedup_of": (judged.of_id or b"").decode("utf-8", "replace"),
        "dedup_group": judged.of_number,
        "dedup_reason": judged.reason.label,
        "dedup_distance": judged.distance,
        "dedup_similarity": similarity_of(judged),
    }


def _line(row: _Row) -> bytes:
    raw = row.raw
    if row.kind == "kept" and raw.form == "jsonl":
        return raw.raw
    if raw.lost is not None:
        fields: dict[str, Any] = {"id": raw.name}
    elif raw.form == "jsonl" and raw.fields is not None:
        fields = raw.fields
    else:
        is_judged = raw.form != "jsonl" and isinstance(row.outcome, Judged)
        fields = {"id": raw.name, "text": row.text if is_judged else decode_page(raw.raw, raw.charset)}
    return json.dumps({**fields, **_added(row)}).encode()


def _table(rows: Sequence[_Row]) -> Any:
    """Return rows with the columns of their source, and what is added; rows of one batch are taken at once."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    taken: list[tuple[Any, list[int]]] = []
    for row in rows:
        batch, place = row.raw.row or (None, 0)
        if not taken or taken[-1][0] is not batch:
            taken.append((batch, []))
        taken[-1][1].append(place)
    table = pa.Table.from_batches([batch.take(pa.array(places, pa.int64())) for batch, places in taken]).combine_chunks()
    kinds = {"dedup_group": pa.int64(), "dedup_distance": pa.int32(), "dedup_similarity": pa.float64()}
    added = [_added(row) for row in rows]
    for name in added[0]:
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, pa.array([one[name] for one in added], kinds.get(name, pa.string())))
    return table
