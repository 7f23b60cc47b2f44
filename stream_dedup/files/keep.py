"""Rank documents by the value of `--keep`, which decides which of several copies `check` and `judge`
keep. Report documents without the value.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from stream_dedup.domain.errors import ConfigurationError, InputError, UsageError
from stream_dedup.domain.printable import printable
from stream_dedup.domain.terminal import note
from stream_dedup.files.offline import FingerprintedBatch
from stream_dedup.inputs.columnar import columns_of
from stream_dedup.inputs.fields import field_at, time_ms_of
from stream_dedup.inputs.sources import RawDocument, SourceFile

FIRST, LONGEST, NEWEST = "first", "longest", "newest"
_WORDS = (FIRST, LONGEST, NEWEST)
_CHOICES = (
    "Choose first, longest or newest, or name a column with numbers or times; the copy with the "
    "greatest value is kept."
)
NO_RANK = float("-inf")


def require_no_index(keep: str, index: Path | None) -> None:
    """Raise ConfigurationError if `keep` is not "first" and there is a lasting index, because such
    an index keeps the first copy.
    """
    if keep != FIRST and index is not None:
        raise ConfigurationError(
            "An index keeps the first copy of all runs; leave out --keep or --index."
        )


def check_keep(keep: str, files: Sequence[SourceFile], time_field: str | None) -> None:
    """Check, before the files are read, that their documents can have a value for `--keep`.

    Raises:
        UsageError: no document can have the value; the message contains the columns of the files.
    """
    if keep in (FIRST, LONGEST) or any(file.remote is not None for file in files):
        return
    forms = {file.form for file in files}
    if keep == NEWEST:
        if "warc" in forms:
            return
        if time_field is None:
            _refuse("newest needs the field with the time: add --set time_field=PATH.")
    path = time_field if keep == NEWEST and time_field is not None else keep
    not_word = "" if keep == NEWEST else f"none of {', '.join(_WORDS)}, and "
    columns: dict[str, None] = {}
    if forms == {"columns"}:
        for file in files:
            try:
                columns |= dict.fromkeys(columns_of(file.path)) if file.path is not None else {}
            except (InputError, OSError):
                return  # reported when the file is read
        if not {path, path.split(".", maxsplit=1)[0]} & columns.keys():
            _refuse(
                f"{path!r} is {not_word}no column; the columns are {', '.join(columns)}. {_CHOICES}"
            )
    elif forms <= {"text", "lines", "warc"}:
        _refuse(f"{path!r} is {not_word}no column: the files contain texts without columns.")
    elif keep.lower() in _WORDS:
        require_word(keep)


def require_word(keep: str) -> None:
    """Raise UsageError if `keep` is the name of a column, because prints have no columns of the source.
    If it differs from a word only in case, suggest the word.
    """
    if keep not in _WORDS:
        meant = f"; did you mean {keep.lower()}?" if keep.lower() in _WORDS else "."
        _refuse(f"{keep!r} is none of {', '.join(_WORDS)}{meant}")


@dataclass(slots=True)
class Ranks:
    """Ranks documents by the value of `--keep`, and counts documents without a value, which rank last."""

    keep: str
    time_field: str | None
    _documents: int = 0
    _without_value: int = 0
    _names: list[str] = field(default_factory=list)

    def rank_of(self, raw: RawDocument) -> float:
        """Return the number or time in the column that `--keep` names; a placeholder if `--keep` is
        a word, such as `longest`.
        """
        self._names = self._names or list(map(str, raw.fields or ()))
        return NO_RANK if self.keep in _WORDS else to_rank(field_at(raw.fields, self.keep))

    def rank_batches(self, batches: Iterator[FingerprintedBatch]) -> Iterator[FingerprintedBatch]:
        """Yield the batches with their ranks. At the end print the number of documents without a
        value.

        Raises:
            UsageError: no document has a value.
        """
        for batch in batches:
            ranks = batch.ranks
            if self.keep == LONGEST:
                ranks = batch.lengths.astype(np.float64)
            elif self.keep == NEWEST:
                ranks = np.where(batch.times == 0, NO_RANK, batch.times.astype(np.float64))
            self._documents += len(batch.ids)
            self._without_value += int((ranks == NO_RANK).sum())
            yield batch._replace(ranks=ranks)
        if self.keep == FIRST or not self._without_value:
            return
        what, path = (
            ("time", self.time_field) if self.keep == NEWEST else ("number or time", self.keep)
        )
        in_field = "" if path is None else f" in {path!r}"
        if self._without_value == self._documents:
            names = (
                f"; the first one has the fields {', '.join(self._names)}" if self._names else ""
            )
            hint = "" if names or path else "; make the prints with --set time_field=PATH"
            sentence = f"None of {self._documents:,} documents has a {what}{in_field}{names}{hint}."
            _refuse(sentence if self.keep in _WORDS else f"{sentence} {_CHOICES}")
        note(
            f"--keep {printable(self.keep)}: {self._without_value:,} of {self._documents:,} documents "
            f"have no {what}{in_field}; they rank last."
        )


def to_rank(value: object) -> float:
    """Return a number, or a text that contains one, as a float; a time as its milliseconds since 1970;
    -inf for any other value, which ranks last.
    """
    if isinstance(value, int | float | str | decimal.Decimal):
        with suppress(ValueError, OverflowError):
            number = float(value)
            return number if abs(number) < float("inf") else NO_RANK
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        value = str(value)
    time_ms = time_ms_of(value)
    return NO_RANK if time_ms is None else float(time_ms)


def _refuse(sentence: str) -> NoReturn:
    raise UsageError(f"--keep: {printable(sentence, 2000)}")
