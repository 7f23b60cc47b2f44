"""`demo`: run the filter on a generated crawl; see `demo.run`."""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.cli.options import JsonOption, OwnBrokerOption, command
from stream_dedup.demo.run import run_demo


@command("demo", example="stream-dedup demo --documents 2000 --seed 7")
def demo_command(
    documents: Annotated[
        int | None, typer.Option("--documents", min=100, help="Number of documents.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the crawl.")] = 1,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Keep everything running until Ctrl-C, with the console."),
    ] = False,
    brokers: OwnBrokerOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run the filter on a generated crawl and a real Kafka, and print the results."""
    return run_demo(documents, seed, brokers, as_json=as_json, serve=serve)
