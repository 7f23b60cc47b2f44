"""`explain A B`: why two documents are, or are not, duplicates of each other, by the settings'
recipe and plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from stream_dedup.cli.options import Given, JsonOption, command
from stream_dedup.domain.better import BetterRule, beats
from stream_dedup.domain.document import DeadLetter, Message, Reason
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.printable import counted, printable
from stream_dedup.domain.related import Origin, in_words, relation_of
from stream_dedup.domain.sketch import SURE, as_text, per_cent, similarity
from stream_dedup.domain.terminal import console, print_json, print_table
from stream_dedup.files.offline import check_widths
from stream_dedup.fingerprinting import (
    Fingerprinter,
    Recipe,
    SiteHasher,
    explain_features,
    number_of,
)
from stream_dedup.index.rules.reasons import reason_of_duplicate
from stream_dedup.inputs.decoder import PLAIN_TEXT, DecodedDocument, Decoder
from stream_dedup.inputs.sources import SourceFile, need_one_text
from stream_dedup.orders.orders import OrderDependencies, record_at
from stream_dedup.orders.rewind import POSITION_FORM
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

_GONE = "Name a document that is still there, or give a file with its text."


@command("explain", example="stream-dedup explain documents-3@8812 documents-0@17", flags=("plan",))
def explain_command(
    given: Given,
    first: Annotated[str, typer.Argument(metavar="A", help="File or position: documents-3@8812.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other document.")],
    rows: Annotated[
        int, typer.Option("--rows", min=0, help="Number of differing features to show.")
    ] = 20,
    as_json: JsonOption = False,
) -> int:
    """Explain why two documents are copies or not: similarity, distance, thresholds, and the
    features that differ most.
    """
    settings = given.quiet_settings()
    recipe = recipe_of(settings)
    check_widths(recipe, settings.judging_plan)
    documents = [
        _read(settings, document, takes_vectors=recipe.method.takes_vectors)
        for document in (first, second)
    ]
    hasher = SiteHasher(recipe)
    prints = Fingerprinter(recipe).fingerprint([document.text for document in documents])
    sides = [
        _Side(
            name,
            document,
            number_of(prints.prints[row]),
            prints.digests[row].tobytes(),
            int(prints.features[row]),
            bool(prints.empty[row]),
            prints.sketches[row].tobytes(),
            hasher.origin_of(document.site, document.title, document.id),
        )
        for row, (name, document) in enumerate(zip((first, second), documents, strict=True))
    ]
    found = compare(recipe, settings.judging_plan, sides[0], sides[1], rows)
    found["rule"] = settings.better
    found["better"] = found["verdict"] == "duplicate" and _is_better(settings, sides[1], sides[0])
    if as_json:
        print_json(found)
    else:
        _print(found)
    return 0


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two: what it is called, what it holds, its print as a number, its sketch, empty if
    there is none, and where it is from.
    """

    name: str
    document: DecodedDocument
    number: int
    digest: bytes
    features: int
    is_empty: bool
    sketch: bytes
    origin: Origin


def _fields(recipe: Recipe, side: _Side) -> dict[str, object]:
    return {
        "name": side.name,
        "id": side.document.id.decode("utf-8", "replace"),
        "fingerprint": f"{side.number:0{recipe.width // 4}x}",
        "features": side.features,
        "characters": len(side.document.text),
        "scope": f"{side.document.scope:016x}",
        "site": side.document.site,
        "title": side.document.title,
    }


def compare(recipe: Recipe, plan: Plan, first: _Side, second: _Side, rows: int) -> dict[str, Any]:
    """Return verdict, distance, threshold, blocks and the features that differ most, as fields for
    JSON.
    """
    relation = relation_of(first.origin, second.origin)
    reason, why = _reason(recipe, plan, first, second)
    weights = (
        explain_features(recipe, first.document.text),
        explain_features(recipe, second.document.text),
    )
    names = weights[0].keys() | weights[1].keys()
    pairs = [(name, weights[0].get(name, 0.0), weights[1].get(name, 0.0)) for name in names]
    differing = sorted(
        (pair for pair in pairs if pair[1] != pair[2]),
        key=lambda pair: (-abs(pair[1] - pair[2]), pair[0]),
    )
    larger = sum(max(abs(a), abs(b)) for _, a, b in pairs)
    difference = first.number ^ second.number
    return {
        "verdict": "duplicate" if reason is not None else "unique",
        "reason": None if reason is None else reason.label,
        "why": why,
        "distance": plan.distance(first.number, second.number),
        "threshold": plan.threshold_of(min(first.features, second.features)),
        "similarity": round(similarity(first.sketch, second.sketch), 4) if first.sketch else None,
        "similarity_asked": plan.similarities[relation] / 100,
        "bands_shared": [
            first.sketch[start:end] == second.sketch[start:end] for start, end in plan.sketch_bounds
        ],
        "recipe": recipe.id,
        "plan": plan.id,
        "radius": plan.radius,
        "blocks": [
            {
                "first_bit": begin,
                "end_bit": end,
                "distance": (difference >> begin & ((1 << (end - begin)) - 1)).bit_count(),
            }
            for begin, end in plan.bounds
        ],
        "floor": recipe.floor,
        "documents": [_fields(recipe, side) for side in (first, second)],
        "features_shared": sum(1 for _, a, b in pairs if a and b),
        "features_all": len(pairs),
        "weight_shared": round(1 - sum(abs(a - b) for _, a, b in pairs) / larger, 4)
        if larger
        else None,
        "differing": [
            {"feature": name, "weights": [round(a, 4), round(b, 4)]}
            for name, a, b in differing[:rows]
        ],
        "differing_all": len(differing),
    }


