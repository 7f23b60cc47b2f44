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

from stream_dedup.cli.check import decode_documents, settings_for
from stream_dedup.cli.options import (
    DocumentFormat,
    FormatOption,
    Given,
    JsonOption,
    command,
)
from stream_dedup.console.differences import SHOWN, compare
from stream_dedup.fingerprinting import Recipe
from stream_dedup.ground.document import DeadLetter
from stream_dedup.ground.errors import ConfigurationError, InputError
from stream_dedup.ground.plan import PLANS, Plan
from stream_dedup.ground.printable import printable
from stream_dedup.ground.terminal import console, note, print_json, print_table, progress
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.inputs.sources import STANDARD_INPUT, find_files, not_read, read_documents
from stream_dedup.kafka import Admin, read_partition, topic_bounds
from stream_dedup.local.offline import (
    OfflineDocument,
    PrintedBatch,
    check_widths,
    fingerprinted,
)
from stream_dedup.local.threshold import (
    THRESHOLDS,
    NearestPairs,
    Numbers,
    distinct_rows,
    nearest_pairs,
)
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

DOCUMENTS_MIN = 50
_ANSWER_SECONDS = 5.0  # who mistyped the name of a file waits no longer
_BINS = 20
_SHOWN = 3
_EXTRACT = 160
_BAR = 24
_SITES = ("two_sites", "one_site")
_NAMES = {
    "similarity": "Another site, or the same id",
    "unsure": "One site and title, or a site unknown",
    "same_site": "One site, a title unknown",
    "other_title": "One site, different titles",
}


@command(
    "calibrate",
    example="stream-dedup calibrate pages.jsonl --documents 50000",
    flags=("text_field",),
)
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
    """Show how alike the documents of a sample are, what each threshold drops, and pairs on either
    side of it to read.
    """
    settings, found = _documents(given, target, document_format.value, documents)
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
    rows = distinct_rows(sample.printed.prints, sample.printed.scopes, recipe.floor)
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
    said = _look(sample, rows, plan)
    if as_json:
        print_json(said)
    else:
        _print(said)
    return 0


@dataclass(frozen=True, slots=True)
class _Sample:
    """The documents of a sample with their prints, their names, and what is compared of each text,
    packed.
    """

    printed: PrintedBatch
    names: list[str]
    packed: list[bytes]


def _documents(
    given: Given, target: str, form: str, most: int
) -> tuple[Settings, Iterator[OfflineDocument]]:
    """Return the settings that fit what is read, and the documents."""
    if target != STANDARD_INPUT and not Path(target).exists():
        settings = given.quiet_settings()
        return settings, _of_topic(settings, target, most)
    others: list[str] = []
    files = find_files(target, form, others)
    if others:
        note(not_read(others))
    settings = settings_for(files, given)
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
                yield OfflineDocument(
                    decoded.id or name,
                    decoded.text,
                    decoded.scope,
                    site=decoded.site,
                    title=decoded.title,
                )


def _sample(documents: Iterator[OfflineDocument], recipe: Recipe, advance: Any) -> _Sample:
    names, packed = list[str](), list[bytes]()

    def noted() -> Iterator[OfflineDocument]:
        for one in documents:
            text = str(one.text)
            names.append(printable(one.id, 80) or f"number {len(names)}")
            packed.append(zlib.compress(text[:SHOWN].encode("utf-8", "replace"), 1))
            advance(1, len(text))
            yield one

    return _Sample(PrintedBatch.joined(recipe, list(fingerprinted(noted(), recipe))), names, packed)


def _look(sample: _Sample, rows: Numbers, plan: Plan) -> dict[str, Any]:
    """Return all that the sample shows, as the JSON that the command prints."""
    found = nearest_pairs(sample.printed, rows, plan)
    asked = (plan.similarities[0], *plan.similarities[2:])
    return {
        "documents": len(sample.names),
        "compared": len(rows),
        "plan": plan.name,
        "two_sites": _histogram(found[:1], len(sample.names)),
        "one_site": _histogram(found[1:], len(sample.names)),
        "thresholds": [
            {
                "name": name,
                "similarity": limit / 100,
                "drops": int((pairs.similarity >= limit).sum()),
                "of": len(rows),
                **_about(sample, pairs, limit),
            }
            for name, limit, pairs in zip(THRESHOLDS, asked, found, strict=True)
        ],
    }


def _histogram(kinds: list[NearestPairs], count: int) -> list[int]:
    """Return how many documents have their most similar earlier one in each twentieth."""
    best = np.full(count, -1)
    for pairs in kinds:
        best[pairs.rows] = np.maximum(best[pairs.rows], pairs.similarity)
    bins = np.minimum(_BINS - 1, best[best >= 0] * _BINS // 100)
    return [int(one) for one in np.bincount(bins, minlength=_BINS)]


def _about(sample: _Sample, pairs: NearestPairs, limit: int) -> dict[str, list[dict[str, Any]]]:
    """Return the pairs that are nearest to a threshold, on either side."""
    order = np.argsort(pairs.similarity, kind="stable")
    first = int(np.searchsorted(pairs.similarity[order], limit))
    sides = {"dropped": order[first : first + _SHOWN], "kept": order[:first][::-1][:_SHOWN]}
    return {
        name: [
            {
                "similarity": int(pairs.similarity[at]) / 100,
                "id": sample.names[row := int(pairs.rows[at])],
                "of": sample.names[of := int(pairs.of[at])],
                **differing(*(_text(sample, one) for one in (of, row))),
            }
            for at in chosen.tolist()
        ]
        for name, chosen in sides.items()
    }


def _text(sample: _Sample, row: int) -> str:
    return zlib.decompress(sample.packed[row]).decode("utf-8", "replace")


def differing(kept: str, other: str) -> dict[str, str]:
    """Return the words of two texts that the other has not, in their order, shortened."""
    changed = [
        one for one in compare(kept, other).pieces if one.kind in ("changed", "gone", "come")
    ]
    sides = {"of_words": [one.left for one in changed], "words": [one.right for one in changed]}
    found = {name: (" ".join(one.split()) for one in words) for name, words in sides.items()}
    return {name: printable(" … ".join(filter(None, one)), _EXTRACT) for name, one in found.items()}


def _print(said: dict[str, Any]) -> None:
    out, most = console(), max(1, *said["two_sites"], *said["one_site"])
    rows = [
        [f"{at / _BINS:.2f} to {(at + 1) / _BINS:.2f}"]
        + [f"{said[name][at]:,} {'█' * -(-_BAR * said[name][at] // most)}" for name in _SITES]
        for at in range(_BINS)
    ]
    print_table(["nearest earlier document", "of another site", "of one site, or unknown"], rows)
    for one in said["thresholds"]:
        share = one["drops"] / one["of"]
        out.print(
            f"\n{_NAMES[one['name']]}: {one['similarity']:.2f} drops {one['drops']:,} of "
            f"{one['of']:,} documents ({share:.2%}) at most; the words that differ:"
        )
        for name in ("dropped", "kept"):
            for pair in one[name]:
                words = pair["words"] or "-", pair["of_words"] or "-"
                out.print(f"  {name:7}  {pair['similarity']:.2f}  {pair['id']}: {words[0]}")
                out.print(f"                 {pair['of']}: {words[1]}")
    out.print(
        f"\nOf {said['documents']:,} documents, {said['compared']:,} of them with texts of their own."
    )
