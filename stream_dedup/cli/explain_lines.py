"""Print the result of `explain` as tables."""

from __future__ import annotations

import math
from typing import Any

from rich.text import Text

from stream_dedup.domain.printable import printable
from stream_dedup.domain.terminal import console, print_table
from stream_dedup.files.explain import to_rows


def print_explanation(found: dict[str, Any]) -> None:
    """Print the fields of `explain_pair`."""
    page = console()
    colour = "bold green" if found["verdict"] == "duplicate" else "bold yellow"
    explanation = (
        f" ({found['reason']}): {found['explanation']}"
        if found["reason"]
        else f": {found['explanation']}"
    )
    page.print(Text.assemble((found["verdict"], colour), explanation))
    page.print()
    columns = ("name", "fingerprint", "features", "characters", "id")
    print_table(
        ["", *columns[1:]],
        [[str(document[name]) for name in columns] for document in found["documents"]],
    )
    page.print()
    print_table(["", ""], to_rows(found))
    if found["differing"]:
        page.print()
        rows = [
            [printable(feature["feature"]), *(_weight(weight) for weight in feature["weights"])]
            for feature in found["differing"]
        ]
        print_table(["features that differ most", "first", "second"], rows)
        hidden = found["differing_total"] - len(found["differing"])
        if hidden:
            page.print(f"... and {hidden:,} more; use --rows N to show more.", style="dim")


def _weight(weight: float) -> str:
    return "-" if weight == 0 else f"{weight:.2f}" if math.isfinite(weight) else str(weight)
