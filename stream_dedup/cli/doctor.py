"""`doctor`: run every check and print the findings. It changes nothing and joins no group."""

from __future__ import annotations

from dataclasses import asdict

from rich.text import Text

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.terminal import print_json, print_table
from stream_dedup.preflight.doctor import examine
from stream_dedup.preflight.finding import CheckState
from stream_dedup.settings.settings import Settings

_COLOURS = {
    CheckState.OK: "green",
    CheckState.WARNING: "yellow",
    CheckState.REFUSED: "bold red",
    CheckState.NOT_CHECKED: "dim",
}


@command(
    "doctor",
    example="stream-dedup doctor --bootstrap-servers kafka:9093 --set kafka.security.protocol=ssl",
)
def doctor_command(settings: Settings, as_json: JsonOption = False) -> int:
    """Check all requirements: settings, clients, this machine, topics, offsets, recipe, volume.

    Changes nothing. Exits with 78 if a check fails.
    """
    findings = examine(settings)
    counts = {state: sum(finding.state is state for finding in findings) for state in CheckState}
    if as_json:
        rows = [{**asdict(finding), "state": finding.state.value} for finding in findings]
        print_json({"ok": not counts[CheckState.REFUSED], "checks": rows})
    else:
        table: list[list[str | Text]] = [
            [finding.check, Text(finding.state.value, _COLOURS[finding.state]), finding.sentence]
            for finding in findings
        ]
        print_table(["check", "state", "finding"], table)
        print()
        print(", ".join(f"{count} {state.value}" for state, count in counts.items()))
    return ConfigurationError.exit_code if counts[CheckState.REFUSED] else 0
