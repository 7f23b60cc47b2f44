"""`demo`: the way into the demo's own room, which is loaded only when the command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.cli.options import JsonOption, OwnBrokerOption, command
from stream_dedup.demo.run import run_demo


@command("demo", example="stream-dedup demo --documents 2000 --seed 7")
def demo_command(
    documents: Annotated[
        int | None, typer.Option("--documents", min=100, help="Size of the generated crawl.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated crawl.")] = 1,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Leave everything up until Ctrl-C, with the console to look into it."
        ),
    ] = False,
    brokers: OwnBrokerOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run the whole filter on a generated crawl in many languages, on a real Kafka, and show what
    it found.
    """
    return run_demo(documents, seed, brokers, as_json=as_json, serve=serve)
