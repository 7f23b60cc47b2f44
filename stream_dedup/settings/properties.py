"""Convert names of settings and Kafka properties to environment variables and back; know which
properties are fixed or secret, and their units.

Variables of Kafka properties follow the rule of the Apache Kafka image: `.` becomes `_`, `_` becomes
`__` and `-` becomes `___`. So STREAM_DEDUP_KAFKA_SASL_PASSWORD sets `sasl.password`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from stream_dedup.domain.failpoints import VARIABLE as FAILPOINT_VARIABLE
from stream_dedup.settings.units import parse_duration, parse_size

PREFIX = "STREAM_DEDUP_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
KAFKA_PREFIX = PREFIX + "KAFKA_"

# Variables that other code reads before the settings; `kernels/compiled.py` reads CACHE_DIR.
NOT_SETTINGS = frozenset({CONFIG_VARIABLE, FAILPOINT_VARIABLE, PREFIX + "CACHE_DIR"})

# Kubernetes sets variables for every Service of the namespace in every container: for a Service
# `stream-dedup-index`, STREAM_DEDUP_INDEX_SERVICE_HOST and STREAM_DEDUP_INDEX_PORT=tcp://...
_SERVICE_LINK_NAME = re.compile(
    r".*_SERVICE_HOST\Z|.*_SERVICE_PORT(_\w+)?\Z|.*_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?\Z"
)
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


def child_environment(values: Mapping[str, object]) -> dict[str, str]:
    """Return the environment of a child process: this process's environment, but with only the
    settings in `values`.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith((PREFIX, "KAFKA_"))
    }
    environment |= {
        name: os.environ[name] for name in (f"{PREFIX}CACHE_DIR",) if name in os.environ
    }
    return environment | {environment_name(name): str(value) for name, value in values.items()}


def environment_name(name: str) -> str:
    """Return the environment variable of a setting, or of a Kafka property (`kafka.<property>`)."""
    if name.startswith("kafka."):
        prop = name.removeprefix("kafka.").replace("_", "__").replace("-", "___").replace(".", "_")
        return KAFKA_PREFIX + prop.upper()
    return PREFIX + name.upper()


def property_of(variable: str) -> str:
    """Return the Kafka property that an environment variable sets."""
    rule = {1: ".", 2: "_", 3: "-"}
    return re.sub(
        "_{1,3}", lambda match: rule[len(match[0])], variable.removeprefix(KAFKA_PREFIX)
    ).lower()


def is_service_link(variable: str, value: str) -> bool:
    """Return whether Kubernetes created this variable for a Service."""
    if _SERVICE_LINK_NAME.match(variable):
        return True
    return variable.endswith("_PORT") and _SERVICE_LINK_VALUE.match(value) is not None


MASK = "******"

# Exactly-once delivery depends on these properties. Each value is the end of the error message.
FIXED_PROPERTIES = {
    "bootstrap.servers": f"set {PREFIX}KAFKA_BOOTSTRAP_SERVERS instead",
    "metadata.broker.list": f"set {PREFIX}KAFKA_BOOTSTRAP_SERVERS instead",
    "group.id": f"set {PREFIX}GROUP instead",
    "transactional.id": f"it is composed of the group and {PREFIX}WORKER_ID; set those instead",
    "group.instance.id": "static membership would keep a dead worker's partitions; remove it",
    "enable.auto.commit": "offsets are committed within the transaction only; remove it",
    "enable.auto.offset.store": "offsets are committed within the transaction only; remove it",
    "auto.offset.reset": "workers start only at committed offsets; remove it",
    "isolation.level": "only committed documents are read; remove it",
    "partition.assignment.strategy": "the worker needs cooperative-sticky; remove it",
    "enable.idempotence": "every producer is idempotent; remove it",
    "acks": "every write waits for all in-sync replicas; remove it",
    "request.required.acks": "every write waits for all in-sync replicas; remove it",
}

_SECRET_PROPERTY = re.compile(
    r"password|passphrase|secret|\.pem$|jaas|oauthbearer\.config$|private\.key$"
)

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
    """Return whether a librdkafka property is a secret, which must never be shown."""
    return _SECRET_PROPERTY.search(prop) is not None


FROM_FILE_FIELDS = ("registry_url",)


def without_login(address: str) -> str:
    """Return one or more URLs with masked users and passwords."""
    return re.sub(r"//[^/@,]*@", f"//{MASK}@", address)


def property_value(name: str, text: str) -> str:
    """Return the value of a property as librdkafka expects it. If the name of the property ends with a
    unit (`.ms`, `.bytes`, `.kbytes`), the value is converted to it.

    Raises:
        ValueError: the value is not a time or size with a unit.
    """
    if is_secret(name):
        return text  # spaces may be part of a secret
    text = text.strip()
    if text.lstrip("-").isdigit():
        return text
    if name.endswith(".ms"):
        return str(round(parse_duration(text).total_seconds() * 1000))
    if name.endswith(".kbytes"):
        return str(parse_size(text) // 1024)
    return str(parse_size(text)) if name.endswith(".bytes") else text
