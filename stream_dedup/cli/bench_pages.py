"""`bench pages`: what the extractor of web pages keeps."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
from typing import Annotated

import typer

from stream_dedup.cli.options import (
    JsonOption,
    command,
)
from stream_dedup.ground.terminal import print_json, print_table


@command("bench pages", example="stream-dedup bench pages")
def bench_pages_command(
    count: Annotated[int, typer.Option("--pages", min=9, help="Generated web pages, in nine languages.")] = 270,
    seed: Annotated[int, typer.Option("--seed", help="Chance that makes them.")] = 1,
    as_json: JsonOption = False,
) -> int:
    """Measure what the extractor of web pages keeps of text and of boilerplate, and its CPU; trafilatura too if it is here."""
    return show_pages(count, seed, as_json=as_json)


def show_pages(count: int, seed: int, *, as_json: bool) -> int:
    """Measure extractors on generated pages and print what they keep; return 0.

    Raises:
        ConfigurationError: ours is not installed.
    """
    from stream_dedup.bench.pages import measure, pages
    from stream_dedup.inputs.html import Extractor
    from stream_dedup.inputs.html_child import main_text

    Extractor().close()  # says what to install
    found = {"resiliparse": measure(main_text, pages(seed, count))}
    if importlib.util.find_spec("trafilatura") is not None:
        other = importlib.import_module("trafilatura")
        found["trafilatura"] = measure(other.extract, pages(seed, count))
        found["trafilatura, fast"] = measure(functools.partial(other.extract, fast=True), pages(seed, count))
    if as_json:
        print_json({name: dataclasses.asdict(one) for name, one in found.items()})
        return 0
    rows = [
        [
            name,
            f"{one.main_kept:.3f}",
            f"{one.boilerplate_kept:.3f}",
            f"{one.boilerplate_share:.2f}",
            f"{one.cpu_ms_per_page:.2f}",
        ]
        for name, one in found.items()
    ]
    print_table(["extractor", "paragraphs kept", "boilerplate kept", "boilerplate of all text", "CPU ms a page"], rows)
    return 0
