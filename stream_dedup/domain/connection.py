"""What librdkafka says of a connection, without the names of its insides. A pure function of the
text.
"""

from __future__ import annotations

import re

# A broker by address and number, or one that is spoken to as somebody: `GroupCoordinator:
# kafka:9092: ...`.
_BROKER = re.compile(
    r"(?:\w+: )?(?:\w+://)?(?P<address>[^\s/]+:\d+)(?:/(?:bootstrap|\d+))?: (?P<what>.*)", re.DOTALL
)
# A coordinator that has just moved is named by its office alone: `TxnCoordinator: Connect to
# ipv4#10.0.0.1:9092 failed: ...`.
_CONNECT = re.compile(
    r"(?:\w+Coordinator: )?Connect to (?:ipv[46]#)?(?P<address>\S+) failed: (?P<why>.*)", re.DOTALL
)
# A port that takes connections and says nothing; librdkafka goes on to guess at brokers of 2015.
_MUTE = re.compile(r"ApiVersionRequest failed: Local: Timed out.*", re.DOTALL)
_STATE = re.compile(r" \(after \d+ms in state .*\)\Z")


def address_and_reason(text: str) -> tuple[str, str]:
    """Return where and why: of `kafka:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection
    refused (after 0ms in state CONNECT)` it is `kafka:9092` and `Connection refused`. The address
    is empty if the text names none.
    """
    broker = _BROKER.fullmatch(text)
    what = _STATE.sub("", text if broker is None else broker["what"])
    what = _MUTE.sub("It takes connections and does not answer", what)
    connect = _CONNECT.fullmatch(what)
    named = broker or connect
    return "" if named is None else named["address"], what if connect is None else connect["why"]
