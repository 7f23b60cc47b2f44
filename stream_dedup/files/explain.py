"""Explain why two documents are copies or not under a recipe and a plan, for the command `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stream_dedup.audit.scan import ComparedText, PlanRules
from stream_dedup.domain.better_copy import BetterRule, beats
from stream_dedup.domain.document import Reason
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.printable import counted
from stream_dedup.domain.relations import Origin, in_words, relation_of
from stream_dedup.domain.sketch import SURE, as_text, per_cent
from stream_dedup.fingerprinting import (
    Fingerprinter,
    Recipe,
    SiteHasher,
    explain_features,
    number_of,
)
from stream_dedup.index.rules.reasons import reason_of_duplicate
from stream_dedup.inputs.decoder import DecodedDocument


@dataclass(frozen=True, slots=True)
class ComparedDocument:
    """One of the two documents. `number`: its fingerprint as a number; `sketch`: empty if the recipe
    computes none.
    """

    name: str
    document: DecodedDocument
    number: int
    digest: bytes
    features: int
    is_empty: bool
    sketch: bytes
    origin: Origin

    def to_fields(self, recipe: Recipe) -> dict[str, object]:
        """Return the document as an object of the command's JSON."""
        return {
            "name": self.name,
            "id": self.document.id.decode("utf-8", "replace"),
            "fingerprint": f"{self.number:0{recipe.width // 4}x}",
            "features": self.features,
            "characters": len(self.document.text),
            "scope": f"{self.document.scope:016x}",
            "site": self.document.site,
            "title": self.document.title,
        }


def explain_pair(
    names: Sequence[str],
    documents: Sequence[DecodedDocument],
    recipe: Recipe,
    plan: Plan,
    better: str,
    rows: int,
) -> dict[str, Any]:
    """Return the fields of the command's JSON: verdict, reason, distance, threshold, blocks and the
    `rows` features that differ most.

    `names`, `documents`: the two documents, the earlier one first. `better`: the rule that says which
    copy is better.
    """
    hasher = SiteHasher(recipe)
    prints = Fingerprinter(recipe).fingerprint([document.text for document in documents])
    first, second = (
        ComparedDocument(
            name,
            document,
            number_of(prints.prints[row]),
            prints.digests[row].tobytes(),
            int(prints.features[row]),
            bool(prints.empty[row]),
            prints.sketches[row].tobytes(),
            hasher.origin_of(document.site, document.title, document.id),
        )
        for row, (name, document) in enumerate(zip(names, documents, strict=True))
    )
    reason, explanation = _judge_pair(recipe, plan, first, second)
    later_copy, kept = ((side.features, side.document.time_ms) for side in (second, first))
    difference = first.number ^ second.number
    return {
        "verdict": "duplicate" if reason is not None else "unique",
        "reason": None if reason is None else reason.label,
        "explanation": explanation,
        "distance": plan.distance(first.number, second.number),
        "distance_threshold": plan.threshold_of(min(first.features, second.features)),
        "similarity": per_cent(first.sketch, second.sketch) / 100 if first.sketch else None,
        "similarity_threshold": plan.similarities[relation_of(first.origin, second.origin)] / 100,
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
        "documents": [side.to_fields(recipe) for side in (first, second)],
        **_differing_features(recipe, first, second, rows),
        "rule": better,
        "better": reason is not None and beats(BetterRule.named(better), later_copy, kept),
    }


def _differing_features(
    recipe: Recipe, first: ComparedDocument, second: ComparedDocument, rows: int
) -> dict[str, Any]:
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
    return {
        "features_shared": sum(1 for _, a, b in pairs if a and b),
        "features_total": len(pairs),
        "weight_shared": round(1 - sum(abs(a - b) for _, a, b in pairs) / larger, 4)
        if larger
        else None,
        "differing": [
            {"feature": name, "weights": [round(a, 4), round(b, 4)]}
            for name, a, b in differing[:rows]
        ],
        "differing_total": len(differing),
    }


