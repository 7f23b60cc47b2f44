"""While the schema registry is away the records wait: none goes on its way, and whoever finishes has them read again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import RegistryAwayError
from stream_dedup.ground.messages import Messages
from stream_dedup.worker import intake as intake_room
from tests.worker.parts import Aside, VirtualClock, intake_of, roomy_flow


def test_records_go_on_their_way_once_the_registry_answers(monkeypatch: Any) -> None:
    monkeypatch.setattr(intake_room, "_ASK_AGAIN_SECONDS", 0.001)
    asked: list[int] = []
    taken: list[Any] = []

    def prepare(messages: Messages, *_: Any) -> Any:
        asked.append(len(messages))
        if len(asked) < 4:
            raise RegistryAwayError("away")
        return SimpleNamespace(messages=messages, passed={})

    clock = VirtualClock()
    intake = intake_of(read_one, Aside(clock, is_stuck=False), clock, roomy_flow(), prepare=prepare, take_in=taken.append)
    intake.turn(reads=True)
    intake.finish()
    assert (asked[:4], len(taken[0].messages)) == ([1, 1, 1, 1], 1)


def test_whoever_hurries_is_not_kept_waiting() -> None:
    taken: list[Any] = []
    asked: list[int] = []

    def prepare(messages: Messages, *_: Any) -> Any:
        asked.append(len(messages))
        raise RegistryAwayError("away")

    clock = VirtualClock()
    aside = Aside(clock, is_stuck=True)
    intake = intake_of(read_one, aside, clock, roomy_flow(), prepare=prepare, take_in=taken.append)
    intake.turn(reads=True)
    assert intake.is_preparing
    aside.is_stuck = False
    intake.finish()
    assert (asked, taken, intake.is_preparing) == ([1], [], False)


def read_one() -> Messages:
    return Messages.of([Message("documents", 0, 0, None, b"value", None, [])])
