"""confluent-kafka copies a topic at least once: one of the programs that `bench path --peers`
compares with the filter.

Imports nothing of stream_dedup: `copy_plain.py BOOTSTRAP DOCUMENTS COPY GROUP
TRANSACTION_DOCUMENTS`, which runs until standard input ends. It is the usual loop without
transactions: consume a batch, produce it, flush, commit the offsets. A crash between the last two
steps copies the batch again; the difference to the exactly-once copy is the cost of transactions.
"""

from __future__ import annotations

import select
import sys

from confluent_kafka import Consumer, KafkaException, Producer

WAIT_SECONDS = 0.1


def input_has_ended():
    return bool(select.select([0], [], [], 0)[0])


def copy(source, target, topic, most):
    while not input_has_ended():
        messages = source.consume(most, WAIT_SECONDS)
        if not messages:
            continue
        for one in messages:
            if one.error() is not None:
                raise KafkaException(one.error())
            target.produce(
                topic,
                one.value(),
                one.key(),
                one.partition(),
                timestamp=one.timestamp()[1],
                headers=one.headers() or [],
            )
        if target.flush(60):
            raise SystemExit("The copies were not written within a minute.")
        source.commit(asynchronous=False)


def main():
    bootstrap, documents, topic, group, most = sys.argv[1:]
    source = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 20,  # as the copy beside it
        }
    )
    target = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 1,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
        }
    )
    source.subscribe([documents])
    try:
        copy(source, target, topic, int(most))
    finally:
        source.close()


if __name__ == "__main__":
    main()
