"""`topics plan` and `apply`, also in a race, and the memory that a plan needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from stream_dedup.cli import topics as command
from stream_dedup.domain import topics
from stream_dedup.domain.errors import ConfigurationError, InputError, TopicExistsError
from stream_dedup.domain.plan import PLANS
from stream_dedup.domain.sketch import SKETCH_BYTES
from stream_dedup.domain.topics import Action, TopicState, read_topics
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.tables.budget import Budget
from stream_dedup.indexer.api import IndexApi
from stream_dedup.orders import run_declare
from stream_dedup.serving.ports import free_ports
from stream_dedup.settings.settings import Settings
from tests.index.logs import APPEND_MS, Doc, batch, declare
from tests.serving.serving import serving

SETTINGS = Settings(group="g", kafka_bootstrap_servers="127.0.0.1:1")


class Cluster:
    """One broker on which another `apply` creates every other topic just before we do."""

    def __init__(self, *, is_raced: bool = True) -> None:
        self.is_raced = is_raced
        self.found: dict[str, TopicState] = {}
        self.created: list[str] = []

    def broker_count(self) -> int:
        return 1

    def describe(self, names: Iterable[str]) -> Mapping[str, TopicState]:
        return {name: self.found[name] for name in names if name in self.found}

    def create(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> None:
        if name in self.found:
            raise AssertionError(f"{name} was planned though it is there")
        self.found[name] = TopicState(name, bytes(16), partitions, dict(config), replication_factor)
        if self.is_raced and len(self.found) % 2:
            raise TopicExistsError(f"the topic {name} is there")
        self.created.append(name)


def test_the_loser_of_a_race_plans_again() -> None:
    """`stream-dedup broker` creates the topics too."""
    cluster = Cluster()

    found = topics.apply_to_cluster(cluster, SETTINGS.topic_names, fit_brokers=True)  # type: ignore[arg-type]

    declared = {topic.name for topic in read_topics(SETTINGS.topic_names)}
    assert set(cluster.found) == declared
    assert 0 < len(cluster.created) < len(declared)
    assert {change.action for change in found.changes} <= {Action.CREATE}


def test_a_topic_that_exists_but_is_not_listed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is being deleted cannot be created and is not listed."""

    def refuse(name: str, *_: object) -> None:
        raise TopicExistsError(f"the topic {name} is there")

    cluster = Cluster()
    monkeypatch.setattr(topics, "_REPLAN_SECONDS", 0)
    monkeypatch.setattr(cluster, "describe", lambda _: {})
    monkeypatch.setattr(cluster, "create", refuse)

    with pytest.raises(TopicExistsError, match="is there"):
        topics.apply_to_cluster(cluster, SETTINGS.topic_names, fit_brokers=True)  # type: ignore[arg-type]


def test_plan_and_apply_print_their_actions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before: what to create; after: what was created; then that nothing is left."""
    cluster = Cluster(is_raced=False)
    monkeypatch.setattr(command, "Admin", lambda _: cluster)
    plan, apply = command.topics_plan_command, command.topics_apply_command
    for chosen, expected in (
        (plan, "create +duplicates does not exist: create it with 12 partitions"),
        (apply, "created +duplicates was created with 12 partitions"),
        (plan, "none +duplicates is correct"),
    ):
        chosen.action(SETTINGS, fit_brokers=True)
        assert re.search(f"^duplicates +{expected}\\.", capsys.readouterr().out, re.MULTILINE)


# -- before a plan is written, the index is asked for the memory that it needs


@pytest.fixture(params=[0, 1, 8 << 30])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The address of an index, and its memory limit in bytes."""
    index = LogIndex(MemoryStore(), Budget(8 << 30, tmp_path))
    docs = [Doc(0, n, n, bytes([n]) * 16, n << 40, sketch=bytes(SKETCH_BYTES)) for n in range(3)]
    index.apply([(0, APPEND_MS, declare(PLANS["classic"])), (1, APPEND_MS, batch(docs))])
    index._budget = Budget(request.param, tmp_path)
    api = IndexApi()
    api.serve(index)
    with serving(api.routes()) as server:
        yield f"http://127.0.0.1:{server.port}", request.param


def test_the_index_reports_the_memory_that_a_plan_needs(
    index: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    address, memory_bytes = index
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    if memory_bytes == 1:
        with pytest.raises(
            ConfigurationError,
            match=r"needs at least 5\d\d MiB .* kept: 1\), .* Nothing was written",
        ):
            run_declare._ask_for_memory([nobody, address], PLANS["bands"])
    else:
        run_declare._ask_for_memory([nobody, address], PLANS["bands"])
        errors = capsys.readouterr().err
        assert f"The index at {address} needs 511 MiB" in errors
        assert ("its limit is 8,192 MiB" in errors) == bool(memory_bytes)


def test_without_an_answer_nothing_is_written() -> None:
    with pytest.raises(
        InputError, match=r"No index answers at .* Nothing was written: .*--index .*--unchecked"
    ):
        run_declare._ask_for_memory([f"http://127.0.0.1:{free_ports(1)[0]}"], PLANS["bands"])
