"""Find near texts in a list that is searched from its beginning. This module imports nothing of the
index; a plan is its fields in the log.

The second implementation of the other rules is `stream_dedup/audit/judgements.py`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

Text = tuple[int, int, bytes, tuple[int, int, int]]
"""Print, features, sketch; and site, title and id by their hashes, 0 for an unknown one."""
BYTES = 120


def near(plan: dict[str, Any], new: Text, peers: Iterable[Text]) -> Iterator[int]:
    """Yield the positions of the near peers: those that share a key, are among the first or last
    entries of that key, and are similar."""
    return (place for place, relation in judge_peers(plan, new, peers) if relation == "near")


def siblings(plan: dict[str, Any], new: Text, peers: Iterable[Text]) -> Iterator[int]:
    """Yield the positions of the peers that would be near if they were of another site."""
    return (place for place, relation in judge_peers(plan, new, peers) if relation == "sibling")


def judge_peers(
    plan: dict[str, Any], new: Text, peers: Iterable[Text]
) -> Iterator[tuple[int, str]]:
    """Yield the positions of the peers that share a key, with near, sibling or neither."""
    texts = list(peers)
    by_key: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        for key in shared(plan, new, text):
            by_key[key].append(place)
    asked = plan.get("asked", 0)
    kept = [
        places
        if not asked
        else places[: (asked + 1) // 2] + places[(asked + 1) // 2 :][::-1][: asked // 2]
        for places in by_key.values()
    ]
    for place in sorted(set(itertools.chain.from_iterable(kept))):
        yield place, likeness(plan, new, texts[place])


def shared(plan: dict[str, Any], text: Text, other: Text) -> set[tuple[str, int]]:
    """Return the keys that two texts share, by number: of the print within the radius, and blocks
    of the sketch."""
    bits = differing(plan, text, other)
    blocks, bands = plan["blocks"], plan.get("bands", 0)
    cuts = [plan["width"] * block // max(1, blocks) for block in range(blocks + 1)]
    errors = [bits[first:end].count("1") for first, end in itertools.pairwise(cuts)]
    keys = itertools.combinations(errors, plan.get("key_blocks", 1))
    found = {
        ("print", number)
        for number, key in enumerate(keys)
        if sum(key) <= plan["radius"] and blocks
    }
    if not blocks and not bands:
        found.add(("all", 0))
    size = 80 // bands if bands else 0
    parts = [(block, slice(block * size, block * size + size)) for block in range(bands)]
    return found | {("sketch", block) for block, part in parts if text[2][part] == other[2][part]}


def likeness(plan: dict[str, Any], text: Text, other: Text) -> str:
    """Return what two texts are if they are found: near, sibling or neither."""
    smaller, larger = sorted((text[1], other[1]))
    threshold = next(
        (bound for below, bound in plan.get("by_length", []) if smaller < below), plan["threshold"]
    )
    if 100 * smaller < plan.get("ratio", 0) * larger:
        return ""
    is_far = differing(plan, text, other).count("1") > threshold
    least = plan.get("similarity", 0)
    by_site = [plan.get(name, 0) for name in ("unsure", "same_site", "other_title")]
    if not least and not any(by_site):
        return "" if is_far else "near"
    share = 100 * similarity(text[2], other[2])
    if share < least or (is_far and share < 85):
        return ""
    (site, title, name), (its_site, its_title, its_name) = text[3], other[3]
    is_one_site, are_titled = site == its_site != 0, bool(title and its_title)
    asked = least
    if is_one_site and are_titled:
        asked = by_site[0] if title == its_title else by_site[2]
    elif is_one_site:
        asked = by_site[1]
    elif not site or not its_site:
        asked = by_site[0]
    if name == its_name != 0 or share >= asked:
        return "near"
    return "sibling" if is_one_site else ""


def similarity(sketch: bytes, other: bytes) -> Fraction:
    """Return the mean similarity of both parts of two sketches; in the second part one value in 16
    is equal by chance."""
    equal = [a == b for a, b in zip(numbers(sketch), numbers(other), strict=True)]
    return (
        Fraction(sum(equal[:80]), 80)
        + (Fraction(sum(equal[80:]), 80) - Fraction(1, 16)) / Fraction(15, 16)
    ) / 2


def numbers(sketch: bytes) -> list[int]:
    """Return the values of a sketch: 80 of a byte, 80 of half a byte."""
    return [*sketch[:80], *(half for byte in sketch[80:] for half in (byte % 16, byte // 16))]


def differing(plan: dict[str, Any], text: Text, other: Text) -> str:
    """Return the bits in which two prints differ as text, lowest bit first."""
    width = plan["width"]
    return bin(((text[0] ^ other[0]) & ((1 << width) - 1)) | 1 << width)[:2:-1]
