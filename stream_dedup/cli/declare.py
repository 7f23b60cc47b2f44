"""`declare`: show or change the rules of a running filter (by `orders.run_declare`)."""

from __future__ import annotations

from stream_dedup.cli import declare_options as options
from stream_dedup.cli.options import DryRunOption, JsonOption, command
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.orders.run_declare import Change, Declared, declare
from stream_dedup.serving.ports import addresses
from stream_dedup.settings.settings import Settings


@command("declare", example="stream-dedup declare --plan classic --window 30d --dry-run")
def declare_command(
    settings: Settings,
    plan: options.PlanOption = None,
    similarity: options.SimilarityOption = None,
    unsure: options.UnsureOption = None,
    same_site: options.SameSiteOption = None,
    other_title: options.OtherTitleOption = None,
    window: options.WindowOption = None,
    refresh: options.RefreshOption = None,
    better: options.BetterOption = None,
    log_format: options.LogFormatOption = None,
    reading: options.ReadingOption = False,
    index: options.IndexOption = None,
    unchecked: options.UncheckedOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Show or change plan, thresholds, window, format and input settings of a running filter."""
    thresholds = {
        "similarity": similarity,
        "unsure": unsure,
        "same_site": same_site,
        "other_title": other_title,
    }
    change = Change(plan, thresholds, window, refresh, better, log_format, reading)
    indexes = [] if unchecked else [[url] for url in index] if index else [addresses(settings)]
    declared = declare(settings, change, indexes, dry_run=dry_run)
    _print(declared, as_json=as_json)
    if declared.log_offset is not None:
        note(f"Written at log offset {declared.log_offset}. It applies to all later records.")
    if declared.has_new_reading and not dry_run:
        note(
            f"Written to {settings.topic_names.begun}. Restart every worker with these settings: a "
            "running worker still reads documents as before, and no worker starts with other "
            "settings."
        )
    if dry_run and (declared.has_new_rules or declared.has_new_reading):
        note("Nothing was written (--dry-run).")
    return 0


def _print(declared: Declared, *, as_json: bool) -> None:
    if as_json:
        keys = ("begun_with", "in_force", "becomes")
        print_json(
            {row[0]: dict(zip(keys, row[1:], strict=True)) for row in declared.rows}
            | {"log_offset": declared.log_offset}
        )
    else:
        names = dict.fromkeys(name for state in declared.readings for name in state or ())
        reading_rows = [
            [name.upper(), *((state or {}).get(name) or "" for state in declared.readings)]
            for name in names
        ]
        print_table(
            ["", "started with", "in force", "becomes"],
            [row for row in declared.rows if row[0] != "reading"] + reading_rows,
        )
