"""What several tests of this room use: a key, dice, random texts, and rows of a batch in the
reference's form."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from stream_dedup.fingerprinting import Prints
from tests.fingerprinting import reference

OTHER_KEY = bytes(range(32))

# Characters that take part in a rule, so that random texts meet the rules and each other.
_SPECIAL = (
    "\ud800\udfff\ufffd\0\x1c\x85\u3000\u2028\u00ad\u200b\u200d\ufe0f\U000e0041\u034f\u115f\uffa0\u3164"
    "\u0300\u0323\u0301\u0345\u037a\u0390\u1fb4\u0130\u00df\ufb01\u1e9e\u03c2\u01c5\ufdfa\u0958\u093c\u0915\u0651\u064e"
    "\u0e33\u0e48\u0eb3\u1100\u1161\u11a8\uac00\u3099\u304b\uff76\uff9e\u30fc\u4e2d\u9fd5\u9fd6\u3400\U00020000\u3005\u3007"
    "\uf900\U0001d400\U0001f600\u0378\U0001fae8\U0010ffff9aZ_'-"
)
_CHARACTER = st.one_of(
    st.characters(),
    st.characters(categories=["Cs"]),
    st.characters(categories=["Mn", "Mc"]),
    st.sampled_from(_SPECIAL),
    st.sampled_from("ab C.\t1"),
    st.sampled_from("中国人民研究生命起源杭大厦"),
    st.sampled_from("ひらカタกขคงម្ដဗမာ"),
)
TEXTS = st.lists(_CHARACTER, max_size=60).map("".join)


def dice() -> random.Random:
    """Return a random generator and print its seed."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


def strings(chance: random.Random, pool: Sequence[str], longest: int, count: int) -> list[str]:
    """Return random strings of items from the pool."""
    return ["".join(chance.choices(pool, k=chance.randrange(1, longest))) for _ in range(count)]


def rows(prints: Prints) -> list[reference.Print]:
    """The rows of a batch as the reference writes them."""
    columns = zip(
        prints.prints.tolist(),
        prints.features.tolist(),
        map(bytes, prints.digests),
        prints.empty.tolist(),
        strict=True,
    )
    return [
        reference.Print(high << 64 | low, features, digest, empty)
        for (low, high), features, digest, empty in columns
    ]
