"""`calibrate`: how alike the documents of a sample are, and what each threshold would drop."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from stream_dedup.cli.check import decode_documents, settings_for
from stream_dedup.cli.options import (
    DocumentFormat,
    FormatOption,
    Given,
    JsonOption,
    TextFieldOption,
    command,
)
from stream_dedup.console.differences import SHOWN, compare
from stream_dedup.fingerprinting import Fingerprinter, Prints, Recipe
from stream_dedup.ground.document import DeadLetter
from stream_dedup.ground.errors import ConfigurationError, InputError
from stream_dedup.ground.plan import PLANS, Plan
from stream_dedup.ground.printable import printable
from stream_dedup.ground.terminal import console, note, print_json, print_table, progress
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.inputs.sources import STANDARD_INPUT, find_files, not_read, read_documents
from stream_dedup.kafka import Admin, read_partition, topic_bounds
from stream_dedup.local.offline import OfflineDocument, check_widths
from stream_dedup.local.threshold import NearestPairs, distinct_rows, nearest_pairs
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

DOCUMENTS_MIN = 50
_ANSWER_SECONDS = 5.0  # who mistyped the name of a file waits no longer
_AT_ONCE = 2_000
_BINS = 20
_THRESHOLDS = (50, 55, 60, 65, 70, 75, 80, 85, 90)
_SHOWN = 3
_EXTRACT = 160
_BAR = 40


@command("calibrate", example="stream-dedup calibrate pages.jsonl --documents 50000")
def calibrate_command(
    given: Given,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR|-|TOPIC",
            help="Documents as `check` takes them, or a topic: its newest are read.",
        ),
    ],
    document_format: FormatOption = DocumentFormat.AUTO,
    text_field: TextFieldOption = None,
    documents: Annotated[
        int,
        typer.Option(
            "--documents",
            min=DOCUMENTS_MIN,
            max=200_000,
            help="Most documents to read; copies lie near each other.",
        ),
    ] = 20_000,
    as_json: JsonOption = False,
) -> int:
    """Show how alike the documents of a sample are, what each threshold would drop, and pairs on
    either side of the one in force to read.
    """
    settings, found = _documents(given, target, document_format.value, documents, text_field)
    recipe, plan = recipe_of(settings), settings.judging_plan
    if not recipe.sketch_bytes:
        raise ConfigurationError(
            f"The recipe {recipe.id} makes no sketches, so there is no similarity to choose a "
            "threshold of; set "
            "STREAM_DEDUP_RECIPE=words, or judge by distance."
        )
    plan = plan if plan.needs_sketch else PLANS["bands"]
    check_widths(recipe, plan)
    with progress(f"reading {target}", None) as advance:
        sample = _sample(islice(found, documents), recipe, advance)
    rows = distinct_rows(sample.prints, sample.scopes, recipe.floor)
    if not sample.names:
        raise InputError(
            f"There is no document in {printable(target)}; name a file, a folder or a topic that "
            "holds some."
        )
    if len(rows) < DOCUMENTS_MIN:
        raise InputError(
            f"Of {len(sample.names):,} documents in {printable(target)} {len(rows):,} can be "
            "compared (those with different "
            f"texts, long enough), and fewer than {DOCUMENTS_MIN} say nothing about a threshold; "
            "give a larger sample."
        )
    pairs = nearest_pairs(sample.prints, sample.scopes, rows, plan)
    in_force = plan.similarity or PLANS["bands"].similarity
    said = _said(sample, len(rows), pairs, plan, in_force)
    if as_json:
        print_json(said)
    else:
        _print(said)
    return 0


@dataclass(frozen=True, slots=True)
class _Sample:
    """The prints of a sample, and what is compared of each text, packed; rows are documents in
    their order.
    """

    prints: Prints
    scopes: NDArray[np.uint64]
    names: list[str]
    packed: list[bytes]

    def text(self, row: int) -> str:
        """Return the text of a row, as long as it is compared."""
        return zlib.decompress(self.packed[row]).decode("utf-8", "replace")


def _documents(
    given: Given, target: str, form: str, most: int, text_field: str | None
) -> tuple[Settings, Iterator[OfflineDocument]]:
    """Return the settings that fit what is read, and the documents."""
    if target != STANDARD_INPUT and not Path(target).exists():
        settings = given.quiet_settings(text_field=text_field)
        return settings, _of_topic(settings, target, most)
    others: list[str] = []
    files = find_files(target, form, others)
    if others:
        note(not_read(others))
    settings = settings_for(files, given, text_field=text_field)
    return settings, decode_documents(read_documents(files), settings, _Unreadable())


class _Unreadable(deque[tuple[str, DeadLetter | None]]):
    """What was read, of which only the first few that cannot be decoded are named."""

    def __init__(self) -> None:
        super().__init__(maxlen=0)
        self._named = 0

    def append(self, item: tuple[str, DeadLetter | None]) -> None:
        """Name a dead letter."""
        if item[1] is not None and self._named < _SHOWN:
            self._named += 1
            note(f"{item[0]}: {item[1].message}")


def _of_topic(settings: Settings, topic: str, most: int) -> Iterator[OfflineDocument]:
    """Yield the newest documents of a topic, about equally many of each partition."""
    admin = Admin(settings)
    if why := admin.silence(topic, _ANSWER_SECONDS):
        raise InputError(
            f"There is no file {printable(topic)!r}, and of a topic no broker at "
            f"{settings.kafka_bootstrap_servers} says "
            f"anything ({why}); name a file, or the brokers with --bootstrap-servers."
        )
    found = admin.topic_ids([topic]).get(topic)
    if found is None:
        raise InputError(
            f"There is neither a file nor a topic {printable(topic)!r}; name one of them, or - for "
            "standard input."
        )
    decoder = Decoder(settings)
    for partition, bounds in topic_bounds(settings, topic, found[1]).items():
        share = -(-most // found[1])
        for message in islice(
            read_partition(settings, topic, partition, max(bounds.low, bounds.end - share)), share
        ):
            decoded = decoder.decode(message)
            if isinstance(decoded, DecodedDocument):
                name = f"{topic}-{partition}@{message.offset}".encode()
                yield OfflineDocument(decoded.id or name, decoded.text, decoded.scope)


def _sample(documents: Iterator[OfflineDocument], recipe: Recipe, advance: Any) -> _Sample:

    fingerprinter = Fingerprinter(recipe)
    parts, scopes, names, packed = [], list[int](), list[str](), list[bytes]()
    while batch := list(islice(documents, _AT_ONCE)):
        texts = [str(one.text) for one in batch]
        parts.append(fingerprinter.fingerprint(texts))
        scopes += [one.scope for one in batch]
        names += [
            printable(one.id, 80) or f"number {len(names) + at}" for at, one in enumerate(batch)
        ]
        packed += [zlib.compress(text[:SHOWN].encode("utf-8", "replace"), 1) for text in texts]
        advance(len(batch), sum(map(len, texts)))
    prints = Prints.joined(parts) if parts else fingerprinter.fingerprint([])
    return _Sample(prints, np.array(scopes, np.uint64), names, packed)


def _said(
    sample: _Sample, compared: int, pairs: NearestPairs, plan: Plan, in_force: int
) -> dict[str, Any]:
    """Return all that the sample shows, as the JSON that the command prints."""
    bins = [0] * _BINS
    for per_cent in pairs.similarity.tolist():
        bins[min(_BINS - 1, per_cent * _BINS // 100)] += 1
    thresholds = [
        {
            "similarity": similarity / 100,
            "dropped": pairs.dropped(similarity),
            "share": pairs.dropped(similarity) / compared,
        }
        for similarity in sorted({*_THRESHOLDS, in_force})
    ]
    return {
        "documents": len(sample.names),
        "compared": compared,
        "plan": plan.name,
        "in_force": in_force / 100,
        "histogram": bins,
        "thresholds": thresholds,
        "pairs": _about(sample, pairs, in_force),
    }


def _about(sample: _Sample, pairs: NearestPairs, limit: int) -> dict[str, list[dict[str, Any]]]:
    """Return the pairs that are nearest to a threshold, on either side."""
    ascending = sorted(range(len(pairs.rows)), key=lambda at: (int(pairs.similarity[at]), at))
    kept = [at for at in ascending if pairs.similarity[at] < limit][-_SHOWN:]
    dropped = [at for at in ascending if pairs.similarity[at] >= limit][:_SHOWN]
    return {
        "dropped": [_shown(sample, pairs, at) for at in dropped],
        "kept": [_shown(sample, pairs, at) for at in reversed(kept)],
    }


def _shown(sample: _Sample, pairs: NearestPairs, at: int) -> dict[str, Any]:
    row, of = int(pairs.rows[at]), int(pairs.of[at])
    return {
        "similarity": int(pairs.similarity[at]) / 100,
        "id": sample.names[row],
        "of": sample.names[of],
        **differing(sample.text(of), sample.text(row)),
    }


def differing(kept: str, other: str) -> dict[str, str]:
    """Return the words of two texts that the other has not, in their order, and how many characters
    more there are.
    """
    changed = [
        piece for piece in compare(kept, other).pieces if piece.kind in ("changed", "gone", "come")
    ]
    sides = {
        "of_words": [piece.left for piece in changed],
        "words": [piece.right for piece in changed],
    }
    return {
        name: _shortened(" … ".join(filter(None, (" ".join(one.split()) for one in words))))
        for name, words in sides.items()
    }


def _shortened(words: str) -> str:
    return printable(words, _EXTRACT) + (
        f" (and {len(words) - _EXTRACT:,} characters more)" if len(words) > _EXTRACT else ""
    )


def _print(said: dict[str, Any]) -> None:
    out = console()
    at = said["in_force"]
    most = max(1, *said["histogram"])
    rows = [
        [
            f"{place / _BINS:.2f} to {(place + 1) / _BINS:.2f}",
            f"{count:,}",
            "█" * -(-_BAR * count // most),
        ]
        for place, count in enumerate(said["histogram"])
    ]
    print_table(["nearest earlier document", "documents", ""], rows)
    out.print()
    print_table(
        ["threshold", "drops at most", "of those compared"],
        [
            [
                f"{one['similarity']:.2f}" + (" <" if one["similarity"] == at else ""),
                f"{one['dropped']:,}",
                f"{one['share']:.2%}",
            ]
            for one in said["thresholds"]
        ],
    )
    for title, name in (("Just similar enough", "dropped"), ("Just not", "kept")):
        what = f"{title}: {name} at {at:.2f}"
        out.print(
            f"\n{what}; the words that differ:"
            if said["pairs"][name]
            else f"\n{what}: no such pair"
        )
        for one in said["pairs"][name]:
            _print_pair(out, one)
    out.print(
        f"\nOf {said['documents']:,} documents, {said['compared']:,} of them with texts of their own."
    )


def _print_pair(out: Console, one: dict[str, Any]) -> None:
    out.print(f"  {one['similarity']:.2f}  {one['id']}: {one['words'] or '-'}")
    out.print(f"        {one['of']}: {one['of_words'] or '-'}")
