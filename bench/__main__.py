"""Run one benchmark from the root of the source tree: `python -m bench NAME`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from bench.show_files import bench_files_command
from bench.show_find import bench_find_command
from bench.show_index import bench_index_command
from bench.show_path import bench_path_command
from bench.show_quality import bench_quality_command
from stream_dedup.cli.exit_codes import exit_code_of

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure the filter beside a yardstick, in one run on one machine.",
)
for _one in (
    bench_path_command,
    bench_index_command,
    bench_quality_command,
    bench_find_command,
    bench_files_command,
):
    _one.add_to(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one measurement and return its exit code: 1 where something must not be, 2 for usage."""
    given = None if arguments is None else list(arguments)
    return exit_code_of(
        lambda: typer.main.get_command(app)(args=given, prog_name="python -m bench")
    )


if __name__ == "__main__":
    sys.exit(main())
