"""What was begun: written down once its offset is committed, asked for when an offset is
missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stream_dedup.domain.errors import ConfigurationError, FirstStartError
from stream_dedup.domain.topics import TopicNames
from stream_dedup.log.begun_partitions import (
    BegunPartitions,
    encode_begun,
    encode_opened,
    encode_reading,
)
from stream_dedup.log.records import Batch, Control, LogRecord, decode
from stream_dedup.orders.beginnings import Beginnings
from stream_dedup.preflight.declaration import reading_of
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import startup
from tests.orders.test_rewind import batch

NAMES = TopicNames("crawl")
LOG, TOPIC, OTHER = bytes([1]) * 16, bytes(range(16)), bytes([3]) * 16
SETTINGS = Settings(topic_prefix="crawl")


class Kafka:
    """The two topics, and the partitions with a committed offset."""

    def __init__(self) -> None:
        self.topics: dict[str, list[LogRecord | None]] = {
            NAMES.begun: [],
            NAMES.fingerprints: [Control("declare", {})],
        }
        self.committed: frozenset[int] = frozenset()
        self.written: list[LogRecord] = []

    def read_whole_log(
        self, _settings: Settings, topic: str
    ) -> Iterator[tuple[int, LogRecord | None]]:
        yield from enumerate(self.topics[topic])

    def append_begun(self, _settings: Settings, _names: TopicNames, *raws: bytes) -> None:
        self.written += [decode(raw) for raw in raws]
        self.topics[NAMES.begun] += [decode(raw) for raw in raws]

    def partitions_committed(self, _group: str, _topic: str) -> frozenset[int]:
        return self.committed

    def started(self, topic_id: bytes = TOPIC, log_id: bytes = LOG) -> Beginnings:
        """Return the beginnings of a worker that has just started with three partitions."""
        found = self.known(SETTINGS, log_id, topic_id)
        found.record_older_partitions(3)
        return found

    def known(self, settings: Settings, log_id: bytes = LOG, topic_id: bytes = TOPIC) -> Beginnings:
        admin: Any = self
        return Beginnings(
            settings,
            NAMES,
            log_id,
            topic_id,
            make_admin=lambda _: admin,
            read=self.read_whole_log,
            write=self.append_begun,
        )


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


def epoch(found: Beginnings, partition: int, settings: Settings = SETTINGS) -> int:
    cluster: Any = startup.SourceCluster(
        NAMES, LOG, TOPIC, 3, 3, 1, 1, plan=None, verdicts_id=b"answers"
    )  # type: ignore[arg-type]
    return startup.first_epoch(settings, cluster, found, (NAMES.documents, partition))


def test_a_partition_begins_once(kafka: Kafka) -> None:
    """It is told by every worker that starts later, and by one that asks again; nothing is written
    twice by one worker."""
    first, second = kafka.started(), kafka.started()
    assert [epoch(first, part) for part in range(3)] == [0, 0, 0]
    first.record([0, 1])
    first.record([1])

    assert (
        len(
            [
                record
                for record in kafka.written
                if isinstance(record, Control) and record.type == "begun"
            ]
        )
        == 1
    )
    with pytest.raises(
        FirstStartError,
        match=r"no committed offset for crawl\.documents-1, though crawl\.begun records",
    ):
        epoch(kafka.started(), 1)
    assert not second.is_begun(0)
    second.refresh()
    assert [second.is_begun(part) for part in range(3)] == [True, True, False]


def test_a_recreated_topic_or_log_begins_again(kafka: Kafka) -> None:
    """A topic created again has another id, and a log that was begun anew too; records of others
    say nothing."""
    kafka.started().record([0, 1, 2])
    kafka.topics[NAMES.begun] += [
        None,
        Control("begun", {"log": LOG.hex(), "topic_id": TOPIC.hex(), "partitions": "0"}),
    ]

    assert [kafka.started(topic_id=OTHER).is_begun(part) for part in range(3)] == [False] * 3
    assert [kafka.started(log_id=OTHER).is_begun(part) for part in range(3)] == [False] * 3
    assert [kafka.started().is_begun(part) for part in range(3)] == [True] * 3


@pytest.mark.parametrize(
    ("committed", "log", "begun"),
    [
        ({0, 2}, [batch((0, 0, 0))], [True, False, True]),
        (set(), [batch((0, 0, 0))], [True, True, True]),
        (set(), [batch((0, 0, 0), topic_id=OTHER)], [False, False, False]),
        (set(), [], [False, False, False]),
    ],
)
def test_older_partitions_are_found_by_offsets_or_documents(
    kafka: Kafka, committed: set[int], log: list[Batch], begun: list[bool]
) -> None:
    """The log is searched once, because the result is recorded."""
    kafka.topics[NAMES.fingerprints] += [*[Control("forget", {})] * 60, *log]
    kafka.committed = frozenset(committed)

    found = kafka.started()

    assert [found.is_begun(part) for part in range(3)] == begun
    kafka.committed = frozenset()
    kafka.topics.pop(NAMES.fingerprints)
    assert [kafka.started().is_begun(part) for part in range(3)] == begun


def test_two_concurrent_first_workers_record_only_begun_partitions(
    kafka: Kafka,
) -> None:
    """The other commits its first offset and writes its first document while this one stands still
    between its questions."""
    other = kafka.known(SETTINGS)

    def begins_meanwhile(settings: Settings, topic: str) -> Iterator[tuple[int, LogRecord | None]]:
        if topic == NAMES.fingerprints and not kafka.committed:
            other.record_older_partitions(3)
            kafka.committed = frozenset({0})
            other.record([0])
            kafka.topics[NAMES.fingerprints].append(batch((0, 0, 0)))
        return kafka.read_whole_log(settings, topic)

    admin: Any = kafka
    found = Beginnings(
        SETTINGS,
        NAMES,
        LOG,
        TOPIC,
        make_admin=lambda _: admin,
        read=begins_meanwhile,
        write=kafka.append_begun,
    )
    found.record_older_partitions(3)

    assert [found.is_begun(part) for part in range(3)] == [True, False, False]
    assert [kafka.started().is_begun(part) for part in range(3)] == [True, False, False]


def test_the_records_are_folded_in_any_order() -> None:
    """Records of other topics and logs among them are ignored."""
    found = BegunPartitions(LOG, TOPIC)
    raws = (
        encode_begun(LOG, "t", TOPIC, [2, 0]),
        encode_opened(OTHER),
        encode_begun(LOG, "t", OTHER, [1]),
        encode_opened(LOG),
    )
    for raw in raws:
        assert not found.is_complete
        found.fold(decode(raw))

    assert (found.partitions, found.is_complete) == ({0, 2}, True)


def test_the_first_worker_records_how_documents_are_read(kafka: Kafka) -> None:
    """One that reads them otherwise is refused, with the difference; `declare` changes it; another
    log knows nothing of it."""
    json = Settings(topic_prefix="crawl", value_format="json", text_field="body", id_field="url")

    def starts(settings: Settings, log_id: bytes = LOG) -> str:
        try:
            kafka.known(settings, log_id).ensure_reading()
        except ConfigurationError as error:
            return str(error)
        return ""

    assert [starts(json), starts(json)] == ["", ""]
    assert len(kafka.written) == 1
    refused = starts(SETTINGS)
    assert (
        "read with STREAM_DEDUP_VALUE_FORMAT=json, STREAM_DEDUP_TEXT_FIELD=body, "
        "STREAM_DEDUP_ID_FIELD=url" in refused
    )
    assert (
        "settings are STREAM_DEDUP_VALUE_FORMAT=raw, STREAM_DEDUP_TEXT_FIELD=, STREAM_DEDUP_ID_FIELD="
        in refused
    )
    assert "stream-dedup declare --reading" in refused

    kafka.append_begun(SETTINGS, NAMES, encode_reading(LOG, reading_of(SETTINGS), changes=True))
    assert starts(SETTINGS) == ""
    assert starts(json)
    assert starts(json, OTHER) == ""


def test_two_first_workers_follow_one_record(kafka: Kafka) -> None:
    """Both found nothing and both wrote: the first record holds, also for the worker that wrote the
    second."""
    html = Settings(topic_prefix="crawl", text_is="html")
    second = kafka.known(SETTINGS)
    kafka.known(html).ensure_reading()

    with pytest.raises(ConfigurationError, match="STREAM_DEDUP_TEXT_IS=html, and this worker's"):
        second.ensure_reading()
    assert len(kafka.written) == 2


def test_only_settings_that_affect_reading_are_compared() -> None:
    """A text's field says nothing of raw values; time, batches and the rest may differ from worker
    to worker."""
    assert reading_of(Settings()) == reading_of(Settings(batch_documents=7, allow_bypass=True))
    for changed in ({"value_format": "json"}, {"text_is": "html"}, {"text_encoding": "base64"}):
        assert reading_of(Settings()) != reading_of(Settings(**changed))  # type: ignore[arg-type]
