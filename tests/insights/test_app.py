"""Assignment of partitions, the records of the outputs, and detection of a hung client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from stream_dedup.domain.errors import ConfigurationError, GoneError, StreamDedupError
from stream_dedup.domain.hosts import HostNames
from stream_dedup.domain.topics import TopicNames
from stream_dedup.inputs.decoder import ids_of
from stream_dedup.insights import app
from stream_dedup.insights.metrics import InsightsMetrics
from stream_dedup.kafka import Bounds, ExistingTopic
from stream_dedup.settings.settings import Settings

TOPICS = {"unique": 4, "duplicates": 4, "insights-changelog": 1}


class Cluster:
    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(TOPICS[topic]))


def test_all_partitions_have_one_owner_that_keeps_them(tmp_path: Path) -> None:
    """A second member gets none, even if its name sorts first, until the first one leaves."""
    every = sorted((topic, part) for topic, count in TOPICS.items() for part in range(count))

    async def run() -> None:
        first, second = (app._application(Settings(), str(tmp_path)).assignor for _ in range(2))

        def assign(members: dict[str, Any]) -> dict[str, list[tuple[str, int]]]:
            metadata = {name: assignor.metadata(set(TOPICS)) for name, assignor in members.items()}
            found = first._perform_assignment(Cluster(), metadata)
            for name, assignor in members.items():
                assignor.on_assignment(found[name])
            return {
                name: sorted((topic, part) for topic, parts in member.assignment for part in parts)
                for name, member in found.items()
            }

        assert assign({"m": first}) == {"m": every}
        assert assign({"m": first, "a": second}) == {"m": every, "a": []}
        assert assign({"a": second}) == {"a": every}

    asyncio.run(run())


@pytest.mark.parametrize("is_rebalancing", [True, False])
def test_a_rebalance_fetches_only_the_table(
    is_rebalancing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust would drop records of other topics; to aiokafka an emptied set means all partitions."""
    table, output = TP("insights-changelog", 0), TP("unique", 1)
    fetched: list[set[TP]] = []

    async def fetch(_: object, __: object, partitions: set[TP], *___: object) -> dict[TP, object]:
        await asyncio.sleep(0)
        fetched.append(set(partitions))
        return {}

    monkeypatch.setattr(app.aiokafka.AIOKafkaConsumerThread, "_fetch_records", fetch)
    thread = app._ConsumerThread.__new__(app._ConsumerThread)
    thread.app = SimpleNamespace(rebalancing=is_rebalancing)
    thread.consumer = SimpleNamespace(_is_changelog_tp=lambda tp: tp == table)

    async def run(active: set[TP]) -> None:
        task = asyncio.create_task(thread._fetch_records(None, active))
        await asyncio.sleep(0)
        active.clear()
        assert await task == {}

    for active in ({table, output}, {output}, set()):
        asyncio.run(run(active))

    assert fetched == ([{table}] if is_rebalancing else [{table, output}, {output}])


def role_of(settings: Settings) -> app._Insights:
    role = app._Insights.__new__(app._Insights)
    role._settings, role._hosts, role._id_of = settings, HostNames(), ids_of(settings)
    return role


def record(key: bytes | None, value: bytes | None, *headers: tuple[str, bytes], **more: Any) -> Any:
    fields = {"topic": "unique", "partition": 3, "offset": 7, "timestamp": 1.5} | more
    return SimpleNamespace(key=key, value=value, headers=list(headers), **fields)


def test_the_host_of_a_record_is_that_of_its_id() -> None:
    """The id is read as the worker reads it."""
    by_key, by_field = role_of(Settings()), role_of(Settings(value_format="json", id_field="url"))
    url = b"https://a.example/1"

    assert by_key._read_observed(record(url, b"text"))[0] == "a.example"
    assert by_field._read_observed(record(b"k", b'{"url": "https://b.example/"}'))[0] == "b.example"
    assert by_key._read_observed(record(None, b"text"))[0] == ""


