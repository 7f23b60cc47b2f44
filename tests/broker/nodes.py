"""Apache Kafka for tests that need more than one plain node: listeners with TLS and SASL, several
nodes, chosen ports."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stream_dedup.broker import LocalBroker
from stream_dedup.broker.configuration import node_settings
from stream_dedup.broker.node import new_cluster_id
from stream_dedup.broker.process import HOST
from stream_dedup.domain.errors import LocalBrokerError
from stream_dedup.serving.ports import free_ports

_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 2_000_000_000


def with_listeners(
    port: int, controller_port: int, more: Mapping[str, tuple[int, int]]
) -> dict[str, str]:
    """Return the settings of a lone node that has more listeners than the plain one.

    `more` is name -> (port it listens on, port it advertises). A listener's name is its
    security protocol; a name that Kafka does not know is a plaintext listener.
    """
    settings = node_settings(1, port, controller_port, {1: controller_port})
    kinds = {name: name if name in ("SSL", "SASL_SSL") else "PLAINTEXT" for name in more}
    listening = [f"{name}://{HOST}:{listener_port}" for name, (listener_port, _) in more.items()]
    advertised = [
        f"{name}://{HOST}:{advertised_port}" for name, (_, advertised_port) in more.items()
    ]
    return settings | {
        "listeners": ",".join([settings["listeners"], *listening]),
        "advertised.listeners": ",".join([settings["advertised.listeners"], *advertised]),
        "listener.security.protocol.map": ",".join(
            [
                settings["listener.security.protocol.map"],
                *(f"{name}:{kind}" for name, kind in kinds.items()),
            ]
        ),
    }


@contextlib.contextmanager
def _in_memory(fallback: Path) -> Iterator[Path]:
    """Make a folder in memory, or yield `fallback`; a kill -9 leaves its files.

    Three nodes that shared a disk with a program that writes and syncs did not answer for 20 s.
    """
    if not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _MEMORY_BYTES:
        yield fallback
        return
    with tempfile.TemporaryDirectory(prefix="stream-dedup-nodes-", dir=_MEMORY) as folder:
        yield Path(folder)


@contextlib.contextmanager
def three_nodes(
    folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[list[LocalBroker]]:
    """Run three nodes, each broker and controller in one, with small heaps; `settings` beside or
    instead of the usual ones.

    Their folders are in memory, or in `folder` where there is too little.
    """
    free = free_ports(6)  # in one call: two calls may return the same port
    ports, controllers = free[:3], dict(enumerate(free[3:], 1))
    cluster_id = new_cluster_id()
    with (
        _in_memory(folder) as place,
        contextlib.ExitStack() as stopped,
        ThreadPoolExecutor(3) as threads,
    ):
        nodes = [
            LocalBroker(
                place / f"node-{number}",
                port=port,
                heap_mb=256,
                settings=node_settings(number, port, controllers[number], controllers)
                | dict(settings or {}),
                cluster_id=cluster_id,
            )
            for number, port in enumerate(ports, 1)
        ]
        for node in nodes:
            stopped.callback(_end, node)
        list(threads.map(lambda node: node.start(), nodes))
        yield nodes


def _end(node: LocalBroker) -> None:
    """Kill a node: without the other nodes it could not stop cleanly."""
    with contextlib.suppress(LocalBrokerError):
        node.kill()
    node.stop()
