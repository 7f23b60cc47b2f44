"""The program: all commands put together.

Each command is stated in the file of its name (see `options`). Nothing heavy is imported before a command runs, so that
`--help` and completion answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Annotated, Final

import typer

from stream_dedup.cli.audit import audit_command
from stream_dedup.cli.broker import broker_command
from stream_dedup.cli.calibrate import calibrate_command
from stream_dedup.cli.check import check_command
from stream_dedup.cli.commands import commands_page
from stream_dedup.cli.compile import compile_command
from stream_dedup.cli.config import config_check_command, config_reference_command, config_show_command
from stream_dedup.cli.declare import declare_command
from stream_dedup.cli.demo import demo_command
from stream_dedup.cli.dlq import dlq_redrive_command, dlq_show_command
from stream_dedup.cli.doctor import doctor_command
from stream_dedup.cli.ending import exit_code_of
from stream_dedup.cli.explain import explain_command
from stream_dedup.cli.find import find_command
from stream_dedup.cli.forget import forget_command
from stream_dedup.cli.group import group_command
from stream_dedup.cli.index import index_restore_command, index_snapshot_command, index_stats_command, index_verify_command
from stream_dedup.cli.judge import judge_command, prints_command
from stream_dedup.cli.load import load_command
from stream_dedup.cli.options import Command, command
from stream_dedup.cli.release import release_command
from stream_dedup.cli.replay import replay_command
from stream_dedup.cli.rewind import rewind_command
from stream_dedup.cli.run import RUN_COMMANDS
from stream_dedup.cli.seed import seed_command
from stream_dedup.cli.similar import similar_command
from stream_dedup.cli.stats import stats_command
from stream_dedup.cli.tap import tap_command
from stream_dedup.cli.top import top_command
from stream_dedup.cli.topics import topics_apply_command, topics_plan_command
from stream_dedup.cli.version import version_command
from stream_dedup.ground.version import __version__


class Group:
    """Commands of one first word, with what they are for."""

    def __init__(self, name: str, purpose: str, *commands: Command) -> None:
        self.name = name
        self.purpose = purpose
        self.commands = commands

    def add_to(self, app: typer.Typer, panel: str | None = None) -> None:
        """Let `app` offer the group, in a panel of the overview."""
        own = typer.Typer(no_args_is_help=True, help=self.purpose)
        for one in self.commands:
            one.add_to(own)
        app.add_typer(own, name=self.name, rich_help_panel=panel)


@command("commands", example="stream-dedup commands")
def commands_command() -> int:
    """Print the reference page of all commands, as Markdown."""
    panels = {
        panel: [(one.name, one.purpose, one.commands) if isinstance(one, Group) else ("", "", (one,)) for one in members]
        for panel, members in PANELS.items()
    }
    sys.stdout.write(commands_page(typer.main.get_command(app), panels))
    return 0


PANELS: Final[dict[str, tuple[Command | Group, ...]]] = {
    "Run the filter": (
        Group("run", "Run a role of the filter until SIGTERM or Ctrl-C.", *RUN_COMMANDS),
        demo_command,
        broker_command,
        load_command,
    ),
    "See what it does": (
        tap_command,
        top_command,
        stats_command,
        explain_command,
        find_command,
        group_command,
        similar_command,
        check_command,
        prints_command,
        judge_command,
    ),
    "Change what it keeps": (
        declare_command,
        seed_command,
        forget_command,
        release_command,
        rewind_command,
        Group(
            "dlq",
            "Look at the dead letters, and send them back to where they came from.",
            dlq_show_command,
            dlq_redrive_command,
        ),
    ),
    "Set it up": (
        Group(
            "topics",
            "Compare the cluster's topics with the declared ones, and create or correct them.",
            topics_plan_command,
            topics_apply_command,
        ),
        Group(
            "config",
            "Check and show the settings, and print their reference.",
            config_check_command,
            config_show_command,
            config_reference_command,
        ),
        doctor_command,
        calibrate_command,
        compile_command,
        version_command,
        commands_command,
    ),
    "Prove and measure": (
        audit_command,
        replay_command,
        Group(
            "index",
            "Look after an index's volume: figures, snapshots, proof by the log.",
            index_stats_command,
            index_snapshot_command,
            index_restore_command,
            index_verify_command,
        ),
    ),
}

app = typer.Typer(
    name="stream-dedup",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Near-duplicate filter for crawled documents on Apache Kafka: exactly once, over all partitions, with the "
    "reason on every record.",
    epilog="Try it without any set-up: stream-dedup demo. Your own documents without Kafka: stream-dedup check pages.jsonl. "
    "Is all well here: stream-dedup doctor. Each command's own --help ends with an example.",
)


def _print_version(*, is_asked: bool) -> None:
    if is_asked:
        print(f"stream-dedup {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda asked: _print_version(is_asked=asked),
            is_eager=True,
            help="Print the version and end; `version` tells more.",
        ),
    ] = False,
) -> None: ...


for _panel, _members in PANELS.items():
    for _member in _members:
        _member.add_to(app, _panel)


def all_commands() -> Iterator[Command]:
    """Yield every command there is."""
    for members in PANELS.values():
        for member in members:
            yield from member.commands if isinstance(member, Group) else (member,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `ending` says what becomes of errors."""
    given = None if arguments is None else list(arguments)
    return exit_code_of(lambda: _program()(args=given, prog_name="stream-dedup"))


@cache  # a tenth of a second
def _program() -> Callable[..., object]:
    """Return the program with all its commands; `app` called directly would make it at each call."""
    return typer.main.get_command(app)
