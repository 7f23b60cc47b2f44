"""After a large batch a worker gives back the memory that it would keep of it, and after a usual one it does not."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest

from stream_dedup.ground.document import Message
from stream_dedup.ground.messages import Messages
from stream_dedup.service import process as memory
from stream_dedup.worker.prepare import InFlight
from stream_dedup.worker.questions import Questions
from tests.worker.parts import context


@pytest.mark.parametrize(
    ("count", "value_bytes", "gives_back"), [(8000, 1100, 0), (1, 20 << 20, 0), (4, 9 << 20, 1), (1, 250 << 20, 1)]
)
def test_memory_goes_back_after_a_large_batch(count: int, value_bytes: int, gives_back: int) -> None:
    """The size of all values together tells, because texts and buffers are as large."""
    value = bytes(value_bytes)
    messages = Messages.of([Message("documents", 0, offset, None, value, None, []) for offset in range(count)])
    flow = SimpleNamespace(admit=lambda _: [], in_flight=1)
    freed = memory.FreedMemory(1 << 50, 32 << 20)
    questions = Questions(context(flow), mock.Mock(), mock.Mock(), mock.Mock(), freed, None)

    with mock.patch.object(memory, "give_back") as give_back:
        questions.ask(InFlight(messages, [None] * count, [None] * count, [], b"", {}))

    assert give_back.call_count == gives_back


@pytest.mark.parametrize(("resident", "gives_back"), [(700 << 20, 0), (800 << 20, 1)])
def test_memory_goes_back_when_the_process_comes_near_its_limit(resident: int, gives_back: int) -> None:
    """However small the batches are, and once a second at most."""
    freed = memory.FreedMemory(1 << 30, 32 << 20)

    with (
        mock.patch.object(memory, "give_back") as give_back,
        mock.patch.object(memory, "resident_bytes", return_value=resident),
    ):
        freed.used(1000)
        freed.used(1000)

    assert give_back.call_count == gives_back
