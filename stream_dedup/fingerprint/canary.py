"""A few texts whose prints are frozen with this version of the program, and looked at whenever a fingerprinter is made.

Invariant: a library that changed under the same version (Python's Unicode data, numba, numpy) stops the role before it
writes a print that cannot be compared with those in the log.

The texts go through every script rule and every way through normalising. `FROZEN` changes together with
`recipe.RULES_VERSION`, never alone.
"""

from __future__ import annotations

TEXTS = (
    "",
    " \t\n",
    "The quick brown fox jumps over the lazy dog; the lazy dog sleeps.",
    "\ufeffStraße, İSTANBUL, \ufb01n, ＦＵＬＬ, x², Ⅷ, caf\u00e9 cafe\u0301 soft\u00adhyphen zero\u200bwidth",
    "他来到了网易杭研大厦，研究生命起源。Python3编程〇々\u3400",
    "吾輩は猫である。名前はまだ無い。\u30ab\uff9e\uff80\uff76\uff85",
    "สวัสดีครับ ๑๒๓ ភាសាខ្មែរ",
    (
        "हिन्दी \u0915\u093c\u0932\u092e, \u0627\u0644\u0633\u0651\u064e\u0644\u0627\u0645\u064f, "
        "한국어 \u1112\u1161\u11ab, Vi\u00ea\u0323t"
    ),
    "\U0001f600 \u2764\ufe0f !? \ud800 \u0000 a" + "\u0300\u0323" * 40,
    "word " * 3000,
    " ".join(str(number * number % 97) for number in range(700)),  # features that occur up to fifteen times
)

# BLAKE2b-64 of each stage's result for all texts together, under the public demo key; and of the table of weights.
FROZEN = {
    "weights": "ed2f413b4f66a442",
    "normalised texts": "4b44b12e33e852ff",
    "fingerprints": "b4428fa4ea473000",
    "digests": "6b3084093eb333d4",
}
