"""`calibrate`: how alike the documents of a sample are, what each threshold would drop, and which one suits them."""

from __future__ import annotations

import html
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_dedup.cli.options import BrokersOption, ConfigOption, DocumentFormat, JsonOption, SetOption, assigned, command
from stream_dedup.ground.document import DeadLetter
from stream_dedup.ground.errors import ConfigurationError, InputError
from stream_dedup.ground.plan import Plan, plan_for
from stream_dedup.ground.printable import printable
from stream_dedup.ground.sketch import SKETCH_VALUES, agreeing_min
from stream_dedup.ground.terminal import console, note, print_json, print_table, progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stream_dedup.fingerprinting import Prints, Recipe
    from stream_dedup.local.offline import OfflineDocument
    from stream_dedup.local.threshold import NearestPairs, ThresholdProposal
    from stream_dedup.settings.settings import Settings

DOCUMENTS_MIN = 50
_AT_ONCE = 2_000
_BINS = 20
_THRESHOLDS = (50, 55, 60, 65, 70, 75, 80, 85, 90)
_SHOWN = 3
_EXTRACT = 160
_BAR = 40


@command("calibrate", example="stream-dedup calibrate pages.jsonl --svg similarity.svg")
def calibrate_command(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE|DIR|-|TOPIC", help="Documents as `check` takes them, or a topic: its newest are read."),
    ],
    document_format: Annotated[
        DocumentFormat, typer.Option("--format", help="auto: by the name; standard input is jsonl.")
    ] = DocumentFormat.AUTO,
    text_field: Annotated[str | None, typer.Option("--text-field", metavar="PATH", help="Field that holds the text.")] = None,
    documents: Annotated[
        int,
        typer.Option("--documents", min=DOCUMENTS_MIN, max=200_000, help="Most documents to read; copies lie near each other."),
    ] = 20_000,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write the histogram there as a picture.")] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> int:
    """Propose from which similarity on documents are dropped, by a sample of your own, with pairs on either side to read."""
    overrides = dict(assigned(assignments))
    overrides |= {} if text_field is None else {"text_field": text_field}
    overrides |= {} if brokers is None else {"kafka_bootstrap_servers": brokers}
    return calibrate(overrides, config, target, document_format.value, documents, svg, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Sample:
    """The prints of a sample, and the beginning of each text; rows of both are documents in their order."""

    prints: Prints
    scopes: NDArray[np.uint64]
    names: list[str]
    extracts: list[str]


def calibrate(
    overrides: Mapping[str, object],
    config: Path | None,
    target: str,
    form: str,
    documents: int,
    svg: Path | None,
    *,
    as_json: bool,
) -> int:
    """Print what the sample says about the threshold; return 0.

    Raises:
        InputError: there is nothing to read, or too little; the picture cannot be written.
        ConfigurationError: a setting cannot be used, or the recipe makes no sketches.
    """
    from stream_dedup.local.offline import check_widths
    from stream_dedup.local.threshold import distinct_rows, nearest_pairs, propose
    from stream_dedup.settings.recipe import recipe_of

    settings, found = _documents(overrides, config, target, form, documents)
    recipe, plan = recipe_of(settings), settings.judging_plan
    if not recipe.sketch_values:
        raise ConfigurationError(
            f"The recipe {recipe.id} makes no sketches, so there is no similarity to choose a threshold of; set "
            "STREAM_DEDUP_RECIPE=words, or judge by distance."
        )
    is_other_plan = not plan.needs_sketch
    usual = plan_for(has_sketches=True)
    plan = usual if is_other_plan else plan
    check_widths(recipe, plan)
    with progress(f"reading {target}", None) as advance:
        sample = _sample(islice(found, documents), recipe, advance)
    rows = distinct_rows(sample.prints, sample.scopes, recipe.floor)
    if not sample.names:
        raise InputError(f"There is no document in {printable(target)}; name a file, a folder or a topic that holds some.")
    if len(rows) < DOCUMENTS_MIN:
        raise InputError(
            f"Of {len(sample.names):,} documents in {printable(target)} {len(rows):,} can be compared (those with different "
            f"texts, long enough), and fewer than {DOCUMENTS_MIN} say nothing about a threshold; give a larger sample."
        )
    pairs = nearest_pairs(sample.prints, sample.scopes, rows, plan)
    proposal = propose(pairs.agreeing, plan.similarity or usual.similarity)
    said = _said(sample, len(rows), pairs, proposal, plan, is_other_plan=is_other_plan)
    if svg is not None:
        _write(svg, said["histogram"], proposal.similarity)
    if as_json:
        print_json(said)
    else:
        _print(said)
    return 0


def _documents(
    overrides: Mapping[str, object], config: Path | None, target: str, form: str, most: int
) -> tuple[Settings, Iterator[OfflineDocument]]:
    """Return the settings that fit what is read, and the documents."""
    from stream_dedup.cli.check import decode_documents, settings_for
    from stream_dedup.inputs.sources import STANDARD_INPUT, find_files, read_documents
    from stream_dedup.settings.layers import load_settings

    if target != STANDARD_INPUT and not Path(target).exists():
        settings = load_settings(overrides, config)
        return settings, _of_topic(settings, target, most)
    files = find_files(target, form)
    settings = settings_for(files, overrides, config)
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
    from stream_dedup.inputs.decoder import DecodedDocument, Decoder
    from stream_dedup.kafka import Admin, read_partition, topic_bounds
    from stream_dedup.local.offline import OfflineDocument

    found = Admin(settings).topic_ids([topic]).get(topic)
    if found is None:
        raise InputError(
            f"There is neither a file nor a topic {printable(topic)!r}; name one of them, or - for standard input."
        )
    decoder = Decoder(settings)
    for partition, bounds in topic_bounds(settings, topic, found[1]).items():
        share = -(-most // found[1])
        for message in islice(read_partition(settings, topic, partition, max(bounds.low, bounds.end - share)), share):
            decoded = decoder.decode(message)
            if isinstance(decoded, DecodedDocument):
                name = f"{topic}-{partition}@{message.offset}".encode()
                yield OfflineDocument(decoded.id or name, decoded.text, decoded.scope)


def _sample(documents: Iterator[OfflineDocument], recipe: Recipe, advance: Any) -> _Sample:
    import numpy as np

    from stream_dedup.fingerprinting import Fingerprinter, Prints

    fingerprinter = Fingerprinter(recipe)
    parts, scopes, names, extracts = [], list[int](), list[str](), list[str]()
    while batch := list(islice(documents, _AT_ONCE)):
        texts = [str(one.text) for one in batch]
        parts.append(fingerprinter.fingerprint(texts))
        scopes += [one.scope for one in batch]
        names += [printable(one.id, 80) or f"number {len(names) + at}" for at, one in enumerate(batch)]
        extracts += [printable(" ".join(text[: 4 * _EXTRACT].split()), _EXTRACT) for text in texts]
        advance(len(batch), sum(map(len, texts)))
    prints = Prints.joined(parts) if parts else fingerprinter.fingerprint([])
    return _Sample(prints, np.array(scopes, np.uint64), names, extracts)


def _said(
    sample: _Sample, compared: int, pairs: NearestPairs, proposal: ThresholdProposal, plan: Plan, *, is_other_plan: bool
) -> dict[str, Any]:
    """Return all that the sample says, as the JSON that the command prints."""
    from stream_dedup.local.threshold import wilson

    bins = [0] * _BINS
    for agreeing in pairs.agreeing.tolist():
        bins[min(_BINS - 1, agreeing * _BINS // SKETCH_VALUES)] += 1
    thresholds = []
    for similarity in sorted({*_THRESHOLDS, proposal.similarity, plan.similarity} - {0}):
        dropped = pairs.dropped(similarity)
        low, high = wilson(dropped, compared)
        thresholds.append(
            {
                "similarity": similarity / 100,
                "dropped": dropped,
                "share": dropped / compared,
                "share_low": low,
                "share_high": high,
            }
        )
    limit = agreeing_min(proposal.similarity)
    ascending = sorted(range(len(pairs.rows)), key=lambda at: (int(pairs.agreeing[at]), at))
    kept = [at for at in ascending if pairs.agreeing[at] < limit][-_SHOWN:]
    dropped_first = [at for at in ascending if pairs.agreeing[at] >= limit][:_SHOWN]

    def shown(at: int) -> dict[str, Any]:
        row, of = int(pairs.rows[at]), int(pairs.of[at])
        return {
            "similarity": int(pairs.agreeing[at]) / SKETCH_VALUES,
            "id": sample.names[row],
            "text": sample.extracts[row],
            "of": sample.names[of],
            "of_text": sample.extracts[of],
        }

    plan_option = f" --plan {plan.name}" if is_other_plan else ""
    return {
        "documents": len(sample.names),
        "compared": compared,
        "plan": plan.name,
        "histogram": bins,
        "thresholds": thresholds,
        "pairs": {"dropped": [shown(at) for at in dropped_first], "kept": [shown(at) for at in reversed(kept)]},
        "proposed": {
            "similarity": proposal.similarity / 100,
            "low": proposal.low / 100,
            "high": proposal.high / 100,
            "pairs": proposal.pairs,
            "is_sure": proposal.is_sure,
        },
        "declare": f"stream-dedup declare{plan_option} --similarity {proposal.similarity / 100:.2f}",
    }


def _print(said: dict[str, Any]) -> None:
    out, proposed = console(), said["proposed"]
    most = max(1, *said["histogram"])
    rows = [
        [f"{at / _BINS:.2f} to {(at + 1) / _BINS:.2f}", f"{count:,}", "█" * -(-_BAR * count // most)]
        for at, count in enumerate(said["histogram"])
    ]
    print_table(["nearest earlier document", "documents", ""], rows)
    out.print()
    print_table(
        ["threshold", "drops at most", "of those compared"],
        [
            [
                f"{one['similarity']:.2f}" + (" <" if one["similarity"] == proposed["similarity"] else ""),
                f"{one['dropped']:,}",
                f"{one['share']:.2%} ({one['share_low']:.2%} to {one['share_high']:.2%})",
            ]
            for one in said["thresholds"]
        ],
    )
    for title, name in (("Just similar enough: dropped", "dropped"), ("Just not: kept", "kept")):
        out.print(f"\n{title}" if said["pairs"][name] else f"\n{title}: no such pair")
        for one in said["pairs"][name]:
            out.print(f"  {one['similarity']:.2f}  {one['id']}: {one['text']}")
            out.print(f"        {one['of']}: {one['of_text']}")
    out.print(f"\n{_sentence(said)}\n\n  {said['declare']}")


def _sentence(said: dict[str, Any]) -> str:
    """Return what is proposed and how sure that is."""
    one = said["proposed"]
    of = f"of {said['documents']:,} documents, {said['compared']:,} of them with texts of their own"
    if one["low"] == one["high"] and not one["is_sure"]:
        return (
            f"No proposal: {one['pairs']:,} pairs are .50 alike or more, {of}. That is too few, so {one['similarity']:.2f} "
            "stays; give a larger sample."
        )
    sure = "" if one["is_sure"] else " That is not sure: read the pairs, or give a larger sample."
    span = f"{one['low']:.2f} to {one['high']:.2f} in 95 of 100 resampled ones"
    return (
        f"Proposed: {one['similarity']:.2f}, where fewest pairs are decided by a little; {span}. From {one['pairs']:,} pairs "
        f"{of}.{sure}"
    )


def _write(path: Path, bins: Sequence[int], similarity: int) -> None:
    try:
        path.write_text(_picture(bins, similarity), encoding="utf-8")
    except OSError as error:
        raise InputError(f"The picture {path} cannot be written: {error.strerror}. Name another file with --svg.") from error


def _picture(bins: Sequence[int], similarity: int) -> str:
    """Return the histogram as SVG that stands by itself."""
    width, height, left, foot = 640, 240, 50, 30
    most, wide = max(1, *bins), (width - left) / len(bins)
    at = left + (width - left) * similarity / 100
    title = html.escape(f"Nearest earlier documents by similarity; proposed threshold {similarity / 100:.2f}")
    parts = [f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for place, count in enumerate(bins):
        tall = (height - foot - 20) * count / most
        colour = "#b45309" if (place + 0.5) / len(bins) >= similarity / 100 else "#64748b"
        told = f"{place / len(bins):.2f} to {(place + 1) / len(bins):.2f}: {count:,}"
        parts.append(
            f'<rect x="{left + place * wide + 1:.1f}" y="{height - foot - tall:.1f}" width="{wide - 2:.1f}" '
            f'height="{tall:.1f}" fill="{colour}"><title>{told}</title></rect>'
        )
    parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="6" y2="{height - foot}" stroke="#000" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{at - 4:.1f}" y="14" text-anchor="end">{similarity / 100:.2f}</text>')
    parts.append(f'<text x="{left - 6}" y="24" text-anchor="end">{most:,}</text>')
    parts += [
        f'<text x="{left + (width - left) * share / 100:.1f}" y="{height - 10}" '
        f'text-anchor="{"end" if share == 100 else "middle"}">{share / 100:g}</text>'
        for share in (0, 25, 50, 75, 100)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-family="sans-serif" '
        f'font-size="12"><title>{title}</title>{"".join(parts)}</svg>\n'
    )
