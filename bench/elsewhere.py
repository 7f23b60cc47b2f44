"""Measure how fast a worker prepares records whose texts must be fetched, compared with records
that contain the same texts.

    python -m bench.elsewhere [--documents 8000] [--fetches 64] [--fetches 256]

A web server in a separate process answers each request after 2, 20 or 200 ms. Only
`Preparer.prepare` is timed (decode, fetch, fingerprint, pack), without Kafka and index, which
fetching does not affect. The result is the best of three runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import time
from multiprocessing.connection import Connection

from aiohttp import web

from stream_dedup.domain.document import Message
from stream_dedup.domain.messages import Messages
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.inputs import claim_checks
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.log import records
from stream_dedup.settings.layers import load_settings
from stream_dedup.worker.prepare import Preparer

DELAYS_MS = (2, 20, 200)
WORDS = [f"word{number}" for number in range(20_000)]
SOURCES = {("documents", 0): records.Source("documents", bytes(16), 0, 0, 0)}


def make_text(number: int) -> str:
    """Return about 2 kB of words, which depend on `number`."""
    return " ".join(random.Random(number).choices(WORDS, k=230))  # noqa: S311


def serve(delay_ms: int, count: int, port_sender: Connection) -> None:
    """Serve `count` texts, each after `delay_ms`, and send the port to `port_sender`."""
    texts = [make_text(number).encode() for number in range(count)]

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(delay_ms / 1000)
        return web.Response(body=texts[int(request.match_info["number"])])

    async def run() -> None:
        application = web.Application()
        application.router.add_get("/{number}", answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1000)
        await site.start()
        port_sender.send(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]
        await asyncio.sleep(3600)

    asyncio.run(run())


def documents_per_second(values: list[dict[str, str]], **settings: str) -> float:
    """Return the documents per second that `prepare` reaches, the best of three."""
    preparer = Preparer(
        Decoder(load_settings({"value_format": "json", **settings}, environ={})),
        Fingerprinter(Recipe()),
        bytes(16),
        1 << 20,
    )
    messages = Messages.of(
        [
            Message("documents", 0, number, b"%d" % number, json.dumps(value).encode(), 1, [])
            for number, value in enumerate(values)
        ]
    )
    preparer.prepare(messages.part(0, 100), SOURCES, b"")
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        left = messages
        while len(left):
            batch = preparer.prepare(left, SOURCES, b"")
            left = left.part(len(batch.messages), len(left))
        best = max(best, len(messages) / (time.perf_counter() - began))
    return best


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=8000)
    parser.add_argument("--fetches", type=int, action="append")
    options = parser.parse_args()
    count = options.documents
    print(f"{count:,} texts of {len(make_text(0)):,} bytes; documents a second")
    print(
        f"inside the records: {documents_per_second([{'text': make_text(number)} for number in range(count)]):,.0f}"
    )
    for delay_ms in DELAYS_MS:
        for fetches in options.fetches or (64, 256):
            ours, theirs = multiprocessing.Pipe()
            server = multiprocessing.get_context("spawn").Process(
                target=serve, args=(delay_ms, count, theirs), daemon=True
            )
            server.start()
            url = f"http://127.0.0.1:{ours.recv()}"
            values = [{"uri": f"{url}/{number}"} for number in range(count)]
            claim_checks.AT_ONCE = fetches
            found = documents_per_second(values, text_at="uri", text_prefixes=url)
            print(
                f"{delay_ms} ms a fetch, {fetches} at once: {found:,.0f} (at most "
                f"{1000 * fetches / delay_ms:,.0f})",
                flush=True,
            )
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
