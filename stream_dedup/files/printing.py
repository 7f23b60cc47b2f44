"""Make the prints of files, in many processes at once, and judge files of prints.

Invariants: `judge_files` says of the prints of some files what `check` says of the files; a file of
prints is there as a whole or not at all, whatever process made it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

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
    need_outside,
    reading_of,
    settings_for,
)
from stream_dedup.files.columns import (
    PRINTS,
    batches_of,
    files_of_prints,
    is_made_of,
    rows_of,
    write_prints,
    write_verdicts,
)
from stream_dedup.files.keep import FIRST, Ranks, check_keep_of_prints, need_no_index
from stream_dedup.files.offline import PrintedBatch
from stream_dedup.files.parts import Pending
from stream_dedup.files.remarks import Losses, Remarks
from stream_dedup.inputs.sources import SourceFile, find_files, first_of
from stream_dedup.settings.settings import Settings


def print_files(
    asked: FileRequest,
    to: Path,
    form: str,
    jobs: int,
    overrides: Mapping[str, object],
    config: Path | None,
) -> int:
    """Write the prints of files, whose format is `form`, below `to`; return the exit code.

    Raises:
        InputError: files have no names, or two have the same one.
    """
    need_outside(asked.targets, to)
    others: list[str] = []
    files = [file for target in asked.targets for file in find_files(target, form, others)]
    names = [file.name for file in files]
    if not all(file.can_be_read_again for file in files):
        raise InputError("Prints are written by the names of files; name files or a folder.")
    _need_places(to, names)
    task = CheckTask(asked, settings_for(files, overrides, config), files)
    work = _PrintsWork(task, to)
    due = [file for file in files if not work.is_done(file)]
    if len(due) < len(files):
        note(f"{len(files) - len(due):,} files of prints were there already.")
    lost, remarks, count = Losses(asked.rows_max), Remarks(task.settings), 0
    lost.pass_over(others)
    what = f"printing {' '.join(asked.targets)}"
    with progress(what, sum(file.size_bytes for file in due)) as advance:
        made = _made_of_each(work, due, jobs)
        for file, (documents, letters, remarked) in zip(due, made, strict=True):
            count += documents
            remarks.add(remarked)
            advance(documents, file.size_bytes)
            for where, letter in letters:
                lost.tell(where, letter)
    is_one_of_many = len(names) == 1 and [Path(target).name for target in asked.targets] == names
    if not is_one_of_many:
        work.say_left(files)
    print_counts(
        {"files": len(due), "documents": count, "unreadable": lost.count},
        as_json=asked.as_json,
        to=str(to),
    )
    lost.close()
    remarks.close()
    return lost.exit_code(count or len(files) - len(due), is_strict=asked.is_strict)


def judge_files(asked: FileRequest, settings: Settings) -> int:
    """Judge files of prints; return the exit code.

    Raises:
        InputError, ConfigurationError: a file holds no prints, or those of another recipe.
    """
    need_outside(asked.targets, asked.to, asked.index)
    need_no_index(asked.keep, asked.index)
    check_keep_of_prints(asked.keep)
    others: list[str] = []
    files, old = files_of_prints(asked.targets, others), files_of_prints(asked.against, others)
    task = _PrintsTask(asked, settings, files, old, others)
    if asked.to is None:
        return check_files(task)
    _need_places(asked.to, [file.name for file in files])
    return check_files(task, partial(_write_verdicts, asked.to))


def _write_verdicts(to: Path, name: str, rows: Iterator[dict[str, object]]) -> None:
    write_verdicts(_place_in(to, name), rows)


class _PrintsTask(CheckTask):
    """The same of files of prints."""

    __slots__ = ()

    def batches(
        self,
        files: Sequence[SourceFile],
        pending: Pending,
        remarks: Remarks,
        advance: Advance,
        keep: str = FIRST,
    ) -> Iterator[PrintedBatch]:
        """Yield what the files hold, in their order, ranked by `keep`."""

        def read() -> Iterator[PrintedBatch]:
            for file in files:
                for batch in batches_of(file):
                    for part in rows_of(batch, self.recipe, file.name):
                        pending.extend(part.outcomes)
                        for _ in part.batch.ids:
                            remarks.repeated_ids.read(file.name)
                        yield part.batch
                    advance(batch.num_rows, 0)
                advance(0, file.size_bytes)

        return Ranks(keep, None).ranked(read())


def _place_in(folder: Path, name: str) -> Path:
    """Return the path of what is made of a file: below `folder`, also if its name leads from the
    root or upwards.
    """
    return below(folder, "/".join(part for part in Path(name).parts if part not in ("/", "..")))


def _need_places(to: Path, names: Sequence[str]) -> None:
    if len({_place_in(to, name) for name in names}) < len(names):
        raise InputError(
            f"What is made of a file is written to {to} by its name, and two of these files have "
            "the same one."
        )


_Made: TypeAlias = tuple[int, list[tuple[str, DeadLetter]], Remarks]


@dataclass(frozen=True, slots=True)
class _PrintsWork:
    """How prints are made of a file, in this process or another: with these settings, into the
    folder `to`.
    """

    task: CheckTask
    to: Path

    def __call__(self, file: SourceFile) -> _Made:
        """Write the prints of a file; return how many documents can be judged, the others, with why
        not, and what was seen.
        """
        pending: Pending = deque()
        letters: list[tuple[str, DeadLetter]] = []
        remarks = Remarks(self.task.settings)
        batches = self.task.batches([file], pending, remarks, lambda _documents, _bytes: None)

        def noted() -> Iterator[PrintedBatch]:
            for batch in batches:
                letters.extend((where, letter) for where, letter in pending if letter is not None)
                yield batch
            letters.extend((where, letter) for where, letter in pending if letter is not None)

        count = write_prints(
            self._place(file), noted(), pending, self.task.recipe, self._made_of(file)
        )
        return count, letters, remarks

    def is_done(self, file: SourceFile) -> bool:
        """Return whether the prints of the file are there already, made of it as it is now, and
        with these settings.
        """
        return is_made_of(self._place(file), self._made_of(file))

    def say_left(self, files: Sequence[SourceFile]) -> None:
        """Name the files of prints that are there, and of none of these files."""
        left = sorted(
            {*map(str, self.to.rglob(f"*{PRINTS}"))} - {str(self._place(file)) for file in files}
        )
        if left:
            note(
                f"In {self.to} judge counts also {counted(len(left), 'file')} of prints without a "
                "source among these files: "
                f"{first_of(left)}. Delete by hand what has no source any more."
            )

    def _place(self, file: SourceFile) -> Path:
        return _place_in(self.to, f"{file.name}{PRINTS}")

    def _made_of(self, file: SourceFile) -> str:
        return json.dumps(
            [
                file.name,
                file.size_bytes,
                file.stamp,
                self.task.recipe.id,
                reading_of(self.task.settings),
            ]
        )


def _made_of_each(make: _PrintsWork, files: Sequence[SourceFile], jobs: int) -> Iterator[_Made]:
    """Yield what was made of each file, in their order."""
    if jobs == 1 or len(files) < 2:
        yield from map(make, files)
        return
    # Not forked: a process that has started threads, as numerical libraries do, must not be copied.
    with ProcessPoolExecutor(min(jobs, len(files)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(make, files)
