"""`prints` and `judge`: what `check` does, in two steps. Many machines can do the first at once, in
any order.

Invariants: `judge` says of the prints of some files what `check` says of the files; a file of
prints is there as a whole or not at all, whatever process made it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from stream_dedup.cli.check import (
    Advance,
    CheckTask,
    check_files,
    need_outside,
    reading_of,
    settings_for,
)
from stream_dedup.cli.options import (
    AgainstOption,
    DocumentFormat,
    FormatOption,
    Given,
    IndexOption,
    JsonOption,
    KeepOption,
    RowsOption,
    StrictOption,
    command,
    to_option,
)
from stream_dedup.cli.remarks import Losses, Remarks
from stream_dedup.cli.setting_options import HOW_TO_JUDGE, HOW_TO_PRINT
from stream_dedup.ground.document import DeadLetter
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.paths import below
from stream_dedup.ground.printable import counted
from stream_dedup.ground.terminal import note, print_counts, progress
from stream_dedup.inputs.columnar import need_pyarrow
from stream_dedup.inputs.sources import SourceFile, find_files, first_of
from stream_dedup.local.keep import FIRST, Ranks, check_keep_of_prints, need_no_index
from stream_dedup.local.offline import PrintedBatch
from stream_dedup.local.parts import Pending
from stream_dedup.settings.recipe import recipe_of


@command(
    "prints",
    example="stream-dedup prints data/ --to prints/ --jobs 8",
    asks_kafka=False,
    flags=HOW_TO_PRINT,
)
def prints_command(
    given: Given,
    targets: Annotated[
        list[str], typer.Argument(metavar="FILE|DIR...", help="Documents, as `check` takes them.")
    ],
    to: Annotated[Path, to_option("Where a file of prints is written for each of theirs.")],
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", min=1, help="How many processes work at once, each at a file of its own."
        ),
    ] = 1,
    document_format: FormatOption = DocumentFormat.AUTO,
    rows: RowsOption = 50,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> int:
    """Fingerprint the documents of files: the part of `check` that many machines can do at once, in
    any order. See `judge`.

    A run that was killed goes on.
    """
    need_pyarrow("Files of prints")
    need_outside(targets, to)
    others: list[str] = []
    files = [
        file for target in targets for file in find_files(target, document_format.value, others)
    ]
    names = [file.name for file in files]
    if not all(file.can_be_read_again for file in files):
        raise InputError("Prints are written by the names of files; name files or a folder.")
    _need_places(to, names)
    settings = settings_for(files, given)
    task = CheckTask(
        settings, recipe_of(settings), targets, files, [], None, 0, as_json, is_strict=strict
    )
    work = _PrintsWork(task, to)
    due = [file for file in files if not work.is_done(file)]
    if len(due) < len(files):
        note(f"{len(files) - len(due):,} files of prints were there already.")
    lost, remarks, count = Losses(rows), Remarks(settings), 0
    lost.pass_over(others)
    with progress(f"printing {' '.join(targets)}", sum(file.size_bytes for file in due)) as advance:
        for file, (documents, letters, remarked) in zip(due, _each(work, due, jobs), strict=True):
            count += documents
            remarks.add(remarked)
            advance(documents, file.size_bytes)
            for where, letter in letters:
                lost.tell(where, letter)
    if [Path(target).name for target in targets] != names or len(
        names
    ) > 1:  # else one task of many, each for one file
        work.say_left(files)
    print_counts(
        {"files": len(due), "documents": count, "unreadable": lost.count},
        as_json=as_json,
        to=str(to),
    )
    lost.close()
    remarks.close()
    return lost.exit_code(count or len(files) - len(due), is_strict=strict)


@command(
    "judge",
    example="stream-dedup judge prints/ --to verdicts/",
    asks_kafka=False,
    flags=HOW_TO_JUDGE,
)
def judge_command(
    given: Given,
    targets: Annotated[list[str], typer.Argument(metavar="FILE|DIR...", help="Files of prints.")],
    against: AgainstOption = None,
    index: IndexOption = None,
    rows: RowsOption = 50,
    to: Annotated[
        Path | None,
        to_option("Write the verdicts there, a Parquet file for each file, a row for each row."),
    ] = None,
    keep: KeepOption = FIRST,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> int:
    """Judge documents by their prints, in one process: it says what `check` says of the documents,
    in the order of names.
    """
    from stream_dedup.local.columns import files_of_prints

    need_pyarrow("Files of prints")
    need_outside(targets, to, index)
    need_no_index(keep, index)
    check_keep_of_prints(keep)
    others: list[str] = []
    files, old = files_of_prints(targets, others), files_of_prints(against or [], others)
    settings = given.settings()
    if to is not None:
        _need_places(to, [file.name for file in files])
    task = _PrintsTask(
        settings,
        recipe_of(settings),
        targets,
        files,
        old,
        index,
        rows,
        as_json,
        strict,
        keep=keep,
        others=others,
    )
    return check_files(task, None if to is None else partial(_write_verdicts, to))


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
        from stream_dedup.local.columns import batches_of, rows_of

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


def _write_verdicts(to: Path, name: str, rows: Iterator[dict[str, object]]) -> None:
    from stream_dedup.local.columns import write_verdicts

    write_verdicts(_place_in(to, name), rows)


def _place_in(folder: Path, name: str) -> Path:
    """Return where what is made of a file lies: below `folder`, also if its name leads from the
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
        from stream_dedup.local.columns import write_prints

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
        from stream_dedup.local.columns import is_made_of

        return is_made_of(self._place(file), self._made_of(file))

    def say_left(self, files: Sequence[SourceFile]) -> None:
        """Name the files of prints that are there, and of none of these files."""
        from stream_dedup.local.columns import PRINTS

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
        from stream_dedup.local.columns import PRINTS

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


def _each(make: _PrintsWork, files: Sequence[SourceFile], jobs: int) -> Iterator[_Made]:
    """Yield what was made of each file, in their order."""
    if jobs == 1 or len(files) < 2:
        yield from map(make, files)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # Not forked: a process that has started threads, as numerical libraries do, must not be copied.
    with ProcessPoolExecutor(min(jobs, len(files)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(make, files)
