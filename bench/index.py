"""Measure the index alone, with durable writes, on a stream whose duplicates are known: `bench
index`.

A run has these steps, each in a separate process. With `judging_only` it has only the first step.
With `reopen_bytes` it has the first step, and then opens the killed volume with that much memory
and judges a fiftieth more.

    1  fill      apply all records, check every answer, print sizes; killed with SIGKILL at its end
    2  open      open the killed volume
    3  open      open the volume after the clean stop of step 2
    4  restore   restore a snapshot of that volume into another, check every file's checksum, and open it
    5  rebuild   apply the same log to an empty volume; it must end with the same chain of answers

Only `Index.apply` is timed: from the bytes of log records to the bytes of answers, all written to
RocksDB and its write-ahead log. The time to make the documents is not counted. CPU time is that of
the whole process, including RocksDB's threads: on a machine that also does other work, compare CPU
times.

Invariants: a planted copy that is not found, or is found as the copy of another document or at
another distance, is a complaint, never a footnote; so is a volume that differs after a kill, a
stop, a restore or a rebuild.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.log_stream import RECORD_DOCUMENTS
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.domain.plan import Plan
from stream_dedup.index import snapshot

Say = Callable[[str], None]
DURABLE: Final = (
    "every record in RocksDB and its write-ahead log before its answer is given; the log is not "
    "synced, so it survives the "
    "process and not the machine, whose loss the topic makes good"
)
_REPORT_SECONDS: Final = 5.0
_REOPENED_SHARE: Final = 50


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What to measure. Planted copies differ in as many bits as the plan is certain to find.

    `template`: all documents are pages of one site. `judging_only`: run only the first step.
    `reopen_bytes`: the memory with which the volume is opened and judged further after the first
    step.
    """

    documents: int
    plan: Plan
    duplicates: float
    seed: int
    memory_bytes: int | None = None
    folder: Path | None = None
    template: bool = False
    judging_only: bool = False
    reopen_bytes: int | None = None

    @property
    def distance(self) -> int:
        """The number of bits in which a copy differs from its original."""
        return self.plan.distance_guaranteed


