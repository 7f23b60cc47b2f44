"""The names of settings in the environment, and the environment of a child process.

In the environment Kafka properties follow the rule of the Apache Kafka image: `.` is written `_`, `_` is written `__`, `-` is
written `___`; so STREAM_DEDUP_KAFKA_SASL_PASSWORD is `sasl.password`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from stream_dedup.ground.failpoints import VARIABLE as FAILPOINT_VARIABLE

PREFIX = "STREAM_DEDUP_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
KAFKA_PREFIX = PREFIX + "KAFKA_"

# Read where they are needed, before there are settings: CACHE_DIR by `compiled.py`, when a kernel is first imported.
NOT_SETTINGS = frozenset({CONFIG_VARIABLE, FAILPOINT_VARIABLE, PREFIX + "CACHE_DIR"})

# Kubernetes gives every container variables for every Service of its namespace; a Service called `stream-dedup-index`
# makes STREAM_DEDUP_INDEX_SERVICE_HOST and STREAM_DEDUP_INDEX_PORT=tcp://..., which nobody wrote and nobody reads.
_SERVICE_LINK_NAME = re.compile(r".*_SERVICE_HOST\Z|.*_SERVICE_PORT(_\w+)?\Z|.*_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?\Z")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


def child_environment(values: Mapping[str, object]) -> dict[str, str]:
    """Return the environment of a child process that gets these settings and no others of ours."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, "KAFKA_"))}
    keep |= {name: os.environ[name] for name in (f"{PREFIX}CACHE_DIR",) if name in os.environ}
    return keep | {environment_name(name): str(value) for name, value in values.items()}


def environment_name(name: str) -> str:
    """Return the environment variable of a field, or of a Kafka property called `kafka.<property>`."""
    if name.startswith("kafka."):
        prop = name.removeprefix("kafka.").replace("_", "__").replace("-", "___").replace(".", "_")
        return KAFKA_PREFIX + prop.upper()
    return PREFIX + name.upper()


def property_of(variable: str) -> str:
    """Return the Kafka property that a variable names."""
    rule = {1: ".", 2: "_", 3: "-"}
    return re.sub("_{1,3}", lambda found: rule[len(found[0])], variable.removeprefix(KAFKA_PREFIX)).lower()


def is_service_link(variable: str, value: str) -> bool:
    """Return whether Kubernetes made this variable of a Service, and nobody wrote it."""
    if _SERVICE_LINK_NAME.match(variable):
        return True
    return variable.endswith("_PORT") and _SERVICE_LINK_VALUE.match(value) is not None
