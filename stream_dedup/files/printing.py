"""Write the prints of files in several processes, and judge files of prints.

Invariants: the verdicts of `judge_files` on prints equal those of `check` on the source files; each
process writes files of prints atomically.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.paths import below
from stream_dedup.domain.printable import counted
from stream_dedup.domain.terminal import note, print_counts, progress
from stream_dedup.files.checking import (
    Advance,
    CheckTask,
    FileRequest,
    check_files,
    decoding_settings,
    require_outside,
    settings_for,
)
from stream_dedup.files.columns import (
    PRINTS,
    batches_of,
    find_prints,
    is_up_to_date,
    read_printed_rows,
    write_prints,
    write_verdicts,
)
from stream_dedup.files.keep import FIRST, Ranks, require_no_index, require_word
from stream_dedup.files.offline import FingerprintedBatch
from stream_dedup.files.parts import Pending
from stream_dedup.files.remarks import Remarks, UnreadableDocuments
from stream_dedup.inputs.sources import SourceFile, find_files, once, shorten_names
from stream_dedup.settings.settings import Settings


def write_prints_of_files(
    request: FileRequest,
    to: Path,
    file_format: str,
    jobs: int,
    overrides: Mapping[str, object],
    config: Path | None,
) -> int:
    """Write the prints of files of the format `file_format` into the folder `to`; return the exit code.

    Raises:
        InputError: a file has no name, two files have the same name, or a file in `to` contains the
        prints of another source.
    """
    require_outside(request.targets, to)
    unread_names: list[str] = []
    files = once(
        file for target in request.targets for file in find_files(target, file_format, unread_names)
    )
    names = [file.name for file in files]
    if not all(file.can_be_read_again for file in files):
        raise InputError(
            "Prints need the names of their source files, which standard input and pipes do not "
            "have; name files or a folder."
        )
    _require_distinct_paths(to, names)
    task = CheckTask(request, settings_for(files, overrides, config), files)
    writer = _PrintsWriter(task, to)
    outdated = [file for file in files if not writer.is_done(file)]
    if done := len(files) - len(outdated):
        exist = "file of prints exists and is" if done == 1 else "files of prints exist and are"
        note(f"{done:,} {exist} up to date.")
    unreadable, remarks, count = UnreadableDocuments(request.rows_max), Remarks(task.settings), 0
    unreadable.count_unread(unread_names)
    what = f"fingerprinting {' '.join(request.targets)}"
    with progress(what, sum(file.size_bytes for file in outdated)) as advance:
        for file, printed in zip(outdated, _write_each(writer, outdated, jobs), strict=True):
            count += printed.documents
            remarks.merge(printed.remarks)
            advance(printed.documents, file.size_bytes)
            for location, letter in printed.letters:
                unreadable.report(location, letter)
    # If the target is one file, not a folder, `to` may contain prints of other files.
    is_single_file = len(names) == 1 and [Path(target).name for target in request.targets] == names
    if not is_single_file:
        writer.report_orphans(files)
    print_counts(
        {
            "files": len(outdated),
            "documents": count + unreadable.count,
            "unreadable": unreadable.count,
        },
        as_json=request.as_json,
        to=str(to),
    )
    unreadable.close()
    remarks.close()
    return unreadable.exit_code(count or done, is_strict=request.is_strict)


def judge_files(request: FileRequest, settings: Settings) -> int:
    """Judge files of prints; return the exit code.

    Raises:
        InputError, ConfigurationError: a file contains no prints, or prints of another recipe.
    """
    require_outside(request.targets, request.to, request.index)
    require_no_index(request.keep, request.index)
    require_word(request.keep)
    unread_names: list[str] = []
    files, old_files = (
        find_prints(request.targets, unread_names),
        find_prints(request.against, unread_names),
    )
    task = _PrintsTask(request, settings, files, old_files, unread_names)
    if (to := request.to) is None:
        return check_files(task)
    _require_distinct_paths(to, [file.name for file in files])
    judged_by = f"{settings.judging_plan.id} {request.keep}"
    return check_files(
        task, lambda name, rows: write_verdicts(_output_path(to, name), rows, judged_by)
    )


class _PrintsTask(CheckTask):
    """A `CheckTask` whose files contain prints instead of documents."""

    __slots__ = ()

    def batches(
        self,
        files: Sequence[SourceFile],
        pending: Pending,
        remarks: Remarks,
        advance: Advance,
        keep: str = FIRST,
    ) -> Iterator[FingerprintedBatch]:
        """Yield the batches of the files, in order, ranked by `keep`."""

        def read() -> Iterator[FingerprintedBatch]:
            for file in files:
                for batch in batches_of(file):
                    for part in read_printed_rows(batch, self.recipe, file.name):
                        pending.extend(part.outcomes)
                        for _ in part.batch.ids:
                            remarks.repeated_ids.add_document(file.name)
                        yield part.batch
                    advance(batch.num_rows, 0)
                advance(0, file.size_bytes)

        return Ranks(keep, None).rank_batches(read())


def _output_path(folder: Path, name: str) -> Path:
    """Return the path of the output for a file. It is inside `folder` even if the name of the file is
    absolute or contains "..".
    """
    return below(folder, "/".join(part for part in Path(name).parts if part not in ("/", "..")))


def _require_distinct_paths(to: Path, names: Sequence[str]) -> None:
    if len({_output_path(to, name) for name in names}) < len(names):
        raise InputError(
            f"Files in {to} get the names of their source files, but two source files have the same "
            "name."
        )


class _PrintedFile(NamedTuple):
    """The result for a file: the number of documents that can be judged, and (location, dead letter)
    of the others.
    """

    documents: int
    letters: list[tuple[str, DeadLetter]]
    remarks: Remarks


@dataclass(frozen=True, slots=True)
class _PrintsWriter:
    """Writes the prints of a file into the folder `to`. It can be sent to another process."""

    task: CheckTask
    to: Path

    def __call__(self, file: SourceFile) -> _PrintedFile:
        """Write the prints of a file; return the result."""
        pending: Pending = deque()
        letters: list[tuple[str, DeadLetter]] = []
        remarks = Remarks(self.task.settings)
        batches = self.task.batches([file], pending, remarks, lambda _documents, _bytes: None)

        def collect_letters() -> Iterator[FingerprintedBatch]:
            for batch in batches:
                letters.extend(
                    (location, letter) for location, letter in pending if letter is not None
                )
                yield batch
            letters.extend((location, letter) for location, letter in pending if letter is not None)

        count = write_prints(
            self._path(file),
            collect_letters(),
            pending,
            self.task.recipe,
            self._source_identity(file),
            file.location,
        )
        return _PrintedFile(count, letters, remarks)

    def is_done(self, file: SourceFile) -> bool:
        """Return whether the folder contains the prints of the current file, made with these
        settings.

        Raises:
            InputError: see `is_up_to_date`.
        """
        return is_up_to_date(self._path(file), self._source_identity(file), file.location)

    def report_orphans(self, files: Sequence[SourceFile]) -> None:
        """Print the names of the files of prints in the folder whose source is none of `files`."""
        orphans = sorted(
            {*map(str, self.to.rglob(f"*{PRINTS}"))} - {str(self._path(file)) for file in files}
        )
        if orphans:
            note(
                f"{self.to} also contains {counted(len(orphans), 'file')} of prints of other "
                f"files, which judge also reads: {shorten_names(orphans)}. Delete those whose "
                "source no longer exists."
            )

    def _path(self, file: SourceFile) -> Path:
        return _output_path(self.to, f"{file.name}{PRINTS}")

    def _source_identity(self, file: SourceFile) -> str:
        return json.dumps(
            [
                file.name,
                file.size_bytes,
                file.stamp,
                self.task.recipe.id,
                decoding_settings(self.task.settings),
            ]
        )


def _write_each(
    writer: _PrintsWriter, files: Sequence[SourceFile], jobs: int
) -> Iterator[_PrintedFile]:
    """Yield the result for each file, in order."""
    if jobs == 1 or len(files) < 2:
        yield from map(writer, files)
        return
    # Not fork: numerical libraries start threads, which a forked process would lack.
    with ProcessPoolExecutor(min(jobs, len(files)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(writer, files)
