"""Values by a schema registry on a live broker leave once, unchanged, with a verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.broker.harness import MakeFilter, Outcome, header
from tests.broker.test_operating import text
from tests.inputs import registries

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

COUNT = 60
AWAY, UNKNOWN, LATER, COPY, NO_TEXT = 30, 11, 40, 45, 50
UNKNOWN_FRAME = b"\x00\x7f\xff\xff\xff"  # the frame of a schema that nobody has registered

RECORD = {
    "type": "record",
    "name": "Page",
    "fields": [
        {"name": "url", "type": "string"},
        {
            "name": "body",
            "type": {
                "type": "record",
                "name": "Body",
                "fields": [{"name": "text", "type": "string"}],
            },
        },
    ],
}
LATER_RECORD = RECORD | {
    "fields": [*RECORD["fields"], {"name": "host", "type": "string", "default": ""}]
}  # type: ignore[misc]


class Writer(Protocol):
    """Encodes a page, by the later schema with `later`."""

    def __call__(self, url: str, text: str, *, later: bool = False) -> bytes: ...


@pytest.fixture(params=registries.KINDS)
def registry(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a registry: the tests' own and, where it is installed, a real one."""
    with registries.running(request.param) as address:
        yield address


def avro_writer(address: str, subject: str) -> Writer:
    client = SchemaRegistryClient({"url": address, "timeout": 10})
    writers = [
        AvroSerializer(client, Schema(json.dumps(schema), "AVRO"))
        for schema in (RECORD, LATER_RECORD)
    ]

    def value(url: str, text: str, *, later: bool = False) -> bytes:
        fields: dict[str, Any] = {"url": url, "body": {"text": text}} | (
            {"host": "h"} if later else {}
        )
        raw = writers[later](fields, SerializationContext(subject, MessageField.VALUE))
        assert raw is not None
        return raw

    return value


def test_values_of_an_evolving_schema_leave_once_and_unchanged(
    make_filter: MakeFilter,
    registry: str,
) -> None:
    """Despite a kill, across two versions; values that cannot be decoded are dead letters."""
    crawl = make_filter(
        partitions=2,
        value_format="avro",
        registry_url=registry,
        text_field="body.text",
        id_field="url",
        log_level="info",
    )
    write = avro_writer(registry, crawl.names.documents)
    values = [write(f"u{number}", text(number), later=number >= LATER) for number in range(COUNT)]
    values[UNKNOWN] = UNKNOWN_FRAME + values[UNKNOWN][5:]
    values[UNKNOWN + 1] = b'{"url": "u12"}'
    values[COPY] = write("copy", text(3) + " more", later=True)
    values[NO_TEXT] = write("empty", " ")
    records = [(number % 2, b"%d" % number, value, []) for number, value in enumerate(values)]
    count = crawl.produce(records[: COUNT // 2])
    crawl.start("index")
    worker = crawl.start("worker")
    crawl.wait_until_committed(count)
    worker.kill()
    count += crawl.produce(records[COUNT // 2 :])

    worker = crawl.start("worker")
    crawl.wait_until_committed(count)
    assert worker.stop() == 0
    outcome = Outcome(crawl)
    outcome.check()

    assert outcome.reasons() == {"new": COUNT - 4, "near": 1, "empty": 1, "dead:decode": 2}
    found = [
        (message.key, header(message, "dedup.of.id"), message.value)
        for message in outcome.duplicates
    ]
    assert found == [(b"%d" % COPY, "u3", values[COPY])]
    expected = {b"%d" % place: values[place] for place in (UNKNOWN, UNKNOWN + 1)}
    assert {message.key: message.value for message in outcome.dead} == expected
