"""`broker`: run an Apache Kafka on this machine for tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.broker import LocalBroker
from stream_dedup.cli.options import PartitionsOption, command
from stream_dedup.domain.terminal import note
from stream_dedup.domain.topics import apply_to_cluster
from stream_dedup.kafka import Admin
from stream_dedup.serving.process import stop_on_signals
from stream_dedup.settings.settings import Settings

_POLL_SECONDS = 0.5


@command("broker", example="stream-dedup broker --port 9092 --folder ./kafka", asks_kafka=False)
def broker_command(
    settings: Settings,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65535, help="Port on 127.0.0.1.  [default: any free port]"
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Folder for the data.  [default: a temporary folder]"),
    ] = None,
    partitions: PartitionsOption = None,
) -> int:
    """Run an Apache Kafka with all topics on this machine until Ctrl-C, without Java or Docker."""
    broker = LocalBroker(folder, port=port, log=note)
    try:
        with stop_on_signals() as stop:
            note("Starting Apache Kafka. The first start downloads it, which takes a while.")
            broker.start()
            broker_settings = settings.model_copy(
                update={"kafka_bootstrap_servers": broker.bootstrap, "kafka": {}}
            )
            apply_to_cluster(
                Admin(broker_settings),
                settings.topic_names,
                partitions=partitions,
                fit_brokers=True,
            )
            sys.stdout.write(_usage(broker.bootstrap, settings.topic_prefix))
            sys.stdout.flush()
            data = (
                "Its data remains in {}."
                if folder
                else "Its data in {} is then deleted; use --folder to keep it."
            )
            note(f"The broker runs until Ctrl-C. {data.format(broker.folder)}")
            while not stop.wait(_POLL_SECONDS):
                broker.check_alive()
    finally:
        broker.stop()
    note("The broker has stopped.")
    return 0


def _usage(bootstrap: str, prefix: str) -> str:
    lines = ["export STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS=" + bootstrap]
    lines += [f"export STREAM_DEDUP_TOPIC_PREFIX={prefix}"] if prefix else []
    lines += [
        "# then, in other terminals:",
        "#   stream-dedup run all               the filter",
        "#   stream-dedup tap                   its decisions",
        "#   stream-dedup load pages.jsonl      documents",
    ]
    return "\n".join(lines) + "\n"
