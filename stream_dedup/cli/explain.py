"""`explain`: print why two documents are copies or not, by the recipe and plan of the settings, or by
the plan of the running index.
"""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.cli.explain_lines import print_explanation
from stream_dedup.cli.options import CommandLine, IndexUrlOption, JsonOption, command
from stream_dedup.cli.setting_options import JUDGING_OPTIONS, READING_OPTIONS
from stream_dedup.cli.similar_in_index import plan_in_force
from stream_dedup.domain.terminal import print_json
from stream_dedup.files.decoding import is_row
from stream_dedup.files.explain import explain_pair
from stream_dedup.files.offline import check_widths
from stream_dedup.files.one_text import is_position, read_compared
from stream_dedup.settings.recipe import recipe_of


@command(
    "explain",
    example="stream-dedup explain documents-3@8812 documents-0@17",
    flags=(*READING_OPTIONS, *JUDGING_OPTIONS),
)
def explain_command(
    command_line: CommandLine,
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="File, row (pages.jsonl:12) or position (documents-3@8812).",
        ),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="The other document.")],
    rows: Annotated[
        int, typer.Option("--rows", min=0, help="Number of differing features to show.")
    ] = 20,
    index: IndexUrlOption = None,
    as_json: JsonOption = False,
) -> int:
    """Explain why two documents are copies or not, with the features that differ most.

    Two positions are judged by the plan of the running index, unless an option sets a plan.
    """
    names = (first, second)
    settings_of_each = [
        command_line.quiet_settings(value_format="json" if is_row(name) else None) for name in names
    ]
    recipe, plan = recipe_of(settings_of_each[0]), settings_of_each[0].judging_plan
    sets_plan = any(
        option.lstrip("-").startswith(("plan", "similarity")) for option in command_line.overrides()
    )
    if index is not None and sets_plan:
        raise typer.BadParameter(
            "uses the plan of the index; remove the option that sets a plan", param_hint="--index"
        )
    if index is not None or (all(map(is_position, names)) and not sets_plan):
        plan = plan_in_force(settings_of_each[0], index)
    check_widths(recipe, plan)
    takes_vectors = recipe.method.takes_vectors
    documents = [
        read_compared(settings, name, takes_vectors=takes_vectors)
        for settings, name in zip(settings_of_each, names, strict=True)
    ]
    fields = explain_pair(names, documents, recipe, plan, settings_of_each[0].better, rows)
    if as_json:
        print_json(fields)
    else:
        print_explanation(fields)
    return 0
