"""A Kafka in memory that a search can read: outputs with headers as a worker writes them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stream_dedup.ground.document import Headers, Message, TopicPartitionKey
from stream_dedup.search.kept_texts import OutputTexts
from stream_dedup.search.metrics import SearchMetrics
from stream_dedup.search.role import SearchSurroundings, TextFiller
from stream_dedup.service.health import Health
from stream_dedup.settings.settings import Settings

KEPT: Headers = [("dedup.verdict", b"unique"), ("dedup.reason", b"new")]


def copy_of(kept: int) -> Headers:
    """Return the headers of a copy of a kept document."""
    of = {"of.id": f"kept{kept}", "of.position": f"documents-0@{kept}", "similarity": "0.87"}
    own = {"verdict": "duplicate", "reason": "near"} | of
    return [(f"dedup.{name}", value.encode()) for name, value in own.items()]


class MemoryOutputs:
    """The outputs; `lows` are what retention has left."""

    def __init__(self, partitions: int = 2, generation: int = 1) -> None:
        self.records: dict[TopicPartitionKey, list[Message]] = {
            (topic, part): [] for topic in ("unique", "duplicates") for part in range(partitions)
        }
        self.lows: dict[TopicPartitionKey, int] = {}
        self.generation = generation

    def write(self, topic: str, part: int, key: bytes, text: str | None, headers: Headers, time_ms: int = 1) -> None:
        own = self.records.setdefault((topic, part), [])
        own.append(Message(topic, part, len(own), key, None if text is None else text.encode(), time_ms, headers))

    def surroundings(self, **changed: Any) -> SearchSurroundings:
        given: dict[str, Any] = {
            "host": "here",
            "failpoint": None,
            "make_admin": lambda _: MemoryAsker(self),
            "make_texts": NoTexts,
            "make_reader": lambda _, __: MemoryReader(self),
        }
        return SearchSurroundings(**given | changed)


class NoTexts(OutputTexts):
    """Texts that are kept no longer."""

    def at(self, places: Iterable[str]) -> Mapping[str, str]:
        return {}


class MemoryAsker:
    """What a search asks of an administrator."""

    def __init__(self, outputs: MemoryOutputs) -> None:
        self._outputs = outputs

    def cluster_id(self) -> str:
        return "cluster"

    def topic_ids(self, names: Sequence[str]) -> dict[str, tuple[bytes, int]]:
        parts = {name: sum(topic == name for topic, _ in self._outputs.records) for name in names}
        return {name: (bytes([self._outputs.generation]) * 16, count) for name, count in parts.items() if count}

    def ends(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, tuple[int, int]]:
        return {key: (self._outputs.lows.get(key, 0), len(self._outputs.records[key])) for key in keys}


class MemoryReader:
    """Gives a few records at a time, as a consumer does."""

    def __init__(self, outputs: MemoryOutputs) -> None:
        self._outputs = outputs
        self.following: dict[TopicPartitionKey, int] = {}

    def start(self, following: Mapping[TopicPartitionKey, int]) -> None:
        self.following = dict(following)

    def take(self, most: int, timeout_seconds: float) -> list[Message]:
        found: list[Message] = []
        for key, offset in self.following.items():
            own = self._outputs.records[key][offset : offset + 3]
            self.following[key] += len(own)
            found += own
        if not found:
            threading.Event().wait(0.001)
        return found

    def close(self) -> None:
        pass


def make_filler(
    outputs: MemoryOutputs,
    folder: Path,
    health: Health | None = None,
    *,
    changed: dict[str, Any] | None = None,
    **settings: Any,
) -> TextFiller:
    own = Settings(search_dir=folder, **settings)
    return TextFiller(own, SearchMetrics(), health or Health(), lambda: False, outputs.surroundings(**changed or {}))


def crawl(kept: int, copies: int) -> MemoryOutputs:
    """Return outputs with so many kept documents, and copies of the first seven."""
    outputs = MemoryOutputs()
    for number in range(kept):
        outputs.write("unique", number % 2, b"kept%d" % number, f"quick brown fox number{number}", KEPT)
    for number in range(copies):
        outputs.write("duplicates", number % 2, b"copy%d" % number, f"quick brown fox {number}", copy_of(number % 7))
    return outputs


if __name__ == "__main__":  # a search that kills itself at a step: FOLDER STEP KEPT COPIES
    make_filler(crawl(int(sys.argv[3]), int(sys.argv[4])), Path(sys.argv[1]), changed={"failpoint": sys.argv[2]}).run(
        threading.Event()
    )
