"""Server properties and logging of a Kafka node, and of its controller alone."""

from __future__ import annotations

import json
from collections.abc import Mapping

from stream_dedup.broker.process import HOST

# The broker's standard output goes to the same file, so that it also contains errors of the JVM.
LOGGING = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR" shutdownHook="disable">
  <Appenders>
    <File name="server" fileName="server.log" append="true">
      <PatternLayout pattern="%d{{ISO8601}} %p %m (%c)%n"/>
    </File>
  </Appenders>
  <Loggers>
    <Logger name="org.apache.kafka.controller.QuorumController" level="{controller}"/>
    <Root level="INFO"><AppenderRef ref="server"/></Root>
  </Loggers>
</Configuration>
"""


def node_settings(
    node_id: int, port: int, controller_port: int, controllers: Mapping[int, int]
) -> dict[str, str]:
    """Return the server properties of a node that is both broker and controller.

    Args:
        node_id: this node's number.
        port: where clients and other brokers reach it on 127.0.0.1.
        controller_port: where the other controllers reach it.
        controllers: node number -> controller port, of all nodes including this one.
    """
    replicas = str(min(3, len(controllers)))
    in_sync = str(min(2, len(controllers)))
    voters = ",".join(
        f"{number}@{HOST}:{voter_port}" for number, voter_port in sorted(controllers.items())
    )
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": "data",  # in the node's folder, where the process runs
        "num.partitions": "1",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "8",
        # The coordinator reads its whole partition when it starts; at least one segment is not
        # compacted.
        "offsets.topic.segment.bytes": "4194304",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "8",
        # A group of one host need not wait for latecomers, and tests want short sessions.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "100",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        # After a kill the controller refuses the new process until the old one's session ends, 9 s by
        # default. With 2 s, a disk that stalled for 3 s caused the only broker to be fenced, and all
        # partitions to lose their leader.
        "broker.session.timeout.ms": "5000",
        "broker.heartbeat.interval.ms": "250",
        # An expired transaction is aborted within a second of its timeout instead of ten.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # The default buffer alone is 128 MB of heap.
        "log.cleaner.dedupe.buffer.size": "2097152",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }


def render_properties(settings: Mapping[str, str]) -> str:
    """Return a Java properties file in ASCII, with JSON's escapes, which java.util.Properties also
    reads.
    """
    return "".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in settings.items())


def is_alone(settings: Mapping[str, str]) -> bool:
    """Return whether the cluster has no other node, which could take over the leaders."""
    return "," not in settings["controller.quorum.voters"]


def controller_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a node's controller without its broker, with a session of 0.1 s."""
    name = settings["controller.listener.names"]
    broker_only = {"advertised.listeners", "inter.broker.listener.name"}
    return {key: value for key, value in settings.items() if key not in broker_only} | {
        "process.roles": "controller",
        "listeners": ",".join(
            listener
            for listener in settings["listeners"].split(",")
            if listener.startswith(f"{name}://")
        ),
        "broker.session.timeout.ms": "100",
    }
