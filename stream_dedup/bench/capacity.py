"""`bench capacity`: the figures that sizing rests on, from `bench path`, `bench index` and the calibration of `plan`.

Invariant: every figure is of one run on one machine, so that they fit one another.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

from stream_dedup.bench.index import IndexOptions, IndexReport, run_index
from stream_dedup.bench.path import Say, run_path
from stream_dedup.bench.path_report import PLANS, PathOptions, PathReport
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.plan import parse
from stream_dedup.index.calibration import Constants, calibrate
from stream_dedup.index.measured import Measured

_COPIES = 0.1


def run_capacity(
    options: PathOptions,
    representatives: int,
    date: str,
    say: Say,
    *,
    path: Callable[[PathOptions, Say], PathReport] = run_path,
    index: Callable[[IndexOptions, Say], IndexReport] = run_index,
    calibration: Callable[[], Constants] = calibrate,
) -> tuple[Measured, list[str]]:
    """Measure; return the figures, and what must not be, in sentences. `representatives`: how many the index alone gets, about.

    Raises:
        InputError: there were too few documents for a figure.
        StreamDedupError: the measurement failed.
    """
    constants = calibration()
    alone = {}
    for name in PLANS:
        say(f"the index alone, plan {name}")
        alone[name] = index(IndexOptions(round(representatives / (1 - _COPIES)), parse(name), _COPIES, options.seed), say)
    report = path(replace(options, rates=()), say)
    complaints = [*report.complaints, *(one for found in alone.values() for one in found.complaints)]
    return _figures(report, alone, constants, date), complaints


def _figures(report: PathReport, alone: dict[str, IndexReport], constants: Constants, date: str) -> Measured:
    rates = {plan: report.documents_per_second(plan) for plan in PLANS}
    if None in rates.values():
        raise InputError("There were too few documents for a figure; give more with --documents.")
    cpu = {plan: [one.per_document_us(one.cpu_seconds) for one in report.of(plan)] for plan in PLANS}
    samples = [one for plan in PLANS for one in report.of(plan)]
    about = report.machine
    # What rows and tables take follows from their arrays; the rest is measured: Python, RocksDB, a table laid out anew.
    memory = {
        plan: constants.memory_bytes(found.options.plan, found.representatives) / found.representatives
        for plan, found in alone.items()
    }
    return Measured(
        date=date,
        machine=f"{about['cores']} cores of {about['processor']}, load before {about['load_before']}",
        documents=f"{report.mean_value_bytes / 1000:.1f} kB, {report.options.duplicate_share:.0%} copies",
        rate={plan: _short(rate) for plan, rate in rates.items() if rate is not None},
        worker_us={plan: _median(cpu[plan], "worker") for plan in PLANS},
        index_us={plan: _median(cpu[plan], "index") for plan in PLANS},
        broker_us={plan: _median(cpu[plan], "broker") for plan in PLANS},
        log_bytes=_short(statistics.median(one.bytes_per_document["fingerprints"] for one in samples)),
        constants=constants.as_json(),
        surrounding_us=_short(_surrounding(alone["classic"], constants)),
        id_bytes=_short(statistics.median(found.disk["ids as text"] for found in alone.values())),
        disk_bytes=_short(max(found.disk["total"] for found in alone.values())),
        memory_bytes={plan: _short(slope) for plan, slope in memory.items()},
        index_bytes={
            plan: _short(found.curve[-1]["rss_bytes_max"] - memory[plan] * found.representatives)
            for plan, found in alone.items()
        },
    )


def _median(found: list[dict[str, float]], role: str) -> float:
    return _short(statistics.median(one[role] for one in found))


def _surrounding(found: IndexReport, constants: Constants) -> float:
    """Return what a document took beyond what the calibration knows of its search; the plan is one of quick searches."""
    known = constants.microseconds(found.options.plan, found.representatives, 1 - found.options.duplicates, surrounding_us=0.0)
    return max(0.0, 1e6 / found.sustained_cpu - known)


def _short(value: float) -> float:
    """Return a figure with three digits, which is more than another machine or day keeps to."""
    return float(f"{value:.3g}")
