"""`demo`: the way into the demo's own room, which is loaded only when the command runs."""

from __future__ import annotations

from stream_dedup.demo.run import run_demo


def show_demo(documents: int | None, seed: int, broker: str | None, *, as_json: bool) -> int:
    """Run the demo and return its exit code."""
    return run_demo(documents, seed, broker, as_json=as_json)
