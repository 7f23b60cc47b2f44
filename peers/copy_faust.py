"""Faust copies a topic at least once: one of the programs that `bench path --peers` measures the filter against.

Imports nothing of stream_dedup: `copy_faust.py BOOTSTRAP DOCUMENTS COPY GROUP TRANSACTION_DOCUMENTS`, until standard input
ends. It is Faust by its defaults, values as bytes, with what it needs beside topics that exist already; it commits each
second, so that its progress can be watched. aiokafka has no lz4 by default, so its documents are not compressed. It knows no
transactions here: the last argument is for others.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile

import faust

COMMIT_SECONDS = 1.0


async def run(bootstrap, documents, copy, group, folder):
    application = faust.App(
        group,
        broker=f"aiokafka://{bootstrap}",
        broker_commit_interval=COMMIT_SECONDS,
        consumer_auto_offset_reset="earliest",
        key_serializer="raw",
        value_serializer="raw",
        store="memory://",
        datadir=folder,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        autodiscover=False,
        loop=asyncio.get_running_loop(),
    )
    raw = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
    target = application.topic(copy, **raw)

    async def forward(stream):
        async for event in stream.events():
            await event.forward(target)

    application.agent(application.topic(documents, **raw), name="copy")(forward)
    await application.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await application.stop()


def main():
    logging.basicConfig(level=logging.WARNING)
    bootstrap, documents, copy, group, _ = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(bootstrap, documents, copy, group, folder))


if __name__ == "__main__":
    main()
