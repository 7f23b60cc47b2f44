"""Parse librdkafka's messages about connections into address and reason, without its internal
names.
"""

from __future__ import annotations

import re

# A broker by address and node id, or by its role as coordinator: `GroupCoordinator: kafka:9092:
# ...`.
_BROKER = re.compile(
    r"(?:\w+: )?(?:\w+://)?(?P<address>[^\s/]+:\d+)(?:/(?:bootstrap|\d+))?: (?P<reason>.*)",
    re.DOTALL,
)
# After a coordinator has moved, librdkafka names only its role: `TxnCoordinator: Connect to
# ipv4#10.0.0.1:9092 failed: ...`.
_CONNECT = re.compile(
    r"(?:\w+Coordinator: )?Connect to (?:ipv[46]#)?(?P<address>\S+) failed: (?P<reason>.*)",
    re.DOTALL,
)
# The port accepts connections and does not answer. The rest of the message is a guess that the
# broker is older than 0.10.
_MUTE = re.compile(r"ApiVersionRequest failed: Local: Timed out.*", re.DOTALL)
_STATE = re.compile(r" \(after \d+ms in state .*\)\Z")


def address_and_reason(text: str) -> tuple[str, str]:
    """Return the address and the reason in a message of librdkafka.

    For `kafka:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after 0ms in state
    CONNECT)` these are `kafka:9092` and `Connection refused`. The address is empty if the message
    contains none.
    """
    broker = _BROKER.fullmatch(text)
    reason = _STATE.sub("", text if broker is None else broker["reason"])
    reason = _MUTE.sub("It accepts connections but does not answer", reason)
    connect = _CONNECT.fullmatch(reason)
    peer = broker or connect
    return "" if peer is None else peer["address"], reason if connect is None else connect["reason"]
