"""Options that each set one setting. A command lists its options in `flags`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

# By the name of the setting.
SETTING_OPTIONS: dict[str, Any] = {
    "text_field": Annotated[
        str | None, typer.Option("--text-field", metavar="PATH", help="Field with the text.")
    ],
    "vector_field": Annotated[
        str | None,
        typer.Option(
            "--vector-field",
            metavar="PATH",
            help="Field with a vector, to compare instead of the text.",
        ),
    ],
    "id_field": Annotated[
        str | None,
        typer.Option(
            "--id-field", metavar="PATH", help="Field with the id.  [default: id, else url]"
        ),
    ],
    "site_field": Annotated[
        str | None,
        typer.Option(
            "--site-field",
            metavar="PATH",
            help="Field with the web site.  [default: the host of the id or url]",
        ),
    ],
    "title_field": Annotated[
        str | None,
        typer.Option(
            "--title-field", metavar="PATH", help="Field with the title.  [default: title]"
        ),
    ],
    "recipe": Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help="Recipe of the fingerprints: words, chars, chars:64, keywords, ...",
        ),
    ],
    "floor": Annotated[
        int | None,
        typer.Option(
            "--floor",
            min=0,
            help="Minimum number of features of a text that is compared for similarity.  "
            "[default: the recipe's]",
        ),
    ],
    "plan": Annotated[
        str | None,
        typer.Option("--plan", help="Plan: bands, blocks, classic, or numbers."),
    ],
    "similarity": Annotated[
        str | None,
        typer.Option(
            "--similarity",
            metavar="SHARE",
            help="Minimum similarity of copies: 0.65, or 65%. Pages of one site have their own "
            "thresholds.",
        ),
    ],
}
READING_OPTIONS = ("text_field", "vector_field", "id_field", "site_field", "title_field")
PRINTING_OPTIONS = (*READING_OPTIONS, "recipe", "floor")
JUDGING_OPTIONS = ("recipe", "floor", "plan", "similarity")
