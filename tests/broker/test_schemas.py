"""Values by a schema registry on a live broker: what Confluent's clients write leaves once, with
its verdict and its bytes."""

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
ANYBODY = b"\x00\x7f\xff\xff\xff"  # the frame of a schema that nobody has registered

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
    """Gives the value of a page, by the later schema if that is asked for."""

    def __call__(self, url: str, text: str, *, later: bool = False) -> bytes: ...


@pytest.fixture(params=registries.KINDS)
def registry(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a registry: ours, and, where it can be had, a real one."""
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


def test_values_of_a_schema_that_grows_leave_once_and_as_they_came(
    make_filter: MakeFilter,
    registry: str,
) -> None:
    """Over a kill of the worker: copies are found across the schema's two versions; what names no
    schema, or is no message, or has no text, goes aside with the reason, and the rest goes on."""
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
    values[UNKNOWN] = ANYBODY + values[UNKNOWN][5:]
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
    found = [(one.key, header(one, "dedup.of.id"), one.value) for one in outcome.duplicates]
    assert found == [(b"%d" % COPY, "u3", values[COPY])]
    expected = {b"%d" % place: values[place] for place in (UNKNOWN, UNKNOWN + 1)}
    assert {one.key: one.value for one in outcome.dead} == expected
