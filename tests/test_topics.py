"""Topics as code: the files, the plan, and the requirements of the log."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_dedup.domain import topics
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.topics import Action, Topic, TopicNames

FOREVER = "-1"
LONGEST = str(2**63 - 1)


@dataclass
class Found:
    partitions: int
    config: dict[str, str] = field(default_factory=dict)
    replicas: int = 3


class FakeCluster:
    def __init__(self) -> None:
        self.topics: dict[str, Found] = {}

    def create(
        self, name: str, partitions: int, replication_factor: int, config: dict[str, str]
    ) -> None:
        assert name not in self.topics
        assert replication_factor >= 1
        self.topics[name] = Found(partitions, dict(config), replication_factor)

    def set_config(self, name: str, config: dict[str, str]) -> None:
        self.topics[name].config.update(config)

    def add_partitions(self, name: str, total: int) -> None:
        assert total > self.topics[name].partitions
        self.topics[name].partitions = total


def declared(prefix: str = "") -> dict[str, Topic]:
    return {topic.kind: topic for topic in topics.read_topics(prefix)}


def as_declared(prefix: str = "") -> dict[str, Found]:
    return {
        topic.name: Found(topic.partitions, dict(topic.config))
        for topic in topics.read_topics(prefix)
    }


def spec(partitions: int, **more: Any) -> dict[str, Any]:
    return {"spec": {"partitions": partitions, "replicas": 1, **more}}


def copy_files(folder: Path) -> Path:
    for path in topics.topic_folder().glob("*.yaml"):
        (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


SINGLE = ("fingerprints", "verdicts", "begun", "host-signals", "insights-changelog")
SEVERAL = ("documents", "unique", "duplicates", "dlq.documents")


class TestNames:
    def test_a_prefix_with_or_without_its_dot(self) -> None:
        assert TopicNames("crawl").documents == TopicNames("crawl.").documents == "crawl.documents"
        assert TopicNames("crawl-").dead_letters == "crawl-dlq.documents"
        assert TopicNames().all() == topics.ALL

    def test_the_longest_name_is_valid_in_kafka(self) -> None:
        longest = "x" * (249 - len("shadow.fingerprints") - 1)

        assert max(map(len, TopicNames(longest, is_shadow=True).all())) == 249
        with pytest.raises(ValueError, match="249"):
            TopicNames(longest + "x")

    @pytest.mark.parametrize("prefix", ["a_b", "a b", ".a", "-", "ä", "x" * 236, "a/b", "a\n"])
    def test_an_invalid_prefix_is_refused(self, prefix: str) -> None:
        """An underscore collides with a dot in Kafka's metric names."""
        with pytest.raises(ValueError, match="must"):
            TopicNames(prefix)

    def test_a_shadow_has_a_separate_log(self) -> None:
        plain, shadow = TopicNames("crawl"), TopicNames("crawl", is_shadow=True)
        moved = {
            ours: other
            for ours, other in zip(plain.all(), shadow.all(), strict=True)
            if ours != other
        }
        names = ("fingerprints", "verdicts", "begun")
        assert moved == {f"crawl.{name}": f"crawl.shadow.{name}" for name in names}


