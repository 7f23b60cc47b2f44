"""Texts whose fingerprints are frozen with this version of the program; each new fingerprinter
computes them again and compares.

Invariant: a library that changed under the same version (Python's Unicode data, numba, numpy) stops
the role before it writes a fingerprint that cannot be compared with those in the log.

The texts cover every script rule and every path through normalising. `FROZEN` changes only together
with `recipe.RULES_VERSION`.
"""

from __future__ import annotations

import numpy as np

from stream_dedup.domain.presets import RecipeMethod
from stream_dedup.fingerprinting.variants.vectors import Vector

TEXTS = (
    "",
    " \t\n",
    "The quick brown fox jumps over the lazy dog; the lazy dog sleeps.",
    (
        "\ufeffStraße, İSTANBUL, \ufb01n, ＦＵＬＬ, x², Ⅷ, caf\u00e9 cafe\u0301 soft\u00adhyphen "
        "zero\u200bwidth"
    ),
    "他来到了网易杭研大厦，研究生命起源。Python3编程〇々\u3400",
    "吾輩は猫である。名前はまだ無い。\u30ab\uff9e\uff80\uff76\uff85",
    "สวัสดีครับ ๑๒๓ ភាសាខ្មែរ",
    (
        "हिन्दी \u0915\u093c\u0932\u092e, \u0627\u0644\u0633\u0651\u064e\u0644\u0627\u0645\u064f, "
        "한국어 \u1112\u1161\u11ab, Vi\u00ea\u0323t, \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    ),
    "\U0001f600 \u2764\ufe0f !? \ud800 \u0000 a" + "\u0300\u0323" * 40,
    "O\u02bbzbekiston so`z \u043f\u2019\u044f\u0442\u044c, അവ\u0d28\u0d4d\u200d അവ\u0d7b",
    "word " * 3000,
    " ".join(
        str(number * number % 97) for number in range(700)
    ),  # features that occur up to fifteen times
)

# BLAKE2b-64 of each stage's result for all texts (or vectors) together, under the public demo key;
# and of the tables of weights and of the planes' coordinates. `fingerprints`, `sketches` and
# `digests` are those of the default recipe.
FROZEN = {
    "weights": "ed2f413b4f66a442",
    "normalised texts": "071fed58489c69d5",
    "fingerprints": "79974c139180837f",
    "digests": "a143f880a0259913",
    "sketches": "3f2456a3d4708f79",
    "planes": "f65878058f782c93",
    "chars prints": "c7837a51fbe4c838",
    "shingles prints": "61896a993eec7f56",
    "keywords prints": "70b8c2e188885ce0",
    "textrank prints": "5a3f1f75f1d80d94",
    "pypi-simhash prints": "466c94893fa0d078",
    "vector prints": "a7cc8dea564687c5",
}


def vectors() -> list[Vector]:
    """Return the canary vectors: empty, of one block of dimensions or more, and all zeros."""
    return [
        np.array([(place * 37 % 101 - 50) / 8 for place in range(length)], np.float64)
        for length in (0, 1, 3, 64, 65, 300)
    ] + [np.zeros(5, np.float64)]


def stages(method: RecipeMethod) -> tuple[str, ...]:
    """Return the names of the stages that are checked before a method's first fingerprint."""
    if method.takes_vectors:
        return ("planes", "vector prints")
    prints = "fingerprints" if method.name == "words" else f"{method.name} prints"
    sketches = ["sketches"] if method.cuts_words else []
    return ("weights", "normalised texts", "digests", *sketches, prints)
