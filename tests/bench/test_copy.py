"""The yardstick copies each record once, also when a transaction was aborted because partitions moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import pytest

from bench import copy
from stream_dedup.ground.document import Message, TopicPartitionKey
from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.ground.messages import Messages
from stream_dedup.kafka import Outcome, Output, OwnedOffset, Result
from stream_dedup.settings.settings import Settings

KEY = ("documents", 0)
RECORDS = 10


class FakeKafka:
    """A partition of ten records whose reader gives two at a time, and a producer that ends as told, else commits."""

    outcomes: ClassVar[list[Outcome]] = []
    copied: ClassVar[list[bytes | None]] = []
    committed_offset = 0
    moves_after_abort = False


class FakeSource:
    def __init__(self, settings: Settings, topic: str, name: str, listener: copy._Positions) -> None:
        self._listener = listener
        self._at = listener.assigned([KEY])[KEY]
        listener.settled(b"")

    def take(self, most: int, timeout_seconds: float) -> Messages:
        found = [Message(*KEY, offset, None, b"%d" % offset, 0, []) for offset in range(self._at, min(self._at + 2, RECORDS))]
        self._at += len(found)
        return Messages.of(found)

    def committed(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, OwnedOffset]:
        return {key: OwnedOffset(FakeKafka.committed_offset or None, "") for key in keys}

    def restart_at(self, starts: Mapping[TopicPartitionKey, int]) -> None:
        self._at = starts[KEY]
        if FakeKafka.moves_after_abort:
            self._listener.settled(b"")

    def stamp(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


class FakeOutput:
    def __init__(self, settings: Settings, transactional_id: str, client: str) -> None:
        pass

    def run(self, outputs: Sequence[Output], offsets: Sequence[tuple[str, int, int, str]], stamp: bytes) -> Result:
        outcome = FakeKafka.outcomes.pop(0) if FakeKafka.outcomes else Outcome.COMMITTED
        if outcome is Outcome.COMMITTED:
            FakeKafka.copied += [one.value for one in outputs]
            FakeKafka.committed_offset = offsets[0][2]
        return Result(outcome, why="said why")

    def close(self) -> None:
        pass


class FakeAdmin:
    def __init__(self, settings: Settings) -> None:
        pass

    def stable_committed(self, group: str) -> dict[TopicPartitionKey, tuple[int, str | None]]:
        return {}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[bytes | None]]:
    """Copy with so many documents in a transaction, and the given ends of transactions; return what was committed."""

    def copies(outcomes: list[Outcome], *, moves: bool) -> list[bytes | None]:
        FakeKafka.outcomes, FakeKafka.moves_after_abort = outcomes, moves
        FakeKafka.copied, FakeKafka.committed_offset = [], 0
        monkeypatch.setattr(copy, "Admin", FakeAdmin)
        monkeypatch.setattr(copy, "SourceConsumer", FakeSource)
        monkeypatch.setattr(copy, "TransactionalOutput", FakeOutput)
        turns = iter(range(10 * RECORDS))
        monkeypatch.setattr(copy, "_input_has_ended", lambda: next(turns) < 0 or FakeKafka.committed_offset == RECORDS)
        copy.run(Settings(batch_documents=3))
        return FakeKafka.copied

    return copies


A, C = Outcome.ABORTED, Outcome.COMMITTED


@pytest.mark.parametrize("outcomes", [[], [A], [C, A], [C, A, A, C, A]])
def test_each_record_is_copied_once_in_order_whatever_was_aborted(
    run: Callable[..., list[bytes | None]], outcomes: list[Outcome]
) -> None:
    """What an aborted transaction had is read again from where the group stands, its beginning included."""
    assert run(outcomes, moves=True) == [b"%d" % offset for offset in range(RECORDS)]


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [([A, A], "ended as aborted: said why"), ([Outcome.UNKNOWN], "ended as unknown: said why")],
)
def test_aborts_without_a_move_end_the_program(
    run: Callable[..., list[bytes | None]], outcomes: list[Outcome], said: str
) -> None:
    """One more abort than moves would be measured as if copying took so long."""
    with pytest.raises(StreamDedupError, match=said):
        run(outcomes, moves=False)
