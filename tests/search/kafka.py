"""Kafka in memory for a search: output topics with headers as a worker writes them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stream_dedup.domain.document import Headers, Message, TopicPartitionKey
from stream_dedup.kafka import Bounds, ExistingTopic
from stream_dedup.log.records import Control, encode_control
from stream_dedup.search.finding import Finder
from stream_dedup.search.metrics import SearchMetrics
from stream_dedup.search.output_texts import OutputTexts
from stream_dedup.search.role import LocalSearch, SearchDependencies, TextFiller
from stream_dedup.serving.health import Health
from stream_dedup.settings.settings import Settings

KEPT: Headers = [("dedup.verdict", b"unique"), ("dedup.reason", b"new")]


def copy_of(kept: int, **more: str) -> Headers:
    """Return the headers of a copy of a kept document; `more`: other headers of ours."""
    of = {"of.id": f"kept{kept}", "of.position": f"documents-0@{kept}", "similarity": "0.87"}
    fields = {"verdict": "duplicate", "reason": "near"} | of | more
    return [(f"dedup.{name}", value.encode()) for name, value in fields.items()]


class MemoryOutputs:
    """The output topics and the log; `lows` are the first offsets left by retention."""

    def __init__(self, partitions: int = 2, generation: int = 1) -> None:
        self.records: dict[TopicPartitionKey, list[Message]] = {
            (topic, part): [] for topic in ("unique", "duplicates") for part in range(partitions)
        }
        self.records["fingerprints", 0] = []
        self.lows: dict[TopicPartitionKey, int] = {}
        self.generation = generation

    def write(
        self,
        topic: str,
        part: int,
        key: bytes,
        text: str | None,
        headers: Headers,
        time_ms: int = 1,
    ) -> None:
        records = self.records.setdefault((topic, part), [])
        records.append(
            Message(
                topic,
                part,
                len(records),
                key,
                None if text is None else text.encode(),
                time_ms,
                headers,
            )
        )

    def forget(self, *ids: bytes) -> int:
        """Append a take-down to the log, with other records around it; return its offset."""
        offset = len(self.records["fingerprints", 0]) + 1
        take_down = encode_control(Control("forget", {"ids": [raw.hex() for raw in ids]}))
        for value in (b"not ours", take_down, encode_control(Control("retract", {}))):
            self.write_raw("fingerprints", 0, value)
        return offset

    def write_raw(self, topic: str, part: int, value: bytes, time_ms: int = 1000) -> None:
        records = self.records[topic, part]
        records.append(Message(topic, part, len(records), None, value, time_ms, []))

    def dependencies(self, **changed: Any) -> SearchDependencies:
        given: dict[str, Any] = {
            "host": "here",
            "failpoint": None,
            "make_admin": lambda _: MemoryAdmin(self),
            "make_texts": NoTexts,
            "make_reader": lambda _, __: MemoryReader(self),
        }
        return SearchDependencies(**given | changed)


class NoTexts(OutputTexts):
    """Texts that Kafka has deleted."""

    def texts_at(self, places: Iterable[str]) -> Mapping[str, str]:
        return {}


class MemoryAdmin:
    """The admin client of a search."""

    def __init__(self, outputs: MemoryOutputs) -> None:
        self._outputs = outputs

    def cluster_id(self) -> str:
        return "cluster"

    def topic_ids(self, names: Sequence[str]) -> dict[str, ExistingTopic]:
        parts = {name: sum(topic == name for topic, _ in self._outputs.records) for name in names}
        return {
            name: ExistingTopic(bytes([self._outputs.generation]) * 16, count)
            for name, count in parts.items()
            if count
        }

    def bounds(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, Bounds]:
        return {
            key: Bounds(self._outputs.lows.get(key, 0), len(self._outputs.records[key]))
            for key in keys
        }


class MemoryReader:
    """A consumer that returns a few records at a time."""

    def __init__(self, outputs: MemoryOutputs) -> None:
        self._outputs = outputs
        self.next_offsets: dict[TopicPartitionKey, int] = {}

    def start(self, next_offsets: Mapping[TopicPartitionKey, int]) -> None:
        self.next_offsets = dict(next_offsets)

    def take_messages(self, most: int, timeout_seconds: float) -> list[Message]:
        found: list[Message] = []
        for key, offset in self.next_offsets.items():
            records = self._outputs.records[key][offset : offset + 3]
            self.next_offsets[key] += len(records)
            found += records
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
) -> MemoryFiller:
    """Return a filler of a folder; `run` closes the folder at its end."""
    filler_settings, dependencies = (
        Settings(state_dir=folder, **settings),
        outputs.dependencies(**changed or {}),
    )
    kept = LocalSearch(filler_settings, dependencies)
    try:
        return MemoryFiller(
            filler_settings, kept, SearchMetrics(), health or Health(), lambda: False, dependencies
        )
    except BaseException:
        kept.close()
        raise


class MemoryFiller(TextFiller):
    """A filler that closes its folder when `run` ends."""

    def run(self, stop: threading.Event) -> None:
        try:
            super().run(stop)
        finally:
            self._local.close()

    @property
    def finder(self) -> Finder:
        return self._local.finder


def crawl(kept: int, copies: int) -> MemoryOutputs:
    """Return outputs with so many kept documents, and copies of the first seven."""
    outputs = MemoryOutputs()
    for number in range(kept):
        outputs.write(
            "unique", number % 2, b"kept%d" % number, f"quick brown fox number{number}", KEPT
        )
    for number in range(copies):
        outputs.write(
            "duplicates",
            number % 2,
            b"copy%d" % number,
            f"quick brown fox {number}",
            copy_of(number % 7),
        )
    return outputs


def forget_later(outputs: MemoryOutputs, *ids: bytes) -> None:
    """Write one more document and one more copy, and forget these ids."""
    outputs.write("unique", 0, b"late", "quick brown fox", KEPT)
    outputs.write("duplicates", 1, b"late copy", "quick brown fox", copy_of(3))
    outputs.forget(*ids)


# A search that kills itself at a step. FOLDER STEP KEPT COPIES [ID ..]: the ids are forgotten
# later.
if __name__ == "__main__":
    written = crawl(int(sys.argv[3]), int(sys.argv[4]))
    filler = make_filler(written, Path(sys.argv[1]), changed={"failpoint": sys.argv[2]})
    if sys.argv[5:]:
        while not filler.finder.find("quick brown fox", 1).documents:
            filler._read_batch()
        forget_later(written, *(name.encode() for name in sys.argv[5:]))
    filler.run(threading.Event())
