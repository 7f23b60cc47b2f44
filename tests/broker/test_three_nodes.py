"""Of three brokers, one after another and two at once go away; the filter recovers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from stream_dedup.broker import LocalBroker
from stream_dedup.kafka import Admin
from stream_dedup.settings.settings import Settings
from tests.broker.harness import Filter, Outcome, synthetic
from tests.broker.nodes import three_nodes
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

# the promise: progress within this time after the cluster can write again
HEALED_SECONDS = 30.0
STEP = 500


class Cluster:
    """Three nodes, a filter on them, and documents that keep coming."""

    def __init__(self, nodes: list[LocalBroker], folder: Path) -> None:
        self.nodes = dict(enumerate(nodes, 1))
        bootstrap = ",".join(node.bootstrap for node in nodes)
        self.crawl = Filter(bootstrap, folder, partitions=4, replicas=3, batch_documents=250)
        self.crawl.create_topics()
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._documents = iter(synthetic(20 * STEP, 14, partitions=4))
        self.sent = 0
        self.healed_seconds: dict[str, float] = {}

    def send(self) -> None:
        """Send some more documents, without waiting for them."""
        self.sent += self.crawl.produce(next(self._documents) for _ in range(STEP))

    def metadata(self) -> ClusterMetadata:
        """Return the cluster's metadata."""
        return self._admin.list_topics(timeout=10)

    def leader(self, topic: str, partition: int = 0) -> LocalBroker:
        """Return the node that leads a partition now."""
        return self.nodes[
            self._admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader
        ]

    def coordinator(self) -> LocalBroker:
        """Return the node that coordinates the group."""
        group = self.crawl.settings.group
        return self.nodes[
            self._admin.describe_consumer_groups([group])[group].result(20).coordinator.id
        ]

    def measure(self, what: str) -> None:
        """Note how long it takes until all sent records are committed."""
        began = time.monotonic()
        self.crawl.wait_until_committed(self.sent, 2 * HEALED_SECONDS)
        self.healed_seconds[what] = time.monotonic() - began


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with three_nodes(tmp_path) as nodes:
        three_node_cluster = Cluster(nodes, tmp_path)
        try:
            yield three_node_cluster
        finally:
            three_node_cluster.crawl.stop()


def test_the_filter_recovers_from_lost_nodes(cluster: Cluster) -> None:
    """The same roles go on within 30 s of healing, and no record is lost."""
    crawl = cluster.crawl
    index, worker = crawl.start("index"), crawl.start("worker")
    cluster.send()
    cluster.measure("the start")

    for what, victim in (
        ("the log's leader", cluster.leader(crawl.names.fingerprints)),
        ("the coordinator", None),
    ):
        node = victim or cluster.coordinator()
        cluster.send()
        node.kill()
        cluster.measure(f"{what} killed")  # two of three are left: this must heal without the third
        node.start()

    for node in cluster.nodes.values():
        wait_until(lambda: is_in_sync(cluster), "every replica is in sync again")
        cluster.send()
        node.stop()
        node.start()
    cluster.measure("a rolling restart")

    wait_until(lambda: is_in_sync(cluster), "every replica is in sync again")
    cluster.send()
    first, second = list(cluster.nodes.values())[:2]
    for node in (first, second):
        node.kill()
    before = crawl.committed()  # asked of one node alone: no answer counts as none
    assert before <= cluster.sent
    first.start()
    second.start()
    cluster.measure("two of three down")

    print({what: f"{seconds:.1f} s" for what, seconds in cluster.healed_seconds.items()})
    assert (index.process.poll(), worker.process.poll()) == (None, None)
    found = [what for what, seconds in cluster.healed_seconds.items() if seconds > HEALED_SECONDS]
    assert found == []
    Outcome(crawl).check()


def is_in_sync(cluster: Cluster) -> bool:
    """Return whether every partition of the cluster has three replicas in sync."""
    try:
        metadata = cluster.metadata()
    except KafkaException:
        return False
    return len(metadata.brokers) == 3 and all(
        len(part.isrs) == 3
        for topic in metadata.topics.values()
        for part in topic.partitions.values()
    )


def test_any_broker_can_answer_whether_kafka_is_up(tmp_path: Path) -> None:
    """The known controller is down; asking for a topic does not create it."""
    with three_nodes(tmp_path, {"auto.create.topics.enable": "true"}) as nodes:
        admin = Admin(Settings(kafka_bootstrap_servers=",".join(node.bootstrap for node in nodes)))
        assert admin.find_silence_reason("documents", 20.0) == ""
        known = admin._client.list_topics(timeout=20)
        nodes[known.controller_id - 1].kill()

        assert admin.find_silence_reason("documents", 20.0) == ""
        assert "documents" not in known.topics
        assert "documents" not in admin._client.list_topics(timeout=20).topics


def test_topic_requests_find_the_new_controller(tmp_path: Path) -> None:
    """A client whose known controller is dead learns of the new one during the request."""
    with three_nodes(tmp_path) as nodes:
        admin = Admin(Settings(kafka_bootstrap_servers=",".join(node.bootstrap for node in nodes)))
        admin.create("documents", 4, 3, {})
        before = admin.topic_ids(["documents"])
        nodes[admin._client.list_topics(timeout=20).controller_id - 1].kill()

        assert admin.topic_ids(["documents"]) == before