class TestFiles:
    def test_each_topic_has_a_file_and_each_file_a_topic(self) -> None:
        files = {path.stem for path in topics.topic_folder().glob("*.yaml")}
        readme = (Path(__file__).parent.parent / "topics" / "README.md").read_text(encoding="utf-8")

        assert files == set(topics.ALL)
        assert re.findall(r"^\| `([^`]+)` \|", readme, re.MULTILINE) == list(topics.ALL)

    def test_files_are_strimzi_topics(self) -> None:
        """Each is a v1 KafkaTopic with a name valid in Kubernetes and values valid in Strimzi."""
        for kind in topics.ALL:
            content = yaml.safe_load(
                (topics.topic_folder() / f"{kind}.yaml").read_text(encoding="utf-8")
            )
            assert content["apiVersion"] == "kafka.strimzi.io/v1"
            assert content["kind"] == "KafkaTopic"
            assert re.fullmatch(
                r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", content["metadata"]["name"]
            )
            assert content["metadata"]["labels"]["strimzi.io/cluster"]
            assert set(content["spec"]) == {"partitions", "replicas", "config"}
            assert all(
                isinstance(value, str | int | float | bool)
                for value in content["spec"]["config"].values()
            )

    def test_the_log_is_never_trimmed(self) -> None:
        """The declared log passes the check without which no role starts."""
        log = declared()["fingerprints"]

        assert topics.log_problems(log.name, Found(log.partitions, dict(log.config))) == []
        assert (log.partitions, log.replicas) == (1, 3)
        found = (log.config["min.insync.replicas"], log.config["unclean.leader.election.enable"])
        assert found == ("2", "false")
        assert (log.config["retention.ms"], log.config["retention.bytes"]) == (FOREVER, FOREVER)

    def test_outputs_accept_every_input_record(self) -> None:
        """Topics with documents' timestamps keep records for ever, or old pages would vanish."""
        found = declared()
        limit = {kind: int(found[kind].config["max.message.bytes"]) for kind in SEVERAL}

        assert (
            limit["unique"]
            == limit["duplicates"]
            == limit["documents"] + topics.HEADER_BUDGET_BYTES
        )
        assert limit["dlq.documents"] >= limit["unique"] + topics.HEADER_BUDGET_BYTES
        for kind in ("unique", "duplicates"):
            assert found[kind].config["message.timestamp.before.max.ms"] == LONGEST
            assert found[kind].config["message.timestamp.after.max.ms"] == LONGEST
        for kind in ("unique", "duplicates", "dlq.documents"):
            config = found[kind].config
            assert (
                config["retention.ms"] == FOREVER
                or config["message.timestamp.type"] == "LogAppendTime"
            )
        assert found["dlq.documents"].config["retention.ms"] == str(14 * 86_400_000)
        shown = {kind: topic.partitions for kind, topic in found.items()}
        assert shown == dict.fromkeys(SINGLE, 1) | dict.fromkeys(SEVERAL, 12)

    @pytest.mark.parametrize(
        ("kind", "change", "message"),
        [
            ("unique", "gone", "does not exist"),
            ("unique", "[", "unique.yaml"),
            ("unique", "kind: Secret", "does not contain a Strimzi KafkaTopic"),
            ("unique", {"metadata": None}, "does not contain `metadata` or `spec`"),
            ("unique", {"metadata": {"name": "other"}}, "must be 'unique'"),
            ("unique", spec(0), "spec.partitions is 0"),
            ("unique", spec(True), "spec.partitions is True"),
            ("unique", spec(12, config=["a"]), "spec.config must contain"),
            ("unique", spec(3), "as many partitions as documents (12)"),
            ("verdicts", spec(2), "verdicts must have 1 partition"),
            ("fingerprints", spec(1), "fingerprints must have cleanup.policy=delete"),
        ],
    )
    def test_invalid_files_are_refused(
        self, tmp_path: Path, kind: str, change: Any, message: str
    ) -> None:
        path = copy_files(tmp_path) / f"{kind}.yaml"
        if change == "gone":
            path.unlink()
        elif isinstance(change, str):
            path.write_text(change, encoding="utf-8")
        else:
            content = yaml.safe_load(path.read_text(encoding="utf-8")) | change
            path.write_text(yaml.safe_dump(content), encoding="utf-8")

        with pytest.raises(ConfigurationError) as caught:
            topics.read_topics(folder=tmp_path)

        assert message in str(caught.value)
        for file in tmp_path.iterdir():
            file.unlink()
        with pytest.raises(ConfigurationError) as caught:
            topics.read_topics(folder=tmp_path)
        assert str(caught.value).count("does not exist") == len(topics.ALL), "all are named at once"


