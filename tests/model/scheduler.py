"""Processes as threads of which one runs at a time; who is next is drawn by the world.

Invariants: a process gives control back only inside `Scheduler.step`, so a schedule is a function of the seed; a killed
process never reaches another effect, because each call on the twin of Kafka asks `step` first, and it raises there.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


class Killed(BaseException):
    """The process was killed; nothing of ours may catch it."""


class Process:
    """One process of a role or an operator. `slot` is the name it has for ever, `name` that of this life."""

    def __init__(self, name: str, slot: str, body: Callable[[], None]) -> None:
        self.name = name
        self.slot = slot
        self.body = body
        self.steps = 0
        self.is_killed = self.is_paused = self.has_ended = False
        self.idle_since: int | None = None
        self.idle_ms = 0
        self.error: BaseException | None = None
        self.go = _thread.allocate_lock()
        self.go.acquire()

    @property
    def runs(self) -> bool:
        """Whether it can be given control."""
        return not (self.is_paused or self.has_ended)


class Scheduler:
    """Gives control to one process after another. `version` counts what may wake an idle one."""

    def __init__(self) -> None:
        self.version = 0
        self.current: Process | None = None
        self._back = _thread.allocate_lock()
        self._back.acquire()

    def start(self, process: Process) -> None:
        """Make the process ready to run; it does nothing until it is given control."""
        threading.Thread(target=self._run, args=(process,), daemon=True).start()

    def give(self, process: Process) -> None:
        """Let the process run to its next step."""
        self.current = process
        process.steps += 1
        process.idle_since = None
        process.go.release()
        self._back.acquire()
        self.current = None

    def kill(self, process: Process) -> None:
        """End the process where it stands."""
        process.is_killed, process.is_paused = True, False
        while not process.has_ended:
            self.give(process)

    def step(self, *, idle_ms: int | None = None) -> None:
        """Called by the running process: let others run. With `idle_ms`, until something happened or so much time passed.

        Raises:
            Killed: it was killed meanwhile, or before.
        """
        process = self.current
        if process is None:
            return  # the world itself acts
        if not process.is_killed:
            if idle_ms is not None:
                process.idle_since, process.idle_ms = self.version, idle_ms
            self._back.release()
            process.go.acquire()
        if process.is_killed:
            raise Killed

    def _run(self, process: Process) -> None:
        process.go.acquire()
        try:
            if not process.is_killed:
                process.body()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the world judges it
            process.error = error
        process.has_ended = True
        self._back.release()