def _judge_pair(
    recipe: Recipe, plan: Plan, first: ComparedDocument, second: ComparedDocument
) -> tuple[Reason | None, str]:
    """Return the reason (None if the second document is not a duplicate), and an explanation."""
    if first.is_empty or second.is_empty:
        return None, "One has no text after normalisation; such a document is unique (empty)."
    if first.document.scope != second.document.scope:
        return None, (
            "They have different scopes (SCOPE_FIELD); only documents of the same scope are compared."
        )
    same_id = bool(first.document.id) and first.document.id == second.document.id
    if first.digest == second.digest:
        reason = reason_of_duplicate(same_text=True, same_id=same_id)
        return reason, "Their texts are equal after normalisation, so no distance is needed."
    if min(first.features, second.features) < recipe.floor:
        return None, (
            f"One has fewer than {recipe.floor} features, too few for a reliable "
            "fingerprint: only an equal text would be a duplicate (too-short)."
        )
    smaller, larger = sorted((first.features, second.features))
    threshold = plan.threshold_of(smaller)
    distance = plan.distance(first.number, second.number)
    origins = first.origin, second.origin
    relation = relation_of(*origins)
    required, similarity = plan.similarities[relation], per_cent(first.sketch, second.sketch)
    sites = first.document.site, second.document.site
    sentence = (
        in_words(similarity, relation, required, sites, has_same_id=same_id) if required else ""
    )
    texts = [
        ComparedText.of_number(side.number, side.features, side.sketch, side.origin)
        for side in (first, second)
    ]
    if PlanRules(plan).is_near(*texts):
        limit = (
            f"at most {threshold} may differ"
            if distance <= threshold
            else f"at similarity {as_text(SURE)} or more, more than {threshold} may differ"
        )
        bits = f"{distance} of {plan.width} bits differ; {limit}."
        return reason_of_duplicate(same_text=False, same_id=same_id), f"{sentence} {bits}".lstrip()
    if similarity < required:
        return None, sentence
    if distance > threshold and (similarity < SURE or not required):
        return None, f"{distance} of {plan.width} bits differ; at most {threshold} may differ."
    if 100 * smaller < plan.ratio * larger:
        return None, (
            f"{distance} of {plan.width} bits differ, which is few enough, but the shorter text has "
            f"{smaller:,} features and the longer {larger:,}; at least {plan.ratio} % of these are "
            "required."
        )
    sketch_part = ", and no block of the sketches is equal" if plan.bands else ""
    return None, (
        f"{distance} of {plan.width} bits differ, which is few enough, but no block differs in "
        f"{plan.radius} bits or fewer{sketch_part}, so the index does not find the pair."
    )


def to_rows(fields: dict[str, Any]) -> list[list[str]]:
    """Return the fields of `explain_pair` as rows (name, text) of a table."""
    rows = [["recipe", fields["recipe"]], ["plan", fields["plan"]]]
    if fields["similarity"] is not None:
        required = fields["similarity_threshold"]
        threshold = f"; copies: {required:.2f} or more" if required else ""
        rows.append(["similarity", f"{fields['similarity']:.2f}{threshold}"])
        if bands := fields["bands_shared"]:
            rows.append(["bands", f"{sum(bands)} of {len(bands)} blocks of the sketches are equal"])
    distances, radius = [block["distance"] for block in fields["blocks"]], fields["radius"]
    near = sum(distance <= radius for distance in distances)
    rows += [
        ["distance", f"{fields['distance']} bits; copies: at most {fields['distance_threshold']}"],
        [
            "blocks",
            f"{near} of {len(distances)} within {counted(radius, 'bit')}; differences "
            + " ".join(map(str, distances)),
        ],
        ["features", f"{fields['features_shared']:,} of {fields['features_total']:,} in both"],
    ]
    if fields["verdict"] == "duplicate":
        better = "the second" if fields["better"] else "the first"
        rows.append(["better copy", f"{better}, by the rule {fields['rule']}"])
    weight = fields["weight_shared"]
    return [*rows, ["weight", "none" if weight is None else f"{weight:.1%} in both"]]
