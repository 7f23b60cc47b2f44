"""Processes as threads of which one runs at a time; who is next is drawn by the world.

Invariants: a process gives control back only inside `Scheduler.step`, so a schedule is a function
of the seed; a killed process never reaches another effect, because each call on the twin of Kafka
asks `step` first, and it raises there. A process may have several threads of its own: whenever it
is given control, one of those that need not wait is drawn.
"""

from __future__ import annotations

import _thread
import random
import threading
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """The process was killed; no code under test may catch it."""


class Fiber:
    """One thread of a process."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self.body = body
        self.has_ended = False
        self.idle_since: int | None = None
        self.idle_ms = 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.go = _thread.allocate_lock()
        self.go.acquire()


class Process:
    """A process of a role or an operator; `slot` is its place, `name` one life in it."""

    def __init__(self, name: str, slot: str, body: Callable[[], None]) -> None:
        self.name = name
        self.slot = slot
        self.body = body
        self.steps = 0
        self.is_killed = self.is_paused = self.has_ended = False
        self.fibers = [Fiber(lambda: self.body())]  # noqa: PLW0108 - the body may be set later

    @property
    def can_run(self) -> bool:
        """Return whether it can be given control."""
        return not (self.is_paused or self.has_ended)

    @property
    def error(self) -> BaseException | None:
        """Return the exception that ended it, if any."""
        return self.fibers[0].error

    @property
    def idle_ms(self) -> int:
        """Return the shortest time that one of its threads waits for."""
        return min(fiber.idle_ms for fiber in self.fibers)

    def is_idle(self, version: int) -> bool:
        """Return whether all its threads wait, and nothing has changed since."""
        return all(fiber.idle_since == version for fiber in self.fibers)

    def pass_ms(self, milliseconds: int) -> None:
        """Let this much time pass for its waiting threads."""
        for fiber in self.fibers:
            fiber.idle_ms = max(0, fiber.idle_ms - milliseconds)


class Scheduler:
    """Gives control to one process after another. `version` counts what may wake idle ones."""

    def __init__(self, chance: random.Random) -> None:
        self.version = 0
        self.current: Process | None = None
        self._fiber: Fiber | None = None
        self._chance = chance
        self._back = _thread.allocate_lock()
        self._back.acquire()

    def start(self, process: Process) -> None:
        """Make the process ready to run; it does nothing until it is given control."""
        threading.Thread(target=self._run, args=(process, process.fibers[0]), daemon=True).start()

    def fork(self, body: Callable[[], Any]) -> Fiber:
        """Start one more thread of the running process; it does nothing until it is drawn."""
        assert self.current is not None
        fiber = Fiber(body)
        self.current.fibers.append(fiber)
        threading.Thread(target=self._run, args=(self.current, fiber), daemon=True).start()
        return fiber

    def give(self, process: Process) -> None:
        """Let one of the process's threads run to its next step. The process ends with
        its first thread."""
        process.steps += 1
        awake = [fiber for fiber in process.fibers if fiber.idle_since != self.version]
        awake = awake or [fiber for fiber in process.fibers if fiber.idle_ms == process.idle_ms]
        self._resume(process, self._chance.choice(awake) if len(awake) > 1 else awake[0])
        first, *others = process.fibers
        if first.has_ended:
            process.is_killed = True
            for fiber in others:
                while not fiber.has_ended:
                    self._resume(process, fiber)
            process.has_ended = True
        process.fibers = [first, *(fiber for fiber in others if not fiber.has_ended)]

    def kill(self, process: Process) -> None:
        """End the process at its current step."""
        process.is_killed, process.is_paused = True, False
        while not process.has_ended:
            self.give(process)

    def step(self, *, idle_ms: int | None = None) -> None:
        """Let others run; called by the running process. `idle_ms` limits how long it waits.

        Raises:
            Killed: it was killed meanwhile, or before.
        """
        process, fiber = self.current, self._fiber
        if process is None or fiber is None:
            return  # the world itself acts
        if not process.is_killed:
            if idle_ms is not None:
                fiber.idle_since, fiber.idle_ms = self.version, idle_ms
            self._back.release()
            fiber.go.acquire()
        if process.is_killed:
            raise Killed

    def _resume(self, process: Process, fiber: Fiber) -> None:
        self.current, self._fiber = process, fiber
        fiber.idle_since = None
        fiber.go.release()
        self._back.acquire()
        self.current = self._fiber = None

    def _run(self, process: Process, fiber: Fiber) -> None:
        fiber.go.acquire()
        try:
            if not process.is_killed:
                fiber.result = fiber.body()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the world, or the thread that waits for it, judges it
            fiber.error = error
        fiber.has_ended = True
        if fiber is not process.fibers[0]:
            self.version += 1  # the first one may wait for it
        self._back.release()
