"""The texts and prints that are frozen in `tests/golden/fingerprints.json`, and how to make them.

`python -m tests.fingerprinting.golden` makes them of the texts, from the plain Python reference and
not from the compiled path. It is only to be run with a new `RULES_VERSION`: prints in a log written
by an earlier version stay what they were.
"""

from __future__ import annotations

import json
from pathlib import Path

from stream_dedup.fingerprinting import PUBLIC_DEMO_KEY
from tests.fingerprinting import reference

FILE = Path(__file__).parent.parent / "golden" / "fingerprints.json"
KEYS = {"demo": PUBLIC_DEMO_KEY, "other": bytes(range(32))}
ROWS: dict[str, dict[str, str]] = json.loads(FILE.read_text("ascii"))
TEXTS = {name: row["text"] for name, row in ROWS.items()}


def freeze() -> str:
    rows = {}
    for name, text in TEXTS.items():
        rows[name] = {"text": text}
        for key_name, key in KEYS.items():
            made = reference.fingerprint(text, key)
            rows[name][key_name] = f"{made.print:032x} {made.features} {made.digest.hex()}"
    return json.dumps(rows, indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(freeze(), "ascii")
