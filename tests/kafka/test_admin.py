"""Asking a cluster that is not there, and a group's coordinator that is not ready."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from stream_dedup.domain.errors import BrokerError
from stream_dedup.kafka import Admin, admin
from stream_dedup.settings.settings import Settings
from tests.kafka.scripted import Scripted, future_of, refusal


def test_a_silent_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_TIMEOUT_SECONDS", 1.0)
    with socket.socket() as port_socket:
        port_socket.bind(("127.0.0.1", 0))  # no process listens there, and no other can
        address = f"127.0.0.1:{port_socket.getsockname()[1]}"

        with pytest.raises(
            BrokerError,
            match=rf"refused: no broker answered at {address} .*STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS",
        ):
            Admin(Settings(kafka_bootstrap_servers=address)).topic_ids(["documents"])


class Coordinator(Scripted):
    """An admin client whose coordinator refuses the first requests; offsets are to be requested
    later."""

    def __init__(self, *refusals: int) -> None:
        super().__init__()
        self.refusals = list(refusals)
        self.asked: list[str] = []

    def describe_consumer_groups(self, groups: list[str], **_: Any) -> dict[str, Future[Any]]:
        self.asked.append("members")
        if self.refusals:
            return {groups[0]: future_of(refusal(self.refusals.pop(0)))}
        return {groups[0]: future_of(SimpleNamespace(members=[]))}

    def list_consumer_group_offsets(
        self, wanted: list[Any], *, require_stable: bool, **_: Any
    ) -> dict[str, Future[Any]]:
        """Answer with 7 for partition 1, and with 9,000 for partition 2, which an open transaction
        is about to move: as Kafka does, with an error instead where the offset must be stable."""
        self.asked.append("offsets")
        assert not self.refusals, "librdkafka crashes here"
        moving: Any = TopicPartition("documents", 2, 9_000, "m")
        if require_stable:
            error = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT)
            moving = SimpleNamespace(topic="documents", partition=2, offset=-1001, error=error)
        found = [TopicPartition("documents", 1, 7, "m"), moving]
        return {wanted[0].group_id: future_of(SimpleNamespace(topic_partitions=found))}


KNOWN = {("documents", 1): (7, "m"), ("documents", 2): (9_000, "m")}


def make_admin(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Admin:
    monkeypatch.setattr(admin, "AdminClient", lambda *_, **__: coordinator)
    return Admin(Settings(kafka_bootstrap_servers="127.0.0.1:1"))


def test_a_coordinator_that_is_not_ready_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets are asked for only once the coordinator has answered: before that, the question
    crashes librdkafka (#5040)."""
    coordinator = Coordinator(
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    )
    assert make_admin(coordinator, monkeypatch).committed_or_last_known("g") == KNOWN
    assert coordinator.asked == ["members"] * 4 + ["offsets"]


def test_an_open_transaction_hides_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count records, the last committed offset is read; to write offsets, an open transaction is
    an error."""
    admin_of_group = make_admin(Coordinator(), monkeypatch)

    assert admin_of_group.committed_or_last_known("g") == KNOWN
    assert admin_of_group.partitions_committed("g", "documents") == {1, 2}
    with pytest.raises(BrokerError, match=r"An open transaction .* for documents-2"):
        admin_of_group.stable_committed("g")


def test_offsets_are_written_again_if_the_coordinator_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition whose answer says that the coordinator is another one is written again."""
    coordinator = Coordinator()
    codes = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]

    def alter(wanted: list[Any]) -> dict[str, Future[Any]]:
        coordinator.asked.append("write")
        error = KafkaError(codes.pop(0)) if codes else None
        return {
            wanted[0].group_id: future_of(
                SimpleNamespace(topic_partitions=[SimpleNamespace(error=error)])
            )
        }

    monkeypatch.setattr(coordinator, "alter_consumer_group_offsets", alter, raising=False)
    make_admin(coordinator, monkeypatch).write_committed("g", "documents", {1: (7, "m")})

    assert coordinator.asked == ["write"] * 3


def test_other_refusals_of_a_coordinator_are_raised_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A permanent error is not retried; an unknown group has no members."""
    coordinator = Coordinator(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="requesting the members of group g"):
        make_admin(coordinator, monkeypatch).committed_or_last_known("g")
    assert coordinator.asked == ["members"]
    assert (
        make_admin(Coordinator(KafkaError.GROUP_ID_NOT_FOUND), monkeypatch).group_members("g") == 0
    )


def test_a_coordinator_that_never_is_ready_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_TIMEOUT_SECONDS", 0.05)
    coordinator = Coordinator(*[KafkaError.COORDINATOR_LOAD_IN_PROGRESS] * 1_000_000)
    with pytest.raises(BrokerError, match=r"members of group g.*COORDINATOR_LOAD_IN_PROGRESS"):
        make_admin(coordinator, monkeypatch).committed_or_last_known("g")


def test_the_reason_comes_first_and_a_long_wait_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error begins with the refused connection; a wait for a silent broker is logged."""
    monkeypatch.setattr(admin, "_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(admin, "_LOG_AFTER_SECONDS", 0.3)
    monkeypatch.setattr(admin, "_FIRST_REQUEST_SECONDS", 0.1)
    with socket.socket() as port_socket:
        port_socket.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{port_socket.getsockname()[1]}"

        with pytest.raises(
            BrokerError, match=rf"^Connection refused: no broker answered at {address} within"
        ):
            Admin(Settings(kafka_bootstrap_servers=address)).broker_count()
        assert "No answer" not in caplog.text

        port_socket.listen()  # accepts connections, and never sends anything
        with pytest.raises(BrokerError, match=rf"^No broker answered at {address} within"):
            Admin(Settings(kafka_bootstrap_servers=address)).topic_ids(["documents"])
        assert f"No answer from Kafka at {address} yet" in caplog.text
        caplog.clear()
        with pytest.raises(BrokerError):
            Admin(Settings(kafka_bootstrap_servers=address)).cluster_id()
        assert f"No answer from Kafka at {address} yet" in caplog.text


def test_silence_returns_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    """The client's messages are logged during the wait."""
    with socket.socket() as port_socket:
        port_socket.bind(("127.0.0.1", 0))
        refused_admin = Admin(
            Settings(kafka_bootstrap_servers=f"127.0.0.1:{port_socket.getsockname()[1]}")
        )

        assert refused_admin.find_silence_reason("documents", 1.0) == "Connection refused"
        assert "Connection refused" in caplog.text

        port_socket.listen()
        silent_admin = Admin(
            Settings(kafka_bootstrap_servers=f"127.0.0.1:{port_socket.getsockname()[1]}")
        )
        assert silent_admin.find_silence_reason("documents", 1.0) == "No broker has answered"
