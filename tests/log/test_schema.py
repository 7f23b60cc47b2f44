"""A new header and a new reason of a verdict need changes in few files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import stream_dedup

ROOT = Path(stream_dedup.__file__).parent.parent
AFTER, BEFORE = "after", "before"
Edits = Mapping[str, Sequence[tuple[str, str, str]]]
"""The edits of each file: put a text after or before the first occurrence of another."""

HEADER: Edits = {
    "log/schema.py": (
        (
            AFTER,
            'VerdictColumn("better", np.uint8, named_only=True),\n',
            '    VerdictColumn("of_log", np.uint64, named_only=True),\n',
        ),
        (AFTER, "    better: int = 0\n", "    of_log: int = 0\n"),
        (AFTER, "    better: NDArray[np.uint8]\n", "    of_log: NDArray[np.uint64]\n"),
    ),
    "log/headers.py": (
        (BEFORE, 'OF_ID = "dedup.of.id"', 'OF_LOG = "dedup.of.log"\n'),
        (
            BEFORE,
            "        own_headers += (\n            (OF_ID,",
            '        own_headers.append((OF_LOG, b"%d" % verdict.of_log))\n',
        ),
    ),
    "log/header_columns.py": (
        (AFTER, "    headers.LOG,\n", "    headers.OF_LOG,\n"),
        (AFTER, "_SIBLING_ID, _SIBLING_POSITION, _LOG", ", _OF_LOG"),
        (
            BEFORE,
            "    names = (_OF_ID, _OF_POSITION, _OF_TIME)",
            (
                "    end = _write_uint(values, end, columns.of_log[i])\n"
                "    j += 1\n"
                "    name_numbers[j], value_ends[j] = _OF_LOG, end\n"
            ),
        ),
    ),
    "index/rules/judging.py": (
        (BEFORE, "    copies, better = ", "    of_log = np.zeros(len(places), np.uint64)\n"),
        (
            BEFORE,
            "        handles[duplicates] = handle_of(",
            "        of_log[duplicates] = representatives.log_offsets\n",
        ),
        (BEFORE, "        copies=copies,", "        of_log=of_log,\n"),
    ),
    "audit/judgements.py": (
        (AFTER, "            better=better,\n", "            of_log=original.decided.offset,\n"),
    ),
}
"""A header `dedup.of.log` with a column of its own: the log offset that decided on the kept
document."""

REASON: Edits = {
    "domain/document.py": (
        (BEFORE, "    STALE = 20, ", '    UNNAMED = 15, "nearly the same text, without an id"\n'),
    ),
    "index/rules/judging.py": (
        (
            BEFORE,
            "        handles[duplicates] = handle_of(",
            (
                "        unnamed = (duplicate_ids.sizes == 0) & ~same_text\n"
                "        reasons[duplicates] = np.where(unnamed, Reason.UNNAMED, reasons[duplicates])\n"
            ),
        ),
    ),
    "audit/judgements.py": (
        (
            BEFORE,
            "            distance, similarity = (\n",
            "            if not batch.ids[place]:\n                reason = Reason.UNNAMED\n",
        ),
    ),
}
"""A reason `unnamed`: a near copy without an id."""

CHECK = """
import random, sys
import numpy as np
from stream_dedup.audit.judgements import Fold
from stream_dedup.audit.scan import PlainScan
from stream_dedup.domain.document import Position
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.log import answers, header_columns, headers
from stream_dedup.log.schema import Verdicts
from tests.index.logs import RandomLog, append_time, read
from tests.log.test_header_columns import written

seed, volume, found, digests = int(sys.argv[1]), {}, [], []
log, fold = RandomLog(seed, PLANS["bands"]).records(120), Fold(PlainScan())
index = LogIndex(MemoryStore(volume))
for offset, raw in enumerate(log):
    if offset % 40 == 39:  # what the volume stores of a verdict is the verdict
        digests.append(index.state_digest())
        index.close()
        index = LogIndex(MemoryStore(volume))
        assert index.state_digest() == digests[-1]
    given = dict(index.apply([(offset, append_time(offset), raw)]))
    judged = fold.judge(offset, append_time(offset), read(raw))
    answer = answers.decode(given[offset]) if offset in given else None
    if isinstance(answer, answers.LogAnswer):
        assert list(answer.judgements) == list(judged), offset
        found += judged
found = [judgement for judgement in found if judgement.reason.verdict is not None]
count = len(found)
places = header_columns.SourcePlaces(
    "documents", np.zeros(count, np.int32), np.arange(count, dtype=np.int64)
)
prints = np.full((count, 4), ord("a"), np.uint8)
columns = header_columns.of_verdicts(
    "r", places, prints, Verdicts.of(found), np.ones(count, np.bool_)
)
names = {name for row in written(columns) for name, _ in row}
assert [dict(row) for row in written(columns)] == [
    dict(headers.of_verdict(Position("documents", b"", 0, place), "r", b"aaaa", judgement))
    for place, judgement in enumerate(found)
]
print("dedup.of.log" in names, any(judgement.reason.label == "unnamed" for judgement in found))
"""


@pytest.mark.thorough  # it compiles the kernels of a changed package
def test_a_reason_and_a_header_are_declared_once(tmp_path: Path) -> None:
    """A new reason touches at most 8 files of the product and a new header 5, and then index,
    volume, answers, headers and the second implementation all have them."""
    assert len(REASON) <= 8
    assert len(HEADER) <= 5
    shutil.copytree(ROOT / "stream_dedup", tmp_path / "stream_dedup")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    seed = os.environ["TEST_SEED"]

    assert check(tmp_path, seed) == "False False"

    for edits in (HEADER, REASON):
        for name, changes in edits.items():
            change(tmp_path / "stream_dedup" / name, changes)

    assert check(tmp_path, seed) == "True True", f"seed {seed}"


def change(path: Path, edits: Sequence[tuple[str, str, str]]) -> None:
    text = path.read_text(encoding="utf-8")
    for where, mark, added in edits:
        assert mark in text, f"{path.name} has no longer {mark!r}"
        text = text.replace(mark, mark + added if where == AFTER else added + mark, 1)
    path.write_text(text, encoding="utf-8")


def check(folder: Path, seed: str) -> str:
    """Return whether the header and the reason occur in a random log that is judged with the
    package in `folder`."""
    process = subprocess.run(
        [sys.executable, "-c", CHECK, seed],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if process.returncode:
        pytest.fail(process.stderr[-3000:])
    return process.stdout.strip()
