"""What is near, by a list that is searched from its beginning. Imports nothing of the index; a plan
is its fields in the log.

The other rules are said a second time in `stream_dedup/audit/judgements.py`, and nowhere else.
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
    """Yield the places of the peers that are near: found by a key, of which the first and the last
    are asked, and alike."""
    return (place for place, said in judged(plan, new, peers) if said == "near")


def siblings(plan: dict[str, Any], new: Text, peers: Iterable[Text]) -> Iterator[int]:
    """Yield the places of those that would be near if they were of another site."""
    return (place for place, said in judged(plan, new, peers) if said == "sibling")


def judged(plan: dict[str, Any], new: Text, peers: Iterable[Text]) -> Iterator[tuple[int, str]]:
    """Yield the places of the peers that are found, with what they are."""
    texts = list(peers)
    by_key: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for place, one in enumerate(texts):
        for key in shared(plan, new, one):
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


def shared(plan: dict[str, Any], one: Text, other: Text) -> set[tuple[str, int]]:
    """Return the keys that two texts share, by number: of the print within the radius, and blocks
    of the sketch."""
    bits = differing(plan, one, other)
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
    return found | {("sketch", block) for block, part in parts if one[2][part] == other[2][part]}


def likeness(plan: dict[str, Any], one: Text, other: Text) -> str:
    """Return what two texts are if they are found: near, sibling or neither."""
    smaller, larger = sorted((one[1], other[1]))
    threshold = next(
        (bound for below, bound in plan.get("by_length", []) if smaller < below), plan["threshold"]
    )
    if 100 * smaller < plan.get("ratio", 0) * larger:
        return ""
    is_far = differing(plan, one, other).count("1") > threshold
    least = plan.get("similarity", 0)
    by_site = [plan.get(name, 0) for name in ("unsure", "same_site", "other_title")]
    if not least and not any(by_site):
        return "" if is_far else "near"
    share = 100 * similarity(one[2], other[2])
    if share < least or (is_far and share < 85):
        return ""
    (site, title, name), (its_site, its_title, its_name) = one[3], other[3]
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


def similarity(one: bytes, other: bytes) -> Fraction:
    """Return the mean of what both parts of two sketches say; of the second one value in 16 is
    equal by chance."""
    equal = [a == b for a, b in zip(numbers(one), numbers(other), strict=True)]
    return (
        Fraction(sum(equal[:80]), 80)
        + (Fraction(sum(equal[80:]), 80) - Fraction(1, 16)) / Fraction(15, 16)
    ) / 2


def numbers(sketch: bytes) -> list[int]:
    """Return the values of a sketch: 80 of a byte, 80 of half a byte."""
    return [*sketch[:80], *(half for byte in sketch[80:] for half in (byte % 16, byte // 16))]


def differing(plan: dict[str, Any], one: Text, other: Text) -> str:
    """Return the bits in which two prints differ as text, lowest bit first."""
    width = plan["width"]
    return bin(((one[0] ^ other[0]) & ((1 << width) - 1)) | 1 << width)[:2:-1]