def _is_better(settings: Settings, copy: _Side, kept: _Side) -> bool:
    """Return whether the second, as a copy of the first, is better than it by the settings'
    rule.
    """
    later, best = ((side.features, side.document.time_ms) for side in (copy, kept))
    return beats(BetterRule.named(settings.better), later, best)


def _reason(recipe: Recipe, plan: Plan, first: _Side, second: _Side) -> tuple[Reason | None, str]:
    """Return the reason if they are duplicates, and a sentence either way."""
    if first.is_empty or second.is_empty:
        return (
            None,
            (
                "One of them has no text once it is normalised; such a document is passed on as unique "
                "(empty)."
            ),
        )
    if first.document.scope != second.document.scope:
        return (
            None,
            (
                "They are in different scopes (SCOPE_FIELD), and only documents of one scope are "
                "compared."
            ),
        )
    same_id = bool(first.document.id) and first.document.id == second.document.id
    if first.digest == second.digest:
        reason = reason_of_duplicate(same_text=True, same_id=same_id)
        return (
            reason,
            "Once normalised they are the same text; the digest tells, and no distance is needed.",
        )
    if min(first.features, second.features) < recipe.floor:
        return None, (
            f"One of them has fewer than {recipe.floor} features, where a print says too little: "
            "only an "
            "equal text would be a duplicate (too-short)."
        )
    smaller, larger = sorted((first.features, second.features))
    threshold = plan.threshold_of(smaller)
    distance = plan.distance(first.number, second.number)
    origins = first.origin, second.origin
    relation = relation_of(*origins)
    asked_for, share = plan.similarities[relation], per_cent(first.sketch, second.sketch)
    sites = first.document.site, second.document.site
    alike = in_words(share, relation, asked_for, sites, has_same_id=same_id) if asked_for else ""
    sketches, features = (first.sketch, second.sketch), (first.features, second.features)
    if plan.within_reach(first.number, second.number, features, sketches, origins):
        may = "up to" if distance <= threshold else f"from similarity {as_text(SURE)} on more than"
        bits = f"{distance} of {plan.width} bits differ, and {may} {threshold} may."
        return reason_of_duplicate(same_text=False, same_id=same_id), f"{alike} {bits}".lstrip()
    if share < asked_for:
        return None, alike
    if distance > threshold and (share < SURE or not asked_for):
        return None, f"{distance} of {plan.width} bits differ, and only up to {threshold} may."
    if 100 * smaller < plan.ratio * larger:
        return None, (
            f"{distance} of {plan.width} bits differ, which is near enough, but the shorter has "
            f"{smaller:,} features and the "
            f"longer {larger:,}, and at least {plan.ratio} % of these are asked for."
        )
    of_sketch = ", and no block of the sketches is equal" if plan.bands else ""
    return None, (
        f"{distance} of {plan.width} bits differ, which is near enough, but no block differs in "
        f"{plan.radius} bits or "
        f"fewer{of_sketch}, so the index does not look there."
    )


def _read(settings: Settings, target: str, *, takes_vectors: bool) -> DecodedDocument:
    path = Path(target)
    try:
        if path.is_file():
            need_one_text(path)
            return document_in(settings, path, takes_vectors=takes_vectors)
    except OSError as error:
        raise InputError(f"{target} cannot be read: {error.strerror or error}.") from error
    if match := POSITION_FORM.match(target):
        return _read_record(
            settings,
            match["topic"],
            int(match["partition"]),
            int(match["offset"]),
            takes_vectors=takes_vectors,
        )
    raise InputError(
        f"{target!r:.200} is neither a file nor a record's position; write a position as "
        "documents-3@8812, or 3@8812."
    )