@dataclass(slots=True)
class IndexReport:
    """All results. `curve` and `rebuild_curve` contain the raw samples, one for each stretch."""

    options: IndexOptions
    curve: list[dict[str, Any]] = field(default_factory=list)
    filled: dict[str, Any] = field(default_factory=dict)
    after_kill: dict[str, Any] = field(default_factory=dict)
    after_close: dict[str, Any] = field(default_factory=dict)
    restored: dict[str, Any] = field(default_factory=dict)
    rebuild_curve: list[dict[str, Any]] = field(default_factory=list)
    rebuilt: dict[str, Any] = field(default_factory=dict)
    reopened_curve: list[dict[str, Any]] = field(default_factory=list)
    reopened: dict[str, Any] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    load_before: float = 0.0

    @property
    def sustained(self) -> float:
        """Documents per second over the second half of the documents."""
        return _rate(self.curve[len(self.curve) // 2 :], "seconds")

    @property
    def sustained_cpu(self) -> float:
        """Documents per second of CPU, all threads together, over the second half of the
        documents.
        """
        return _rate(self.curve[len(self.curve) // 2 :], "cpu_seconds")

    @property
    def rebuild(self) -> float:
        """Documents per second of the rebuild."""
        return _rate(self.rebuild_curve, "seconds")

    @property
    def rebuild_cpu(self) -> float:
        """Documents per second of CPU of the rebuild."""
        return _rate(self.rebuild_curve, "cpu_seconds")

    @property
    def judged_on(self) -> float:
        """Documents per second after the volume was opened with other memory."""
        return _rate(self.reopened_curve, "seconds")

    @property
    def judged_on_cpu(self) -> float:
        """Documents per second of CPU then."""
        return _rate(self.reopened_curve, "cpu_seconds")

    @property
    def restored_entries_per_second(self) -> float:
        """How fast a snapshot becomes an index that answers: files copied and checked, tables laid
        out.
        """
        return self.representatives / float(
            self.restored["restore_seconds"] + self.restored["open_seconds"]
        )

    @property
    def loaded_entries_per_second(self) -> float:
        """How fast the files of a volume become an index that answers."""
        return self.representatives / float(self.after_close["open_seconds"])

    @property
    def representatives(self) -> int:
        """The number of entries at the end."""
        return int(self.filled["statistics"]["entries"])

    @property
    def disk(self) -> Mapping[str, float]:
        """Bytes per representative: `total` as it lies on disk after a clean stop, `ids as text`,
        the kinds of values.

        The kinds are before compression, with their keys.
        """
        count = self.representatives
        ids = sum(sample["id_bytes"] for sample in self.curve) / self.options.documents
        parts = {
            f"{name}, not compressed": size / count
            for name, size in self.after_close["parts"].items()
        }
        return {"total": self.after_close["closed_bytes"] / count, "ids as text": ids, **parts}

    @property
    def by_chance(self) -> int:
        """How many documents were near an earlier one that nobody planted; each was seen to be."""
        return sum(int(sample["by_chance"]) for sample in self.curve)

    @property
    def candidates(self) -> float:
        """How many entries a document's search looked up, over the second half of the documents."""
        half = self.curve[len(self.curve) // 2 :]
        return float(
            sum(sample["candidates"] for sample in half)
            / sum(sample["documents"] for sample in half)
        )

    @property
    def growth(self) -> float:
        """How much longer a document took in the last fifth than in the second one, by CPU time."""
        fifth = max(1, len(self.curve) // 5)
        return _rate(self.curve[fifth : 2 * fifth], "cpu_seconds") / max(
            _rate(self.curve[-fifth:], "cpu_seconds"), 1e-9
        )

    @property
    def resident_bytes(self) -> float | None:
        """By how many bytes of resident memory the process grew for a representative, from the
        first fifth to the end.

        None where the system does not tell.
        """
        first, last = self.curve[len(self.curve) // 5], self.curve[-1]
        if first["rss_bytes"] is None or first["entries"] == last["entries"]:
            return None
        return float(
            (last["rss_bytes"] - first["rss_bytes"]) / (last["entries"] - first["entries"])
        )

    @property
    def threads(self) -> str:
        """The threads that work, as a sentence."""
        searching = min(2, os.cpu_count() or 1)
        product_threads = f"1 that applies and is one of {searching} in searches and when tables are sorted, 1 that reads pages"
        return f"{product_threads}; RocksDB's own to flush and compact"

    def as_json(self) -> dict[str, Any]:
        """Return everything as one JSON object."""
        options = self.options
        return {
            "plan": options.plan.id,
            "documents": options.documents,
            "duplicates": options.duplicates,
            "distance": options.distance,
            "template": options.template,
            "seed": options.seed,
            "memory_bytes_allowed": options.memory_bytes,
            "cores": os.cpu_count(),
            "load_before": self.load_before,
            "threads": self.threads,
            "durable": DURABLE,
            "sustained_documents_per_second": self.sustained,
            "sustained_documents_per_cpu_second": self.sustained_cpu,
            "whole_run_documents_per_second": _rate(self.curve, "seconds"),
            "planted_found": sum(sample["planted_found"] for sample in self.curve),
            "planted_missed": sum(sample["wrong"] for sample in self.curve),
            "near_by_chance": self.by_chance,
            "candidates_per_document": self.candidates,
            "growth_of_cpu": self.growth,
            "resident_bytes_per_representative": self.resident_bytes,
            "curve": self.curve,
            "filled": self.filled,
            **({} if options.judging_only else self._after()),
            **({} if options.reopen_bytes is None else self._reopened()),
            "complaints": self.complaints,
        }

    def _reopened(self) -> dict[str, Any]:
        return {
            "reopen_memory_bytes_allowed": self.options.reopen_bytes,
            "reopen_seconds": self.reopened["open_seconds"],
            "reopened_documents_per_second": self.judged_on,
            "reopened_documents_per_cpu_second": self.judged_on_cpu,
            "reopened_curve": self.reopened_curve,
            "reopened": self.reopened,
        }

    def _after(self) -> dict[str, Any]:
        return {
            "rebuild_documents_per_second": self.rebuild,
            "rebuild_documents_per_cpu_second": self.rebuild_cpu,
            "open_after_kill_seconds": self.after_kill["open_seconds"],
            "open_after_close_seconds": self.after_close["open_seconds"],
            "restored_entries_per_second": self.restored_entries_per_second,
            "loaded_entries_per_second": self.loaded_entries_per_second,
            "disk_bytes_per_representative": dict(self.disk),
            "open_after_kill": self.after_kill,
            "open_after_close": self.after_close,
            "restored": self.restored,
            "rebuild_curve": self.rebuild_curve,
            "rebuilt": self.rebuilt,
        }


def run_index(options: IndexOptions, say: Say) -> IndexReport:
    """Measure everything; `say` is told in a line what is going on.

    Raises:
        StreamDedupError: a measured process ended by itself.
    """
    report = IndexReport(options, load_before=os.getloadavg()[0])
    with tempfile.TemporaryDirectory(prefix="stream-dedup-bench-", dir=options.folder) as name:
        folder = Path(name)
        with _child(options, "fill", folder / "volume") as (lines, process):
            report.filled = _collect_curve(lines, report.curve, options, say, "judged")
            process.kill()
        if options.reopen_bytes is not None:
            _reopen(report, folder / "volume", options.reopen_bytes, say)
        if not options.judging_only:
            _restart(report, folder, say)
        _add_complaints(report)
    return report


def _reopen(report: IndexReport, volume: Path, memory_bytes: int, say: Say) -> None:
    documents = report.options.documents + max(
        RECORD_DOCUMENTS, report.options.documents // _REOPENED_SHARE
    )
    options = replace(report.options, documents=documents, memory_bytes=memory_bytes)
    say("opening what the kill left with other memory, and judging on")
    with _child(options, "fill", volume) as (lines, process):
        report.reopened = _collect_curve(lines, report.reopened_curve, options, say, "judged on")
        process.kill()


def _restart(report: IndexReport, folder: Path, say: Say) -> None:
    options, first, copied = report.options, folder / "volume", folder / "snapshot"
    say("opening what the kill left, and again after a clean stop")
    report.after_kill = _open(options, "open", first)
    report.after_close = _open(options, "open", first)
    say("restoring a snapshot")
    snapshot.take(first, copied)
    shutil.rmtree(first)
    report.restored = _open(options, "restore", folder / "restored", snapshot=copied)
    shutil.rmtree(folder / "restored")
    shutil.rmtree(copied)
    with _child(options, "fill", folder / "rebuilt", answers=False) as (lines, process):
        report.rebuilt = _collect_curve(lines, report.rebuild_curve, options, say, "rebuilt")
        process.kill()
    shutil.rmtree(folder / "rebuilt")


def _add_complaints(report: IndexReport) -> None:
    missed = sum(
        sample["wrong"] for sample in report.curve + report.reopened_curve + report.rebuild_curve
    )
    if missed:
        report.complaints.append(
            f"{missed} planted copies were not found with their original and distance."
        )
    found = (
        report.filled,
        report.after_kill,
        report.after_close,
        report.restored,
        report.rebuilt,
    )
    steps = [step for step in found if step]
    applied, chains = (
        {step["statistics"]["applied"] for step in steps},
        {step["chain"] for step in steps},
    )
    if len(applied) > 1 or len(chains) > 1:
        report.complaints.append(
            f"The volume after a restart or rebuild is another one: {applied} records, chains "
            f"{chains}."
        )


def _collect_curve(
    lines: Iterator[dict[str, Any]],
    curve: list[dict[str, Any]],
    options: IndexOptions,
    say: Say,
    doing: str,
) -> dict[str, Any]:
    done, told_at = 0, time.monotonic()
    for line in lines:
        if "documents" not in line:
            return line
        curve.append(line)
        done += line["documents"]
        if time.monotonic() - told_at > _REPORT_SECONDS:
            told_at = time.monotonic()
            say(
                f"{doing} {done:,} of {options.documents:,}: {_rate([line], 'seconds'):,.0f} "
                "documents/s"
            )
    raise StreamDedupError("The measured process ended before it was done; see its lines above.")


def _open(
    options: IndexOptions, do: str, volume: Path, *, snapshot: Path | None = None
) -> dict[str, Any]:
    with _child(options, do, volume, snapshot=snapshot) as (lines, process):
        found = {**next(lines), **next(lines)}
        process.wait()
    return found


@contextlib.contextmanager
def _child(
    options: IndexOptions,
    do: str,
    volume: Path,
    *,
    answers: bool = True,
    snapshot: Path | None = None,
) -> Iterator[tuple[Iterator[dict[str, Any]], subprocess.Popen[str]]]:
    job = {
        "do": do,
        "volume": str(volume),
        "plan": options.plan.id,
        "documents": options.documents,
        "duplicates": options.duplicates,
        "distance": options.distance,
        "seed": options.seed,
        "template": options.template,
        "answers": answers,
        "memory": options.memory_bytes,
        "snapshot": None if snapshot is None else str(snapshot),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.index_child", json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield _lines(process), process
    finally:
        process.kill()
        process.communicate()


def _lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    if process.stdout is None:
        return
    while line := process.stdout.readline():
        yield json.loads(line)
    raise StreamDedupError(
        f"The measured process ended by itself with {process.wait()}; see its lines above."
    )


def _rate(curve: list[dict[str, Any]], what: str) -> float:
    seconds = sum(sample[what] for sample in curve)
    return sum(sample["documents"] for sample in curve) / seconds if seconds else 0.0
