"""The properties of Kafka's clients: which are free to set, which are secret, and their units."""

from __future__ import annotations

import re

from stream_dedup.settings.environment import PREFIX
from stream_dedup.settings.units import parse_duration, parse_size

MASK = "******"

# Decided by the protocol between worker, log and index: changing one would break "exactly once".
DECIDED_PROPERTIES = {
    "bootstrap.servers": f"set {PREFIX}KAFKA_BOOTSTRAP_SERVERS instead",
    "metadata.broker.list": f"set {PREFIX}KAFKA_BOOTSTRAP_SERVERS instead",
    "group.id": f"set {PREFIX}GROUP instead",
    "transactional.id": f"it is made of the group and {PREFIX}WORKER_ID; set those instead",
    "group.instance.id": "static membership would keep a dead worker's partitions; remove it",
    "enable.auto.commit": "offsets are committed within the transaction only; remove it",
    "enable.auto.offset.store": "offsets are committed within the transaction only; remove it",
    "auto.offset.reset": "where to start is never guessed; remove it",
    "isolation.level": "only committed documents are read; remove it",
    "partition.assignment.strategy": "it is cooperative-sticky, on which the worker's hand-over relies; remove it",
    "enable.idempotence": "every producer is idempotent; remove it",
    "acks": "every write waits for all in-sync replicas; remove it",
    "request.required.acks": "every write waits for all in-sync replicas; remove it",
}

_SECRET_PROPERTY = re.compile(r"password|passphrase|secret|\.pem$|jaas|oauthbearer\.config$|private\.key$")

FROM_FILE_PROPERTIES = frozenset(
    {
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "ssl.certificate.pem",
        "ssl.ca.pem",
    }
)

PROPERTY_NAME = re.compile(r"[a-z][a-z0-9]*([._-][a-z0-9]+)*\Z")


def is_secret(prop: str) -> bool:
    """Whether a librdkafka property's value must never be shown."""
    return _SECRET_PROPERTY.search(prop) is not None


def property_value(name: str, text: str) -> str:
    """Return a property's value as librdkafka reads it.

    Raises:
        ValueError: it is not written as its unit asks.
    """
    # Units are read where librdkafka's own names say what it counts; a bare number is its own business.
    if is_secret(name):
        return text  # spaces around it may be part of it
    text = text.strip()
    if text.lstrip("-").isdigit():
        return text
    if name.endswith(".ms"):
        return str(round(parse_duration(text).total_seconds() * 1000))
    if name.endswith(".kbytes"):
        return str(parse_size(text) // 1024)
    return str(parse_size(text)) if name.endswith(".bytes") else text
