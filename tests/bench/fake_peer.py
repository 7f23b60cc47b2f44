"""A peer process for the tests: takes pairs of texts with equal first letters; can fail, babble or
fall silent."""

import itertools
import json
import sys

MODE = sys.argv[1] if len(sys.argv) > 1 else "good"


METHODS = [
    {"name": "first letter", "plan": "equal", "does": "first letters"},
    {"name": "broken", "plan": "none", "does": "nothing"},
    {"name": "again", "plan": "equal", "does": "first letters"},
]


def say(reply: object) -> None:
    sys.stdout.write((reply if isinstance(reply, str) else json.dumps(reply)) + "\n")
    sys.stdout.flush()


MISSING = {"absent": "ModuleNotFoundError: No module named 'absent'"}
say(
    {
        "versions": {"fake": "1.0"},
        "missing": MISSING,
        "methods": METHODS if MODE == "mixed" else METHODS[:1],
    }
)
for line in sys.stdin:
    question = json.loads(line)
    if MODE == "babbling":
        say("what?")
    elif MODE == "failing":
        say({"error": "ValueError: no such thing"})
    elif MODE == "ending":
        sys.exit(3)
    elif MODE == "silent":
        sys.stdin.read()
    elif question["method"] == "broken":
        sys.exit(3)
    else:
        texts = question["texts"]
        # Larger place first, and each with itself: order and such pairs are not the peer's to get
        # right.
        near = [
            (b, a)
            for a, b in itertools.combinations_with_replacement(range(len(texts)), 2)
            if texts[a][:1] == texts[b][:1]
        ]
        say({"pairs": near})
