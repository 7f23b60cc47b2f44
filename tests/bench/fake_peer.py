"""A fake peer process: it pairs texts with equal first letters; the method `broken` fails."""

import itertools
import json
import sys

METHODS = [
    {"name": "first letter", "plan": "equal", "does": "first letters"},
    {"name": "broken", "plan": "none", "does": "nothing"},
    {"name": "again", "plan": "equal", "does": "first letters"},
]


MISSING = {"absent": "ModuleNotFoundError: No module named 'absent'"}
chosen = METHODS if "mixed" in sys.argv else METHODS[:1]
print(json.dumps({"versions": {"fake": "1.0"}, "missing": MISSING, "methods": chosen}), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if question["method"] == "broken":
        sys.exit(3)
    texts = question["texts"]
    # Larger place first, and pairs of a text with itself: the bench must accept both.
    near = [
        (b, a)
        for a, b in itertools.combinations_with_replacement(range(len(texts)), 2)
        if texts[a][:1] == texts[b][:1]
    ]
    print(json.dumps({"pairs": near}), flush=True)
