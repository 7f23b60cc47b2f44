"""What a worker knows of its partitions between two callbacks."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any
from unittest import mock

import pytest

from stream_dedup.domain.document import TopicPartitionKey
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.domain.messages import Messages
from stream_dedup.domain.topics import TopicNames
from stream_dedup.kafka import CommittedOffset, ExistingTopic
from stream_dedup.log import epochs
from stream_dedup.settings.settings import Settings
from stream_dedup.worker.assignment import Assignment
from stream_dedup.worker.flow import Flow
from stream_dedup.worker.startup import SourceCluster
from tests.worker.parts import ThreadStub, VirtualClock, make_context

FIRST, SECOND, NEW = ("documents", 0), ("documents", 1), ("documents", 2)
NOTHING = Messages.of([])


def stamp(generation: int) -> bytes:
    return b"CGMDv2:" + struct.pack("<i", generation) + b"member"


class Group:
    """A worker's assignment and its dependencies; `found` contains the topics that the cluster
    reports."""

    def __init__(self, offset: int | None = 0) -> None:
        self.offset = offset
        self.beginnings = mock.Mock(is_begun=lambda _: False)
        self.source = mock.Mock(committed=self._committed, low_watermark=lambda _: 0)
        self.clock = VirtualClock()
        self.found: dict[str, ExistingTopic] = {}
        cluster = SourceCluster(
            TopicNames(), b"log", b"source", 2, 2, 1 << 20, 1 << 20, mock.Mock(), b"answers"
        )
        self.it = Assignment(
            make_context(Flow(3, 100, b"n" * 16), self.clock),
            Settings(),
            cluster,
            self.beginnings,
            lambda _: self.source,
            lambda _: mock.Mock(topic_ids=lambda _: self.found),
            ThreadStub(self.clock),  # type: ignore[arg-type]
            mock.Mock(),
            mock.Mock(),
        )

    def _committed(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, Any]:
        metadata = None if self.offset is None else epochs.to_metadata(0)
        return {key: CommittedOffset(self.offset, metadata) for key in keys}

    def look(self) -> None:
        """Request the topics, and process the answer."""
        self.clock.now += 100
        for _ in range(2):
            self.it.watch_topics(soon=False, is_unreadable=False)


def test_a_worker_that_lost_its_partitions_is_not_ready_until_its_next_assignment() -> None:
    """It may be a member of a group that does not rebalance, without an assignment."""
    group = Group().it
    assert not group.has_joined
    group.assigned([FIRST])
    group.group_metadata_changed(stamp(3))
    assert group.has_joined

    group.lost([FIRST])
    group.group_metadata_changed(stamp(3))
    assert not group.has_joined
    group.assigned([])
    group.group_metadata_changed(stamp(4))
    assert group.has_joined, "it is told that there is nothing for it"


@pytest.mark.parametrize("before", ["it joined", "it lost its partitions"])
def test_a_topic_created_again_before_a_worker_is_given_partitions_ends_it(before: str) -> None:
    """Otherwise it would write positions of the new topic with the id of the old one."""
    group = Group()
    if before != "it joined":
        group.it.assigned([FIRST])
        group.it.lost([FIRST])
    group.found = {"documents": ExistingTopic(b"another", 2)}

    with pytest.raises(StreamDedupError, match="deleted and created again"):
        group.it.assigned([FIRST, SECOND])


def test_a_worker_that_gave_everything_up_waits_for_its_next_assignment() -> None:
    """A worker that gave up only a part of its partitions stays joined."""
    group = Group().it
    group.assigned([FIRST, SECOND])
    group.group_metadata_changed(stamp(3))

    group.revoked([FIRST])
    group.group_metadata_changed(stamp(3))
    assert group.has_joined
    group.revoked([SECOND])
    group.group_metadata_changed(stamp(3))
    assert not group.has_joined


def test_a_partition_is_begun_again_if_its_start_could_not_be_committed() -> None:
    group = Group(offset=None)
    group.source.commit_start.side_effect = [False, True]

    group.it.assigned([FIRST])
    assert not group.beginnings.record.called
    assert group.it.seek_to_unread(NOTHING), "what was read of it meanwhile is dropped"

    assert group.source.commit_start.call_count == 2
    assert group.beginnings.record.called
    assert group.source.restart_at.called
    assert not group.it.seek_to_unread(NOTHING)


def test_new_partitions_are_served_once_the_outputs_have_them() -> None:
    """A paused partition is served, and a later one is not paused."""
    group = Group()
    group.it.assigned([NEW])
    assert group.source.pause.call_args == mock.call([NEW])
    assert group.it.served() == []

    group.found = dict.fromkeys(TopicNames().outputs, ExistingTopic(b"outputs", 4))
    group.look()
    assert group.it.served() == [NEW]
    group.source.pause.reset_mock()
    group.it.assigned([("documents", 3)])

    assert not group.source.pause.called
