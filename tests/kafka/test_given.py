"""Headers that Kafka's client cannot give: the record is there, and its headers are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

from stream_dedup.ground.document import Message, UnreadableHeaders
from stream_dedup.kafka import client


def failing(names: Sequence[bytes]) -> BaseException:
    """Return what comes of a record with these names: the first error, behind one of Python's for each of them."""
    try:
        names[0].decode()
    except UnicodeDecodeError as error:
        found: BaseException = error
    for _ in names:
        outer = SystemError("returned a result with an exception set")
        outer.__cause__, found = found, outer
    return found


class Raw:
    """A record as the client has it. With `bad` names it fails as the client does, and is not to be asked again."""

    def __init__(self, offset: int, *bad: bytes, headers: Any = None) -> None:
        self._offset, self._bad, self._headers, self._asked = offset, bad, headers, False

    def headers(self) -> Any:
        assert not (self._bad and self._asked), "the client was asked again, and Python crashes on what it gives then"
        self._asked = True
        if self._bad:
            raise failing(self._bad)
        return self._headers

    def topic(self) -> str:
        return "documents"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k%d" % self._offset

    def value(self) -> bytes | None:
        return b"v%d" % self._offset if self._offset % 2 else None

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 1_790_000_000_000


CONVERSIONS: dict[str, Callable[[list[Any]], list[Message]]] = {
    "columns": lambda raws: list(client.to_messages("documents", raws)),
    "one by one, as all readers but the worker's own": lambda raws: [client.to_message(one) for one in raws],
}


@pytest.mark.parametrize("converted", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_name_that_is_not_utf8_costs_the_headers_only(converted: Callable[[list[Any]], list[Message]]) -> None:
    """Key, value and timestamp are as they came, the name is told, and the records beside it are whole."""
    found = converted(
        [
            Raw(0, headers=[("a", b"1")]),
            Raw(1, "référent".encode("latin-1")),
            Raw(2),
            Raw(3, b"\xff", b"\x80", b"\x81"),
            Raw(4, b"\xfe" * 1000),
            Raw(5, headers=[("", None)]),
        ]
    )

    assert [one.offset for one in found] == [0, 1, 2, 3, 4, 5]
    assert [one.key for one in found] == [b"k%d" % at for at in range(6)]
    assert [one.value for one in found] == [None, b"v1", None, b"v3", None, b"v5"]
    assert {one.timestamp_ms for one in found} == {1_790_000_000_000}
    assert [one.headers for one in found] == [[("a", b"1")], [], [], [], [], [("", None)]]
    names = {one.offset: one.name for one in found if isinstance(one, UnreadableHeaders)}
    assert names == {1: r"r\xe9f\xe9rent", 3: r"\xff", 4: r"\xfe" * 60 + "..."}
    assert all("utf-8" in one.why for one in found if isinstance(one, UnreadableHeaders))


def test_another_fault_of_the_client_is_not_hidden() -> None:
    """Only this cause is known to leave the record as it is."""

    class Broken(Raw):
        def headers(self) -> Any:
            raise SystemError("error return without exception set")

    with pytest.raises(SystemError):
        client.to_messages("documents", [Broken(0)])  # type: ignore[list-item]