class TestPlan:
    def test_the_documents_topic_is_not_changed(self) -> None:
        existing = {
            **as_declared(),
            "documents": Found(12, {"retention.ms": "1", "cleanup.policy": "compact"}),
        }

        assert topics.plan(topics.read_topics(), existing) == []

    def test_outputs_follow_an_existing_input(self) -> None:
        """Created or grown to match its partitions and its largest record."""
        existing: dict[str, Found] = {
            "documents": Found(24, {"max.message.bytes": "20000000"}),
            "unique": Found(12, as_declared()["unique"].config),
        }

        changes = {
            (change.topic.kind, change.action): change
            for change in topics.plan(topics.read_topics(), existing)
        }

        assert changes["unique", Action.GROW].partitions == (12, 24)
        expected = {"max.message.bytes": ("1114124", "20065536")}
        assert changes["unique", Action.SET].config == expected
        assert changes["duplicates", Action.CREATE].topic.partitions == 24
        assert changes["duplicates", Action.CREATE].topic.config["max.message.bytes"] == "20065536"
        found = changes["dlq.documents", Action.CREATE].topic.config["max.message.bytes"]
        assert found == "20131072"

    @pytest.mark.parametrize("kind", SINGLE)
    def test_one_partition_too_many_cannot_be_undone(self, kind: str) -> None:
        """It is refused with the remedy, and then nothing is applied."""
        existing = as_declared()
        existing[kind].partitions = 2
        del existing["unique"]
        cluster = FakeCluster()

        changes = topics.plan(topics.read_topics(), existing)

        assert [change.topic.kind for change in changes if change.action is Action.REFUSE] == [kind]
        with pytest.raises(ConfigurationError, match="STREAM_DEDUP_TOPIC_PREFIX"):
            topics.apply(changes, cluster)
        assert cluster.topics == {}

    @pytest.mark.parametrize(
        ("setting", "value"),
        [
            ("retention.ms", "604800000"),
            ("retention.bytes", "1000000"),
            ("cleanup.policy", "compact"),
            ("cleanup.policy", "compact,delete"),
            ("message.timestamp.type", "CreateTime"),
        ],
    )
    def test_settings_that_would_trim_the_log_are_named(self, setting: str, value: str) -> None:
        """Roles do not start; the plan repairs the setting and warns of lost records."""
        existing = as_declared()
        existing["fingerprints"].config[setting] = value

        (problem,) = topics.log_problems("fingerprints", existing["fingerprints"])
        (change,) = topics.plan(topics.read_topics(), existing)

        assert f"{setting}={value}" in problem
        assert "stream-dedup topics apply" in problem
        assert change.action is Action.SET
        assert f"{setting} from {value} to" in change.sentence
        assert "if that has happened already, the log is incomplete" in change.sentence
        (problem,) = topics.log_problems(
            "fingerprints", Found(2, declared()["fingerprints"].config)
        )
        assert "has 2 partitions and must have one" in problem

    def test_explicitly_named_topics_are_not_changed(self) -> None:
        """An existing named topic is never changed; outputs follow the input topic."""
        names = TopicNames("p", names_by_kind={"documents": "crawled_firehose", "unique": "clean"})
        wanted = topics.read_topics(names)
        cluster = FakeCluster()
        cluster.topics["crawled_firehose"] = Found(24, {"max.message.bytes": "1048588"})
        cluster.topics["clean"] = Found(3, {"max.message.bytes": "1"})

        changes = topics.plan(wanted, cluster.topics)
        topics.apply(changes, cluster)

        found = (names.documents, names.unique, names.duplicates)
        assert found == ("crawled_firehose", "clean", "p.duplicates")
        assert cluster.topics["clean"] == Found(3, {"max.message.bytes": "1"})
        assert cluster.topics["p.duplicates"].partitions == 24
        assert set(cluster.topics) == set(names.all())
        (row,) = (
            row for row in topics.as_rows(topics.TopicPlan(wanted, [])) if row["topic"] == "clean"
        )
        assert "is not changed; `stream-dedup doctor`" in str(row["sentence"])
        found = [change.topic.name for change in topics.plan(wanted, {})][:2]
        assert found == ["crawled_firehose", "clean"]

    def test_applying_a_plan_leaves_nothing_to_plan(self) -> None:
        """From any cluster that can be corrected, without shrinking anything."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        source = random.Random(seed)
        wanted = topics.read_topics("p")
        for _ in range(200):
            cluster = FakeCluster()
            for topic in wanted:
                if source.random() < 0.7:
                    several = topic.kind in SEVERAL
                    config = {
                        key: value for key, value in topic.config.items() if source.random() < 0.8
                    }
                    config["max.message.bytes"] = str(source.choice([1000, 1048588, 5_000_000]))
                    cluster.topics[topic.name] = Found(
                        source.randint(1, 30) if several else 1, config
                    )
            before = {name: found.partitions for name, found in cluster.topics.items()}
            untouched = (
                {**cluster.topics["p.documents"].config}
                if "p.documents" in cluster.topics
                else None
            )

            topics.apply(topics.plan(wanted, cluster.topics), cluster)

            assert topics.plan(wanted, cluster.topics) == []
            assert all(cluster.topics[name].partitions >= count for name, count in before.items())
            assert set(cluster.topics) == set(TopicNames("p").all())
            if untouched is not None:
                assert cluster.topics["p.documents"].config == untouched
            for name in TopicNames("p").outputs:
                assert cluster.topics[name].partitions >= cluster.topics["p.documents"].partitions


class TestFitting:
    @pytest.mark.parametrize(
        ("brokers", "replicas", "in_sync"), [(1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (9, 3, "2")]
    )
    def test_replicas_follow_the_brokers(self, brokers: int, replicas: int, in_sync: str) -> None:
        fitted = topics.fit_to_brokers(topics.read_topics(), brokers)
        found = {(topic.replicas, topic.config["min.insync.replicas"]) for topic in fitted}
        assert found == {(replicas, in_sync)}

    def test_min_isr_never_exceeds_the_replicas_that_a_topic_has(self) -> None:
        """With 2, nobody could write to a topic of one replica."""
        cluster = FakeCluster()
        topics.apply(topics.plan(topics.fit_to_brokers(topics.read_topics(), 1), {}), cluster)

        changes = topics.plan(topics.read_topics(), cluster.topics)
        found = [change.sentence for change in changes if "min.insync.replicas" in change.config]
        assert found == []

    def test_too_few_brokers_are_reported_before_any_change(self) -> None:
        """The error names the option that helps."""
        low = as_declared()
        low["unique"].config["min.insync.replicas"] = "1"

        for changes in (
            topics.plan(topics.read_topics(), {}),
            topics.plan(topics.read_topics(), low),
        ):
            assert "--fit-brokers" in str(topics.replicas_problem(changes, 1))
            assert topics.replicas_problem(changes, 3) is None

    def test_partitions_on_request(self) -> None:
        changed = topics.with_partitions(topics.read_topics(), 5)

        found = {topic.partitions for topic in changed if topic.kind in ("documents", "unique")}
        assert found == {5}
        assert {
            topic.partitions for topic in changed if topic.kind in ("fingerprints", "verdicts")
        } == {1}
