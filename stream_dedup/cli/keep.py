"""`check --keep`: which of several copies is kept, and what is said where nothing tells it."""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import typer

from stream_dedup.ground.errors import InputError
from stream_dedup.ground.printable import printable
from stream_dedup.ground.terminal import note
from stream_dedup.inputs.columnar import columns_of
from stream_dedup.inputs.decoder import DecodedDocument
from stream_dedup.inputs.fields import field_at, time_ms_of
from stream_dedup.inputs.sources import RawDocument, SourceFile
from stream_dedup.local.offline import PrintedBatch

FIRST, LONGEST, NEWEST = "first", "longest", "newest"
_WORDS = (FIRST, LONGEST, NEWEST)
_NOTHING = float("-inf")


def check_keep(keep: str, files: Sequence[SourceFile], time_field: str | None) -> None:
    """Refuse what no document of these files can have, as far as it is known before they are read.

    Raises:
        typer.BadParameter: the sentence names the columns that are there.
    """
    if keep in (FIRST, LONGEST) or any(file.elsewhere is not None for file in files):
        return
    forms = {file.form for file in files}
    if keep == NEWEST:
        if "warc" in forms:
            return
        if time_field is None:
            _refuse("newest needs the field that holds the time: add --set time_field=PATH.")
    path = time_field if keep == NEWEST and time_field is not None else keep
    no_word = "" if keep == NEWEST else f"none of {', '.join(_WORDS)}, and "
    columns: dict[str, None] = {}
    if forms == {"columns"}:
        for file in files:
            try:
                columns |= dict.fromkeys(columns_of(file.path)) if file.path is not None else {}
            except (InputError, OSError):
                return  # told where it is read
        if not {path, path.split(".", maxsplit=1)[0]} & columns.keys():
            _refuse(f"{path!r} is {no_word}no column; the columns are {', '.join(columns)}.")
    elif forms <= {"text", "lines", "warc"}:
        _refuse(f"{path!r} is {no_word}no column: the files hold texts without any.")
    elif keep not in _WORDS and keep.lower() in _WORDS:
        _refuse(f"{keep!r} is none of {', '.join(_WORDS)}; did you mean {keep.lower()}?")


@dataclass(slots=True)
class Ranks:
    """How high documents stand by what `--keep` names, and how many have nothing that tells it:
    they come last.
    """

    keep: str
    time_field: str | None
    _documents: int = 0
    _without: int = 0
    _names: list[str] = field(default_factory=list)

    def of(self, raw: RawDocument, decoded: DecodedDocument) -> float:
        """Return how high a document stands."""
        if self.keep == FIRST:
            return 0.0
        self._documents += 1
        self._names = self._names or list(map(str, raw.fields or ()))
        if self.keep == LONGEST:
            rank: float | None = len(decoded.text)
        elif self.keep == NEWEST:
            rank = time_ms_of(raw.time) if raw.form == "warc" else decoded.time_ms or None
        else:
            rank = _number(field_at(raw.fields, self.keep))
        self._without += rank is None
        return _NOTHING if rank is None else float(rank)

    def told(self, batches: Iterator[PrintedBatch]) -> Iterator[PrintedBatch]:
        """Yield what is read, and say behind it how many documents have nothing that tells which
        copy is kept.

        Raises:
            typer.BadParameter: none has.
        """
        yield from batches
        if not self._without:
            return
        what, path = ("time", self.time_field) if self.keep == NEWEST else ("number", self.keep)
        if self._without == self._documents:
            names = (
                f"; the first one has the fields {', '.join(self._names)}" if self._names else ""
            )
            _refuse(f"None of {self._documents:,} documents has a {what} in {path!r}{names}.")
        in_field = "" if path is None else f" in {path!r}"
        note(
            f"--keep {printable(self.keep)}: {self._without:,} of {self._documents:,} documents "
            f"have no {what}{in_field}; "
            "they come last."
        )


def _number(found: object) -> float | None:
    """Return a number, also one that is written as a string; None for anything else."""
    if not isinstance(found, int | float | str | decimal.Decimal):
        return None
    try:
        number = float(found)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def _refuse(sentence: str) -> NoReturn:
    raise typer.BadParameter(printable(sentence, 2000), param_hint="--keep")