def document_in(settings: Settings, path: Path, *, takes_vectors: bool) -> DecodedDocument:
    """Read a text file, the main text of a page, or a .json file as a record with these input
    settings is read.
    """
    form: Mapping[str, str | None] = (
        {"value_format": "json"} if path.suffix == ".json" else PLAIN_TEXT
    )
    if SourceFile(path, path.name, "text").is_page:
        form = {**form, "text_is": "html"}
    message = Message(
        "file", 0, 0, str(path).encode("utf-8", "replace"), path.read_bytes(), None, []
    )
    return _decode(
        settings.model_copy(update=form), message, str(path), takes_vectors=takes_vectors
    )


def _read_record(
    settings: Settings, topic: str | None, partition: int, offset: int, *, takes_vectors: bool
) -> DecodedDocument:
    topic = settings.topic_names.documents if topic is None else topic
    message = record_at(OrderDependencies(), settings, topic, partition, offset, _GONE)
    return _decode(settings, message, f"{topic}-{partition}@{offset}", takes_vectors=takes_vectors)


def _decode(
    settings: Settings, message: Message, where: str, *, takes_vectors: bool
) -> DecodedDocument:
    if takes_vectors and settings.value_format != "json":
        raise InputError(
            f"{where} is a text, and the recipe takes vectors: give .json files, or set "
            "VALUE_FORMAT=json."
        )
    decoded = Decoder(settings, takes_vectors=takes_vectors).decode(message)
    if isinstance(decoded, DeadLetter):
        raise InputError(f"{where} is a dead letter ({decoded.stage}): {decoded.message}")
    if isinstance(decoded, Reason):
        raise InputError(f"{where} is passed on without being judged ({decoded.label}).")
    return decoded


def _print(found: dict[str, Any]) -> None:
    page = console()
    head = Text(
        found["verdict"], style="bold green" if found["verdict"] == "duplicate" else "bold yellow"
    )
    page.print(
        head
        + Text(
            f" ({found['reason']}): {found['why']}" if found["reason"] else f": {found['why']}",
            style="",
        )
    )
    page.print()
    print_table(
        ["", "print", "features", "characters", "id"],
        [
            [
                document["name"],
                document["fingerprint"],
                str(document["features"]),
                str(document["characters"]),
                document["id"],
            ]
            for document in found["documents"]
        ],
    )
    page.print()
    print_table(
        ["", ""],
        [
            ["recipe", found["recipe"]],
            ["plan", found["plan"]],
            *_similarity(found),
            ["distance", f"{found['distance']} bits; up to {found['threshold']} is near"],
            ["blocks", _blocks(found)],
            ["features", f"{found['features_shared']:,} of {found['features_all']:,} in both"],
            *_better(found),
            [
                "weight",
                "none"
                if found["weight_shared"] is None
                else f"{found['weight_shared']:.1%} in both",
            ],
        ],
    )
    if found["differing"]:
        page.print()
        rows = [
            [printable(feature["feature"]), *(_weight(weight) for weight in feature["weights"])]
            for feature in found["differing"]
        ]
        print_table(["features that differ most", "first", "second"], rows)
        left = found["differing_all"] - len(found["differing"])
        if left:
            page.print(
                f"... and {left:,} more; --rows N shows more, --json all that are asked for.",
                style="dim",
            )


def _better(found: dict[str, Any]) -> list[list[str]]:
    """Return the row that says whether the second, as a copy, is the better one; none where it is
    no copy.
    """
    if found["verdict"] != "duplicate":
        return []
    return [
        [
            "better",
            (
                f"{'the second is' if found['better'] else 'the second is not'}, by the rule "
                f"{found['rule']}"
            ),
        ]
    ]


def _similarity(found: dict[str, Any]) -> list[list[str]]:
    """Return the rows about the sketches; none where the recipe makes none."""
    if found["similarity"] is None:
        return []
    asked = (
        f"; from {found['similarity_asked']:.0%} on is near" if found["similarity_asked"] else ""
    )
    rows = [["similarity", f"{found['similarity']:.0%} by their sketches{asked}"]]
    bands = found["bands_shared"]
    return (
        [*rows, ["bands", f"{sum(bands)} of {len(bands)} blocks of the sketches are equal"]]
        if bands
        else rows
    )


def _blocks(found: dict[str, Any]) -> str:
    blocks = found["blocks"]
    near = sum(1 for block in blocks if block["distance"] <= found["radius"])
    differences = " ".join(str(block["distance"]) for block in blocks)
    return f"{near} of {len(blocks)} within {counted(found['radius'], 'bit')}; differences {differences}"


def _weight(weight: float) -> str:
    return "-" if weight == 0 else f"{weight:.2f}" if math.isfinite(weight) else str(weight)