@pytest.mark.parametrize(
    ("reason", "named", "kind"),
    [
        ("near", "of", "one-page"),
        ("exact", "of", "one-page"),
        ("unchanged", "of", ""),
        ("revised", "of", ""),
        ("new", "sibling", "template"),
        ("new", None, ""),
    ],
)
def test_headers_give_reason_kind_and_page(reason: str, named: str | None, kind: str) -> None:
    headers = [("dedup.reason", reason.encode())]
    if named is not None:
        headers += [(f"dedup.{named}.id", b"page"), (f"dedup.{named}.position", b"documents-0@1")]
    _, found = role_of(Settings())._read_observed(record(b"key", b"12345", *headers))

    assert (found.partition, found.offset, found.time_ms, found.size) == ("unique-3", 7, 1500, 5)
    assert (found.reason, found.kind) == (reason, kind)
    assert (found.page, found.position) == (("page", "documents-0@1") if kind else ("", ""))


def test_a_time_in_the_future_is_now() -> None:
    """One record must not empty the windows of a host for years."""
    _, found = role_of(Settings())._read_observed(record(b"k", b"", timestamp=1e11))
    assert found.time_ms < 1e13


LOOKS = 20


@pytest.mark.parametrize(
    ("owns", "recovers", "end", "moves", "is_hung"),
    [
        (True, False, 9, False, True),
        (True, False, 9, True, False),
        (True, False, 7, False, False),
        (False, False, 9, False, False),
        (False, True, 9, False, True),
        (False, True, 9, True, False),
    ],
)
def test_a_client_without_progress_is_hung(
    monkeypatch: pytest.MonkeyPatch,
    owns: bool,
    recovers: bool,
    end: int,
    moves: bool,
    is_hung: bool,
) -> None:
    """Records wait for the owner, or for a standby that reads its table, and no position moves."""
    looks = 0

    class Recovery:
        in_recovery = recovers

        @property
        def active_offsets(self) -> dict[str, int | None]:
            return {"insights-changelog": looks if moves else None}

        def active_remaining_total(self) -> int:
            return end

    async def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks > LOOKS:
            raise asyncio.CancelledError

    async def position(_: Any) -> int:
        return min(end - 1, looks % 5) if moves else 7

    async def at_once(call: Any, *args: Any) -> Any:
        return call(*args)

    admin = SimpleNamespace(
        bounds=lambda keys: dict.fromkeys(keys, Bounds(0, end)),
        topic_ids=lambda names: dict.fromkeys(names, ExistingTopic(b"id", 1)),
    )
    monkeypatch.setattr(app.asyncio, "sleep", sleep)
    monkeypatch.setattr(app.asyncio, "to_thread", at_once)
    monkeypatch.setattr(app, "Admin", lambda _: admin)
    monkeypatch.setattr(app, "time", SimpleNamespace(monotonic=lambda: 5.0 * looks))
    role = role_of(Settings())
    role._names, role._metrics, role._owns = TopicNames(), InsightsMetrics(), owns
    role._ids = {name: ExistingTopic(b"id", 1) for name in ("unique", "duplicates")}
    role._role = SimpleNamespace(watch=SimpleNamespace(is_silent=bool))  # type: ignore[assignment]
    role._app = SimpleNamespace(
        consumer=SimpleNamespace(position=position), tables=SimpleNamespace(recovery=Recovery())
    )

    with pytest.raises(StreamDedupError if is_hung else asyncio.CancelledError, match=r"hangs|^$"):
        asyncio.run(role._watch_topics())


def test_topics_that_are_missing_or_wrong_are_named() -> None:
    names = TopicNames()
    right = {"unique": 4, "duplicates": 4, "host-signals": 1, "insights-changelog": 1}

    def check(**counts: int | None) -> Any:
        found = {
            name: ExistingTopic(b"id", count) for name, count in (right | counts).items() if count
        }
        return app.check_topics(SimpleNamespace(topic_ids=lambda _: found), names)  # type: ignore[arg-type]

    assert len(check()) == 4
    with pytest.raises(GoneError, match="duplicates does not exist"):
        check(duplicates=None)
    with pytest.raises(ConfigurationError, match="host-signals has 2 partitions"):
        check(**{"host-signals": 2})
