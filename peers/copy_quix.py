"""Quix Streams copies a topic exactly once: one of the programs that `bench path --peers` compares
with the filter.

Runs in `.venv-peers` and imports nothing of stream_dedup: `copy_quix.py BOOTSTRAP DOCUMENTS COPY
GROUP TRANSACTION_DOCUMENTS`, which runs until standard input ends. Quix runs as documented, with
values as bytes and one setting in its favour: a transaction contains as many documents as those of
the copy, instead of those of five seconds.
"""

from __future__ import annotations

import sys
import threading

from quixstreams import Application

# A last transaction that is not full waits no longer than this.
COMMIT_SECONDS = 0.2


def main():
    bootstrap, documents, copy, group, transaction_documents = sys.argv[1:]
    application = Application(
        broker_address=bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_every=int(transaction_documents),
        commit_interval=COMMIT_SECONDS,
        auto_create_topics=False,
        use_changelog_topics=False,
    )
    raw = {"key_deserializer": "bytes", "value_deserializer": "bytes"}
    source = application.topic(documents, **raw)
    target = application.topic(copy, key_serializer="bytes", value_serializer="bytes")
    application.dataframe(source).to_topic(target)

    def wait_for_the_end():
        sys.stdin.buffer.read()
        application.stop()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    application.run()


if __name__ == "__main__":
    main()
