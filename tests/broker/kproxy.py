"""A proxy that reads Kafka's frames, so that a test can hold, drop, delay or cut exactly one
request.

A frame is a length (4 bytes), then for a request the API key (2), its version (2) and a correlation
id (4), and for an answer the correlation id. Answers that tell clients where brokers are get the
proxy's port written over the broker's own: the address `127.0.0.1` is followed by the port (4
bytes) in every version of Metadata, FindCoordinator and DescribeCluster, and the length does not
change. So clients stay behind the proxy without a listener of its own.

Invariants: frames of one connection keep their order; a connection whose request is held stays open
towards the broker though its client goes away, for only then can the request arrive late; rules are
consumed one request each.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

HOST = "127.0.0.1"
PRODUCE, METADATA, FIND_COORDINATOR, HEARTBEAT = 0, 3, 10, 12
INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 26, 28
DESCRIBE_CLUSTER = 60
_APIS_WITH_ADDRESSES = frozenset({METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER})
_HEAD = struct.Struct(">hhi")

Action = Literal["hold", "strand", "lose-answer", "cut", "delay"]


@dataclass(eq=False)
class Rule:
    """What happens to the next request with an API key.

    `hold`: it waits until `release`, whatever becomes of its client. `strand`: the same, and the
    client's connection is cut at once. `lose-answer`: the broker gets it, and the connection is cut
    instead of the answer. `cut`: the broker never gets it. `delay`: it waits for `seconds`.
    """

    api_key: int
    action: Action
    seconds: float = 0.0
    struck: threading.Event = field(default_factory=threading.Event)
    delivered: threading.Event = field(default_factory=threading.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)


class KafkaProxy:
    """A port in front of a broker's port of 127.0.0.1; a context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._advertised_port = 0
        self._loop = asyncio.new_event_loop()
        self._rules: list[Rule] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_dark = False

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._advertised_port}"

    def __enter__(self) -> KafkaProxy:
        self._thread = threading.Thread(target=self._loop.run_forever, name="kproxy", daemon=True)
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # -- what a test asks for

    def add(self, api_key: int, action: Action, seconds: float = 0.0) -> Rule:
        """Apply an action to the next request with an API key."""
        rule = Rule(api_key, action, seconds)
        self._do(lambda: self._rules.append(rule))
        return rule

    def release(self, rule: Rule) -> None:
        """Forward the held request to the broker."""
        self._do(rule._released.set)

    def cut_all(self) -> None:
        """Break every connection."""
        self._do(lambda: [writer.close() for writer in list(self._writers)])

    @contextlib.contextmanager
    def dark(self) -> Iterator[None]:
        """Let nothing through in either direction, while connections stay open."""
        self.is_dark = True
        try:
            yield
        finally:
            self.is_dark = False

    # -- inside the loop

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def _do(self, function: Callable[[], Any]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(10), "the proxy's loop does not turn"

    async def _listen(self) -> None:
        async def serve_connection(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)

        self._server = await asyncio.start_server(serve_connection, HOST, 0, limit=1 << 20)
        self._advertised_port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        # Tasks of connections that were just accepted, and tasks that these start while they end,
        # too.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream = await asyncio.open_connection(HOST, self._port)
        self._writers |= {writer, upstream}
        pending: dict[int, tuple[int, Rule | None]] = {}
        answers = asyncio.ensure_future(self._answers(upstream_reader, writer, pending))
        try:
            await self._requests(reader, upstream, writer, pending, answers)
        finally:
            answers.cancel()
            for stream in (writer, upstream):
                self._writers.discard(stream)
                stream.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
        pending: dict[int, tuple[int, Rule | None]],
        answers: asyncio.Future[None],
    ) -> None:
        while not answers.done():
            frame = await _frame(reader)
            while self.is_dark:
                await asyncio.sleep(0.05)
            api_key, _, correlation = _HEAD.unpack_from(frame)
            rule = self._rule(api_key)
            if rule is not None:
                rule.struck.set()
                if rule.action == "cut":
                    return
                if rule.action == "delay":
                    await asyncio.sleep(rule.seconds)
                if rule.action == "strand":
                    writer.close()
                if rule.action in ("hold", "strand"):
                    await rule._released.wait()
            pending[correlation] = (api_key, rule)
            upstream.write(len(frame).to_bytes(4, "big") + frame)
            await upstream.drain()
            if rule is not None and rule.action in ("hold", "strand", "lose-answer"):
                # The client is gone or will be; the answer shows that the broker carried it out.
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.shield(answers), 10)

    async def _answers(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pending: dict[int, tuple[int, Rule | None]],
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                while self.is_dark:
                    await asyncio.sleep(0.05)
                api_key, rule = pending.pop(int.from_bytes(frame[:4], "big"), (-1, None))
                if rule is not None and rule.action in ("hold", "strand", "lose-answer"):
                    rule.delivered.set()
                    if rule.action == "lose-answer":
                        writer.close()
                    return
                if api_key in _APIS_WITH_ADDRESSES:
                    address = HOST.encode()
                    frame = frame.replace(
                        address + self._port.to_bytes(4, "big"),
                        address + self._advertised_port.to_bytes(4, "big"),
                    )
                writer.write(len(frame).to_bytes(4, "big") + frame)
                await writer.drain()

    def _rule(self, api_key: int) -> Rule | None:
        rule = next((candidate for candidate in self._rules if candidate.api_key == api_key), None)
        if rule is not None:
            self._rules.remove(rule)
        return rule


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)
