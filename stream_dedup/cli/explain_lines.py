"""Print the result of `explain` as tables."""

from __future__ import annotations

import math
from typing import Any

from rich.text import Text

from stream_dedup.domain.printable import printable
from stream_dedup.domain.terminal import console, print_table
from stream_dedup.files.explain import to_rows


def print_explanation(fields: dict[str, Any]) -> None:
    """Print the fields of `explain_pair`."""
    out = console()
    colour = "bold green" if fields["verdict"] == "duplicate" else "bold yellow"
    explanation = (
        f" ({fields['reason']}): {fields['explanation']}"
        if fields["reason"]
        else f": {fields['explanation']}"
    )
    out.print(Text.assemble((fields["verdict"], colour), explanation))
    out.print()
    columns = ("name", "fingerprint", "features", "characters", "id")
    print_table(
        ["", *columns[1:]],
        [[str(document[name]) for name in columns] for document in fields["documents"]],
    )
    out.print()
    print_table(["", ""], to_rows(fields))
    if fields["differing"]:
        out.print()
        rows = [
            [printable(feature["feature"]), *(_weight(weight) for weight in feature["weights"])]
            for feature in fields["differing"]
        ]
        print_table(["features that differ most", "first", "second"], rows)
        hidden = fields["differing_total"] - len(fields["differing"])
        if hidden:
            out.print(f"... and {hidden:,} more; use --rows N to show more.", style="dim")


def _weight(weight: float) -> str:
    return "-" if weight == 0 else f"{weight:.2f}" if math.isfinite(weight) else str(weight)
