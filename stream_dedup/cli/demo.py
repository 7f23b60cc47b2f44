"""`demo`: run the filter on a generated crawl (by `demo.run`)."""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.cli.options import OwnBrokerOption, command
from stream_dedup.demo.run import run_demo


@command("demo", example="stream-dedup demo --serve")
def demo_command(
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Keep everything running until Ctrl-C, with the console."),
    ] = False,
    brokers: OwnBrokerOption = None,
) -> int:
    """Run the filter on a generated crawl and a real Kafka, and print the results."""
    return run_demo(brokers, serve=serve)
