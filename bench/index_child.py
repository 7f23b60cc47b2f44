"""Run the measured process of `bench index`: an index on RocksDB that applies a known stream of log
records.

Start it with `python -m bench.index_child JOB`, where JOB is a JSON object; it prints one JSON
object a line.

    fill      apply the stream from where the volume ends; print a line for each stretch, then one with the sizes and how long
              opening took; then wait until standard input says `close`, or until it is killed
    open      open the volume, print how long that took and what it contains, close it
    restore   restore a snapshot into the volume, check every file's checksum, and open it

Invariants: only the calls that the role makes to the index are timed, not the generation of the
stream; kernels are compiled before; every answer is compared with what is known of its documents,
outside the timed part.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from bench.index_truth import AnswerChecker
from bench.log_stream import BEGIN_MS, RECORD_DOCUMENTS, PrintStream
from stream_dedup.domain.errors import InvariantError
from stream_dedup.domain.plan import parse
from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import restore
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.index.tables.budget import Budget
from stream_dedup.serving.process import collect_rarely

APPLY_RECORDS: Final = 16  # as the role takes them
_STRETCHES: Final = 40
_GAUGES_SECONDS: Final = 1.0  # the role asks for its metrics as often


def main(job: dict[str, Any]) -> None:
    """Carry out one job."""
    plan, seed, is_template = parse(job["plan"]), job["seed"], job["template"]
    stream = PrintStream(
        plan, job["documents"], job["duplicates"], job["distance"], seed, template=is_template
    )
    _compile(stream)
    volume = Path(job["volume"])
    budget = Budget(job["memory"] or 0, volume.parent)
    restored = time.perf_counter()
    if job["do"] == "restore":
        restore(Path(job["snapshot"]), volume)
    began, spent = time.perf_counter(), time.process_time()
    store = RocksStore(volume)
    index = LogIndex(store, budget, table_folder=volume / "tables")
    opened, spent = time.perf_counter() - began, time.process_time() - spent
    collect_rarely()  # as the role does
    if job["do"] == "fill":
        at_opening = _resident()
        _fill(index, stream, stored_answers=job["answers"])
        _write_line(
            statistics=dict(index.statistics()),
            chain=index.chain.hex(),
            open_seconds=opened,
            open_cpu_seconds=spent,
            resident_at_opening=at_opening,
            **_resident(),
        )
        sys.stdin.readline()
        index.close()
        return
    _write_line(
        restore_seconds=began - restored,
        open_seconds=opened,
        open_cpu_seconds=spent,
        statistics=index.statistics(),
        chain=index.chain.hex(),
        parts=_parts(store) if job["do"] == "open" else {},
        **_resident(),
    )
    index.close()
    _write_line(closed_bytes=sum(file.stat().st_size for file in volume.iterdir()))


def _fill(index: LogIndex, stream: PrintStream, *, stored_answers: bool) -> None:
    """Apply the stream."""
    if not index.applied:
        index.bind("bench")
        index.apply([(0, BEGIN_MS, stream.declare())])
    if not stored_answers:  # a rebuild: nobody waits for what was answered long ago
        index.mark_delivered(1 << 62)
    records = stream.records(index.applied - 1)
    left = stream.documents - max(0, index.applied - 1) * RECORD_DOCUMENTS
    stretch = max(APPLY_RECORDS * RECORD_DOCUMENTS, left // _STRETCHES)
    truth = AnswerChecker(stream)
    some = list(itertools.islice(records, APPLY_RECORDS))
    looked_up, look_at = 0, 0.0
    while some:
        documents = found = wrong = by_chance = id_bytes = 0
        wall = cpu = 0.0
        while some and documents < stretch:
            values = [(record.offset, record.append_ms, record.raw) for record in some]
            started, spent = time.perf_counter(), time.process_time()
            answers = index.apply(values)
            if stored_answers:
                index.mark_delivered(some[0].offset)  # the deliveries of the turn before
            if started >= look_at:
                look_at = started + _GAUGES_SECONDS
                index.statistics()
                index.searches()
            wall += time.perf_counter() - started
            cpu += time.process_time() - spent
            for record, (_, raw) in zip(some, answers, strict=True):
                record_counts = truth.compare(record, raw)
                found += record_counts.found
                wrong += record_counts.planted - record_counts.found
                by_chance += record_counts.by_chance
                documents += len(record.originals)
                id_bytes += record.id_bytes
            some = list(itertools.islice(records, APPLY_RECORDS))
        statistics = index.statistics()
        candidates, looked_up = statistics["candidates"] - looked_up, statistics["candidates"]
        _write_line(
            documents=documents,
            entries=statistics["entries"],
            candidates=candidates,
            seconds=wall,
            cpu_seconds=cpu,
            planted_found=found,
            wrong=wrong,
            by_chance=by_chance,
            id_bytes=id_bytes,
            load=os.getloadavg()[0],
            memory=statistics["bytes_in_memory"],
            **_resident(),
        )


def _compile(stream: PrintStream) -> None:
    store = MemoryStore()
    index = LogIndex(store)
    index.apply([(0, BEGIN_MS, stream.declare())])
    for record in itertools.islice(
        PrintStream(stream.plan, 2000, 0.5, stream.distance).records(), 2
    ):
        index.apply([(record.offset, record.append_ms, record.raw)])
    LogIndex(store)


def _parts(store: Store) -> dict[str, int]:
    """Return the bytes of keys and values by kind, before compression."""
    names = {
        value: name.removeprefix("PREFIX_").lower()
        for name, value in vars(layout).items()
        if name.startswith("PREFIX_")
    }
    sizes: dict[str, int] = defaultdict(int)
    for key, value in store.scan(b""):
        sizes[names.get(key[:1], "other")] += len(key) + len(value)
    return dict(sizes)


def _resident() -> dict[str, int | None]:
    """Return the resident memory now and at its most, in bytes; None where the system has no
    /proc.
    """
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        text = ""
    lines = dict(line.split(":", 1) for line in text.splitlines())
    names = {"rss_bytes": "VmRSS", "rss_bytes_max": "VmHWM"}
    return {
        key: int(lines[name].split()[0]) * 1024 if name in lines else None
        for key, name in names.items()
    }


def _write_line(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except InvariantError as fault:
        sys.exit(str(fault))
