"""Judge the documents of files, for the commands `check` and `judge`."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import signal
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from stream_dedup.domain.document import (
    TOPIC_ID_BYTES,
    Reason,
    Verdict,
)
from stream_dedup.domain.errors import InputError, UsageError
from stream_dedup.domain.printable import counted
from stream_dedup.domain.terminal import (
    console,
    note,
    print_counts,
    print_json,
    print_table,
    progress,
)
from stream_dedup.files.decoding import decode_documents
from stream_dedup.files.keep import FIRST, Ranks, check_keep, require_no_index
from stream_dedup.files.offline import (
    FingerprintedBatch,
    Judged,
    OfflineDocument,
    fingerprint_batches,
    judge_batches,
    judge_ranked,
    open_index,
    open_store,
)
from stream_dedup.files.parts import KINDS, PartedOutput, PartFormat, Pending
from stream_dedup.files.remarks import Remarks, UnreadableDocuments, content_kind, optional_fields
from stream_dedup.fingerprinting import Recipe
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.inputs.columnar import columns_of, paths_to, require_pyarrow
from stream_dedup.inputs.sources import (
    RawDocument,
    SourceFile,
    contain_objects,
    find_all,
    read_documents,
    require_packages,
    shorten_names,
    whole_name,
)
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

Advance: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRequest:
    """The arguments of a command that judges files.

    `targets`: the files to judge; `against`: files to compare with (`--against`); `index`: the folder
    of a lasting index; `to`: the output folder; `rows_max`: the number of duplicates to list, 0 for
    all.
    """

    targets: Sequence[str]
    against: Sequence[str] = ()
    index: Path | None = None
    to: Path | None = None
    keep: str = FIRST
    rows_max: int = 0
    as_json: bool = False
    is_strict: bool = False
    skips_damaged: bool = False


@dataclass(frozen=True, slots=True)
class CheckTask:
    """The work of a command: judge `files` against each other, the `old_files` and a lasting index.

    `unread_names`: names of files in the folders that have an unknown format and are not read.
    """

    request: FileRequest
    settings: Settings
    files: Sequence[SourceFile]
    old_files: Sequence[SourceFile] = ()
    unread_names: Sequence[str] = ()

    @property
    def recipe(self) -> Recipe:
        """The recipe of the settings."""
        return recipe_of(self.settings)

    def progress(self) -> AbstractContextManager[Advance]:
        """Return a progress bar over the bytes of all files."""
        return progress(
            f"checking {' '.join(self.request.targets)}",
            sum(file.size_bytes for file in (*self.files, *self.old_files)),
        )

    def open_index(self, store: Store) -> LogIndex:
        """Return the index on a store, with the plan and similarities of the settings."""
        settings = self.settings
        return open_index(store, self.recipe, settings.plan, **settings.similarities)

    def batches(
        self,
        files: Sequence[SourceFile],
        pending: Pending,
        remarks: Remarks,
        advance: Advance,
        keep: str = FIRST,
    ) -> Iterator[FingerprintedBatch]:
        """Yield the documents of files with their fingerprints, ranked by `keep`; `pending` as in
        `decode_documents`.
        """
        raws = read_documents(files, advance, remarks.non_page_records)
        takes_vectors = self.recipe.method.takes_vectors
        ranks = Ranks(keep, self.settings.time_field)
        documents = decode_documents(
            raws,
            self.settings,
            pending,
            takes_vectors=takes_vectors,
            remarks=remarks,
            rank=ranks.rank_of,
        )
        return ranks.rank_batches(fingerprint_batches(documents, self.recipe))

    def judge(
        self,
        batches: Iterator[FingerprintedBatch],
        index: LogIndex,
        run_id: bytes,
        first_number: int,
    ) -> Iterator[Judged]:
        """Yield the verdicts on documents, in their order. `first_number`: the number of the first
        document.
        """
        if self.request.keep == FIRST:
            return judge_batches(
                batches, self.recipe, index, run_id=run_id, first_number=first_number
            )
        return iter(judge_ranked(batches, self.recipe, index))

    def judge_against(
        self, index: LogIndex, remarks: Remarks, unreadable: UnreadableDocuments, advance: Advance
    ) -> None:
        """Judge the documents of the old files, and report those that cannot be read.

        Raises:
            InputError: there are old files, and none of their documents can be judged.
        """
        pending: Pending = deque()
        batches = self.batches(self.old_files, pending, remarks, advance)
        count = 0
        for _ in judge_batches(
            batches, self.recipe, index, run_id=secrets.token_bytes(TOPIC_ID_BYTES)
        ):
            count += 1
            while (letter := pending[0][1]) is not None:
                unreadable.report(pending.popleft()[0], letter)
            pending.popleft()
        for location, letter in pending:
            if letter is not None:
                unreadable.report(location, letter)
        remarks.repeated_ids.begin(0)
        if self.old_files and not count:
            names = shorten_names([file.name for file in self.old_files])
            raise InputError(
                f"No document in --against ({names}) can be judged; name other files, or leave out --against."
            )

    def require_documents(self, count: int) -> None:
        """Raise InputError if the files contain neither documents nor unreadable rows."""
        if not count:
            raise InputError(
                f"The files contain no document: {shorten_names([file.name for file in self.files])}."
            )

    def report(self, remarks: Remarks, unreadable: UnreadableDocuments) -> None:
        """Print the notes at the end of a command."""
        unreadable.close()
        if self.request.index is not None and (known := remarks.count_if_all_known()) > 1:
            note(
                f"The index {self.request.index} already contained all {known:,} documents, from an "
                "earlier run. To keep them again, leave out --index, or name another folder."
            )
        remarks.close()

    def judge_by_rank(
        self, remarks: Remarks, unreadable: UnreadableDocuments, advance: Advance
    ) -> list[Judged]:
        """Read all documents and return their verdicts by rank. Report unreadable rows of the old files
        only; those of the files to judge are reported when the files are read again.
        """
        index = self.open_index(MemoryStore())
        self.judge_against(index, remarks, unreadable, advance)
        batches = self.batches(
            self.files, deque(), Remarks(self.settings), advance, self.request.keep
        )
        return judge_ranked(batches, self.recipe, index)


@dataclass(slots=True)
class _Counts:
    """The counts of a command, and the first `rows_max` duplicates as rows of a table (0: all).

    `reports_letters`: print each unreadable row, instead of only counting it.
    """

    rows_max: int
    unreadable: UnreadableDocuments
    reports_letters: bool
    reasons: Counter[Reason] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    duplicate_rows: list[list[str]] = field(default_factory=list)

    def count_outcomes(
        self, verdicts: Iterator[Judged], pending: Pending
    ) -> Iterator[dict[str, object]]:
        """Count verdicts and dead letters, and yield each as a JSON object, in the order of the
        documents.

        `pending` contains the documents that have not been counted: the location, and the dead
        letter if the document cannot be judged.
        """
        for judged in verdicts:
            yield from self._count_letters(pending)
            location, _ = pending.popleft()
            self._count_verdict(location, judged)
            yield _to_json(location, judged)
        yield from self._count_letters(pending)

    def _count_letters(self, pending: Pending) -> Iterator[dict[str, object]]:
        while pending and (letter := pending[0][1]) is not None:
            location, _ = pending.popleft()
            self.stages[letter.stage] += letter.count
            if self.reports_letters:
                self.unreadable.report(location, letter)
            else:
                self.unreadable.count_letter(letter)
            yield {
                "location": location,
                "verdict": "dead-letter",
                "reason": letter.stage,
                "message": letter.message,
            }

    def _count_verdict(self, location: str, judged: Judged) -> None:
        self.reasons[judged.reason] += 1
        self.verdicts[judged.verdict.value] += 1
        if judged.verdict is Verdict.DUPLICATE and (
            not self.rows_max or len(self.duplicate_rows) < self.rows_max
        ):
            kept_id = (judged.kept_id or b"").decode("utf-8", "replace")
            name = judged.id.decode("utf-8", "replace")
            similarity = "" if judged.similarity is None else f"{judged.similarity:.2f}"
            self.duplicate_rows.append(
                [
                    name or location,
                    judged.reason.label,
                    similarity,
                    str(judged.distance),
                    kept_id,
                    location,
                ]
            )


def check(
    request: FileRequest,
    file_format: str,
    overrides: Mapping[str, object],
    config: Path | None,
    part_format: PartFormat,
) -> int:
    """Find and judge the documents of files of the format `file_format`; return the exit code.

    Raises:
        UsageError: options exclude each other.
        InputError, ConfigurationError: see `settings_for`, `check_files` and `check_into`.
    """
    unread_names: list[str] = []
    files, old_files = (
        find_all(request.targets, file_format, unread_names),
        find_all(request.against, file_format, unread_names),
    )
    if old_files or request.index is not None:
        files = [whole_name(file) for file in files]
        old_files = [whole_name(file) for file in old_files]
    settings = settings_for([*files, *old_files], overrides, config)
    require_outside(request.targets, request.to, request.index)
    if part_format != PartFormat() and request.to is None:
        raise UsageError(
            "--as, --compression and --rows-per-file apply to the files that --to writes; name a folder "
            "with --to."
        )
    has_parquet = any(file.form == "columns" for file in files)
    if part_format.compression and not (
        part_format.name == "parquet" or (part_format.name is None and has_parquet)
    ):
        raise UsageError(
            "--compression applies to Parquet, but these sources are written as JSONL: add --as parquet, or "
            "leave out --compression."
        )
    require_no_index(request.keep, request.index)
    check_keep(request.keep, files, settings.time_field)
    if part_format.name == "parquet":
        require_pyarrow("Parquet files")
    task = CheckTask(request, settings, files, old_files, unread_names)
    return check_files(task) if request.to is None else check_into(task, request.to, part_format)


def check_files(
    task: CheckTask, write: Callable[[str, Iterator[dict[str, object]]], None] | None = None
) -> int:
    """Judge every document in order, and print duplicates and totals, or one JSON object for each
    document; return the exit code.

    With `write`, pass it the name of each file and the JSON objects of its documents instead of
    printing them.
    """
    remarks, unreadable = Remarks(task.settings), UnreadableDocuments(task.request.rows_max)
    result = _Counts(
        task.request.rows_max, unreadable, write is not None or not task.request.as_json
    )
    first_number, run_id = 0, secrets.token_bytes(TOPIC_ID_BYTES)
    unreadable.count_unread(task.unread_names)
    with contextlib.ExitStack() as stack:
        index = task.open_index(_open_store_for(task, result, stack))
        advance = stack.enter_context(task.progress())
        ranked: Iterator[Judged] | None = None
        if write is None or task.request.keep == FIRST:
            task.judge_against(index, remarks, unreadable, advance)
        else:  # which copy is kept is known only after all files were read
            ranked = iter(task.judge_by_rank(remarks, unreadable, advance))
        for files in [task.files] if write is None else [[file] for file in task.files]:
            pending: Pending = deque()
            keep = task.request.keep if ranked is None else FIRST
            batches = task.batches(files, pending, remarks, advance, keep)
            if ranked is None:
                judged = task.judge(batches, index, run_id, first_number)
            else:
                judged = (
                    judgement
                    for batch in batches
                    for judgement in itertools.islice(ranked, len(batch.ids))
                )
            rows = result.count_outcomes(remarks.count_verdicts(judged), pending)
            if write is not None:
                write(files[0].name, rows)
                first_number = sum(result.verdicts.values())
                continue
            for row in rows:
                if task.request.as_json:
                    print_json(row)
    if write is not None and task.request.as_json:
        print_json({"verdicts": dict(result.verdicts), "unreadable": unreadable.count})
    elif result.reports_letters:
        _print_result(result)
    task.report(remarks, unreadable)
    count = sum(result.verdicts.values())
    task.require_documents(count + unreadable.count)
    return unreadable.exit_code(
        count, is_strict=task.request.is_strict, skips_damaged=task.request.skips_damaged
    )


def _open_store_for(task: CheckTask, result: _Counts, stack: contextlib.ExitStack) -> Store:
    """Return the store of the lasting index, or a store in a temporary folder. The stack closes it.
    If the command is interrupted, print what the lasting index contains.
    """
    folder = task.request.index
    if folder is None:
        # On disk, so that only the tables of the fingerprints are in memory.
        with contextlib.suppress(OSError):
            temporary = tempfile.TemporaryDirectory(prefix="stream-dedup-")
            folder = Path(stack.enter_context(temporary))
    store = stack.enter_context(closing(open_store(folder)))
    if task.request.index is not None:
        stack.enter_context(
            _report_interrupt(
                lambda: (
                    f"The index {folder} contains at least "
                    f"{counted(sum(result.verdicts.values()), 'document')} of this run; the "
                    "next run reports them as unchanged."
                )
            )
        )
    return store


def check_into(task: CheckTask, folder: Path, part_format: PartFormat) -> int:
    """Judge every document and write kept rows and duplicates into `folder`; return the exit code.

    Raises:
        InputError: a source cannot be read again, or the folder contains something else.
    """
    settings, files = task.settings, task.files
    if not all(file.can_be_read_again for file in files):
        raise InputError(
            "--to reads its sources again if a run is repeated, which standard input and pipes do not "
            "allow; name a file or a folder."
        )
    identity = {
        "files": [[file.name, file.size_bytes, file.stamp] for file in (*files, *task.old_files)],
        "index": None if task.request.index is None else str(task.request.index.resolve()),
        "settings": decoding_settings(settings),
        "recipe": task.recipe.id,
        "plan": settings.judging_plan.id,
        "keep": task.request.keep,
        "as": [part_format.name, part_format.compression, part_format.rows],
    }
    remarks = Remarks(settings)
    unreadable = UnreadableDocuments(task.request.rows_max)
    old_unreadable = UnreadableDocuments(task.request.rows_max)
    unreadable.count_unread(task.unread_names)
    output = PartedOutput(
        folder,
        files,
        identity,
        task.request.index,
        part_format,
        unreadable.report,
        remarks.non_page_records,
    )
    output.open()
    if output.resumed:
        completion = ", which is complete" if output.is_done else ""
        note(f"{output.resumed:,} rows were written by an earlier run{completion}.")
    if not output.is_done:
        hint = "run the same command again to continue."
        with _report_interrupt(
            lambda: f"{folder} contains {counted(output.written, 'row')}; {hint}"
        ):
            _judge_unwritten(task, output, remarks, old_unreadable)
    counts = {kind: output.counts[kind] for kind in KINDS}
    print_counts(counts, heading="rows", as_json=task.request.as_json, to=str(folder))
    sentences = (
        output.describe_replaced(),
        output.describe_incomplete_json(),
        output.describe_changed_values(),
        output.describe_mixed_columns(),
    )
    for sentence in filter(None, sentences):
        note(sentence)
    # The counts of `output` include those of earlier runs.
    unreadable.count = counts["unreadable"] + old_unreadable.count
    unreadable.damaged = output.counts["damaged"]
    old_unreadable.close()
    task.report(remarks, unreadable)
    task.require_documents(sum(counts.values()))
    return unreadable.exit_code(
        counts["kept"] + counts["duplicates"],
        is_strict=task.request.is_strict,
        skips_damaged=task.request.skips_damaged,
    )


def _judge_unwritten(
    task: CheckTask, output: PartedOutput, remarks: Remarks, old_unreadable: UnreadableDocuments
) -> None:
    """Judge and write the rows that an earlier run did not write; count unreadable rows of the old
    files in `old_unreadable`.
    """

    def decode(raws: Iterator[RawDocument], pending: Pending) -> Iterator[OfflineDocument]:
        takes_vectors = task.recipe.method.takes_vectors
        return decode_documents(
            raws, task.settings, pending, takes_vectors=takes_vectors, remarks=remarks
        )

    with task.progress() as advance, contextlib.ExitStack() as stack:
        if task.request.keep == FIRST:
            index = stack.enter_context(output.open_index(task.open_index))
            if not output.judged:
                task.judge_against(index, remarks, old_unreadable, advance)
        else:
            verdicts = task.judge_by_rank(remarks, old_unreadable, advance)

        def judge(documents: Iterator[OfflineDocument], first_number: int) -> Iterator[Judged]:
            if task.request.keep == FIRST:
                judged = judge_batches(
                    fingerprint_batches(documents, task.recipe),
                    task.recipe,
                    index,
                    run_id=output.run_id,
                    first_number=first_number,
                    settled_below=lambda: output.judged,
                )
            else:
                pairs = zip(documents, verdicts[first_number:], strict=False)
                judged = (verdict for _, verdict in pairs)
            return remarks.count_verdicts(judged)

        output.counts["damaged"] += old_unreadable.damaged
        remarks.repeated_ids.begin(output.judged)
        output.run(decode, judge, advance)


@contextlib.contextmanager
def _report_interrupt(describe: Callable[[], str]) -> Iterator[None]:
    """Print the sentence that `describe` returns if Ctrl-C or SIGTERM ends the command."""
    previous = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    except KeyboardInterrupt:
        note(f"Interrupted. {describe()}")
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def require_outside(targets: Sequence[str], *folders: Path | None) -> None:
    """Raise `InputError` if an output folder is inside an input folder."""
    for folder, target in itertools.product(folders, targets):
        if folder is not None and folder.resolve().is_relative_to(Path(target).resolve()):
            raise InputError(
                f"{folder} is inside {target}, so its files would be read as input; name a folder "
                "outside."
            )


def settings_for(
    files: Sequence[SourceFile], overrides: Mapping[str, object], config: Path | None
) -> Settings:
    """Return the settings for these files. If they contain objects, such as lines of JSONL, the
    value format is JSON.

    Raises:
        ConfigurationError: a setting is not valid, or an extra is not installed.
        InputError: a file has no column for a field that is set, or several columns of that name.
    """
    format_override = {"value_format": "json"} if contain_objects(files) else {}
    settings = load_settings({**format_override, **overrides}, config)
    for file in files:
        require_packages(file)
    content = content_kind(settings)
    needed = {
        content: settings.text_field if settings.text_at is None else settings.text_at,
        "id": settings.id_field,
        **optional_fields(settings),
    }
    columns = _columns_of_each(files)
    for what, path in needed.items():
        if path:
            _require_column(columns, path, what)
    _require_single_columns(columns, settings)
    return settings


def decoding_settings(settings: Settings) -> dict[str, str]:
    """Return the settings that change how documents are read."""
    names = (
        "value_format",
        "text_is",
        "text_encoding",
        "text_field",
        "id_field",
        "time_field",
        "scope_field",
        "site_field",
        "title_field",
    )
    location = {} if settings.text_at is None else {"text_at": str(settings.text_at)}
    return {name: str(getattr(settings, name)) for name in names} | location


_Columns: TypeAlias = list[tuple[SourceFile, list[str]]]


def _columns_of_each(files: Sequence[SourceFile]) -> _Columns:
    """Return the columns of each file with columns on this machine. Files that cannot be read are
    missing, and are reported later.
    """
    columns: _Columns = []
    for file in files:
        if file.form == "columns" and file.path is not None and file.remote is None:
            with contextlib.suppress(InputError, OSError):
                columns.append((file, columns_of(file.path)))
    return columns


def _require_column(columns: _Columns, field_path: str, what: str) -> None:
    """Raise `InputError` if a file has no column for a field, such as the text or the id."""
    for file, names in columns:
        if names and not {field_path, field_path.split(".", maxsplit=1)[0]} & set(names):
            nested = paths_to(file.path, field_path) if file.path else []
            example = f", such as {nested[0]}" if nested else ""
            raise InputError(
                f"{file.name} has no column {field_path!r}; its columns are "
                f"{', '.join(names)}. Name the column with the {what} with --{what}-field{example}."
            )


def require_single_columns(
    files: Sequence[SourceFile], settings: Settings, key_field: str | None = None
) -> None:
    """Raise `InputError` if a file has several columns with the name of the text, id, site or title,
    because rows would silently have the value of the last one.
    """
    _require_single_columns(_columns_of_each(files), settings, key_field)


def _require_single_columns(
    columns: _Columns, settings: Settings, key_field: str | None = None
) -> None:
    paths = [settings.text_at or settings.text_field, settings.site_field, settings.title_field]
    paths.append(key_field or settings.id_field or "id")
    for file, names in columns:
        for path in filter(None, paths):
            name = path if path in names else path.split(".", maxsplit=1)[0]
            if (count := names.count(name)) > 1:
                raise InputError(
                    f"{file.name} has {count} columns {name!r}; give one of them another name."
                )


def _to_json(location: str, judged: Judged) -> dict[str, object]:
    return {
        "location": location,
        "id": judged.id.decode("utf-8", "replace"),
        "verdict": judged.verdict.value,
        "reason": judged.reason.label,
        "distance": judged.distance,
        "similarity": judged.similarity,
        "duplicate_of": None
        if judged.kept_id is None
        else judged.kept_id.decode("utf-8", "replace"),
        "duplicate_of_number": judged.kept_number,
        "sibling": None
        if judged.sibling is None
        else {
            "id": judged.sibling.id.decode("utf-8", "replace"),
            "number": judged.sibling.number,
            "similarity": judged.sibling.similarity,
        },
        "fingerprint": judged.fingerprint,
    }


def _print_result(result: _Counts) -> None:
    if result.duplicate_rows:
        print_table(
            ["id", "reason", "similarity", "distance", "copy of", "location"], result.duplicate_rows
        )
        hidden = result.verdicts["duplicate"] - len(result.duplicate_rows)
        if hidden:
            console().print(
                f"... and {hidden:,} more; --rows 0 lists all, --json every document.", style="dim"
            )
        console().print()
    documents = sum(result.verdicts.values()) + sum(result.stages.values())
    totals = [["documents", f"{documents:,}"]]
    for verdict in Verdict:
        parts = [
            f"{reason.label} {count:,}"
            for reason, count in sorted(result.reasons.items())
            if reason.verdict is verdict
        ]
        count = result.verdicts[verdict.value]
        totals.append([verdict.value, f"{count:,}" + (f" ({', '.join(parts)})" if parts else "")])
    if result.stages:
        parts = [f"{stage} {count:,}" for stage, count in sorted(result.stages.items())]
        totals.append(["unreadable", f"{sum(result.stages.values()):,} ({', '.join(parts)})"])
    print_table(["", "documents"], totals)
