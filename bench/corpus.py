"""Read corpora of real texts with known near-duplicates: NAME.jsonl and NAME.pairs.tsv, any number
of them in a folder.

A line of NAME.jsonl is a document with `id`, `text` and `lang`. NAME.pairs.tsv has a header line
and the columns `id_a`, `id_b`, `verdict` (`exact`, `dup`, `grey` or `diff`) and `jaccard`, in any
order, and possibly others.

Invariants: a pair that is not listed is `diff` and has a Jaccard below 0.3, so the truth is known
for every pair of a set; documents of two sets are never compared, because no truth is known for
them.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from stream_dedup.demo.score import Pair, TrueVerdict
from stream_dedup.domain.errors import InputError

LISTED_FROM: Final = 0.3
Verdict = Literal["exact", "dup", "grey", "diff"]
Group = Literal["en", "zh", "ja+others"]
GROUPS: Final[tuple[Group, ...]] = get_args(Group)

_IN_THE_DEMO: Final[dict[str, TrueVerdict]] = {
    "exact": "exact",
    "dup": "duplicate",
    "grey": "grey",
    "diff": "different",
}
_COLUMNS: Final = ("id_a", "id_b", "verdict", "jaccard")


@dataclass(frozen=True, slots=True)
class CorpusDocument:
    """One document; `language` is a code of ISO 639, or `zh-Hant`."""

    id: str
    text: str
    language: str
    kind: str = "corpus"


@dataclass(frozen=True, slots=True)
class KnownPair:
    """The truth about a listed pair."""

    verdict: Verdict
    jaccard: float


@dataclass(frozen=True, slots=True)
class Corpus:
    """One set. The keys of `pairs` are the listed pairs, as indexes in `documents`, the smaller
    first.
    """

    name: str
    documents: tuple[CorpusDocument, ...]
    pairs: dict[tuple[int, int], KnownPair]

    def group(self, pair: tuple[int, int]) -> Group:
        """Return the language group of a pair: `en` or `zh` if both documents are of it, else
        `ja+others`.
        """
        first, other = pair
        return group_of(self.documents[first].language, self.documents[other].language)

    def truth(self) -> list[Pair]:
        """Return the listed pairs as `truth` has them."""
        return [
            Pair(*pair, known.jaccard, _IN_THE_DEMO[known.verdict])
            for pair, known in self.pairs.items()
        ]


def group_of(first: str, other: str) -> Group:
    """Return the language group of two texts by their languages."""
    if first == other == "en":
        return "en"
    return "zh" if {first, other} <= {"zh", "zh-Hant"} else "ja+others"


def read_corpora(folder: Path) -> list[Corpus]:
    """Return the sets of a folder, by name.

    Raises:
        InputError: there are none, or a file cannot be read or is not of this format; the sentence
        names the line.
    """
    try:
        files = sorted(folder.glob("*.jsonl"))
        corpora = [_read(file) for file in files]
    except OSError as error:
        raise InputError(
            f"The corpora in {folder} cannot be read ({error}): name another folder with --corpus."
        ) from error
    if not corpora:
        raise InputError(
            f"There are no sets in {folder}: --corpus wants a folder with NAME.jsonl and "
            "NAME.pairs.tsv files."
        )
    return corpora


def _read(file: Path) -> Corpus:
    documents = []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                fields = json.loads(line)
                documents.append(
                    CorpusDocument(str(fields["id"]), str(fields["text"]), str(fields["lang"]))
                )
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"Line {number} of {file} is no document ({error!r:.100}): write "
                    f'{{"id": .., "text": .., "lang": ..}}.'
                ) from error
    places = {document.id: place for place, document in enumerate(documents)}
    if len(places) != len(documents):
        raise InputError(
            f"{file} gives an id to more than one document: pairs could not name them; make the "
            "ids distinct."
        )
    truth = file.with_name(f"{file.stem}.pairs.tsv")
    pairs = {}
    with truth.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        for row in rows:
            try:
                first, other = sorted((places[row["id_a"]], places[row["id_b"]]))
                if row["verdict"] not in get_args(Verdict):
                    raise KeyError(row["verdict"])
                pairs[first, other] = KnownPair(row["verdict"], float(row["jaccard"]))  # type: ignore[arg-type] # looked up above
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"Line {rows.line_num} of {truth} is no pair ({error!r:.100}): it needs the "
                    f"columns {', '.join(_COLUMNS)}, "
                    f"two ids of {file.name}, a verdict out of {', '.join(get_args(Verdict))} and "
                    "a number."
                ) from error
    return Corpus(file.stem, tuple(documents), pairs)
