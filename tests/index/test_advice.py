"""What `plan` says: from given constants the choice, from measured ones only what no machine can change."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_dedup.__main__ import main
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.ground.plan import PLANS, Plan
from stream_dedup.index import calibration
from stream_dedup.index.advice import advise, figures_of
from stream_dedup.index.arithmetic import candidates_of_plan
from stream_dedup.index.budget import Budget
from stream_dedup.index.calibration import Constants, calibrate, least_memory
from stream_dedup.index.held import bytes_for
from stream_dedup.index.neighbours import MERGED_AGAIN, MERGED_AGAIN_IN_FILES, SEALED_AGAIN, Neighbours
from stream_dedup.index.rows import Columns, no_columns, take_rows

CONSTANTS = Constants(
    document_us=3, table_us=0.1, probe_us=0.05, narrow_us=0.0005, wide_us=0.001, far=2, keyed_us=0.1, keyed_table_us=0.1
)


def test_the_fastest_plan_that_finds_enough_and_fits_is_taken() -> None:
    """All others in the table that find as much in the memory are slower; none shown is beaten in everything by another."""
    advice = advise(10**8, 18, 128, CONSTANTS, recall=0.99)
    picked = advice.picked

    assert picked is not None
    assert picked.recall >= 0.99
    able = [one for one in advice.figures if one.recall >= 0.99]
    assert max(one.documents_per_second for one in able) == picked.documents_per_second
    assert {PLANS["wide"], PLANS["classic"], Plan(128, 0, 0, 18), Plan(64, 64, 0, 18)} <= {one.plan for one in advice.figures}


def test_less_memory_takes_a_plan_with_fewer_tables_or_none() -> None:
    """A bound on memory is kept; one that nothing keeps is answered with what would, and exit code 1."""
    free = advise(10**8, 18, 128, CONSTANTS).picked
    assert free is not None
    bound = int(free.memory_bytes * 0.97)
    within = advise(10**8, 18, 128, CONSTANTS, memory_bytes=bound).picked
    nothing = advise(10**8, 18, 128, CONSTANTS, memory_bytes=10**9)

    assert within is not None
    assert within.memory_bytes <= bound
    assert within.documents_per_second < free.documents_per_second
    assert nothing.picked is None
    assert "needs least" in nothing.why


def test_bands_is_advised_with_what_it_finds_by_similarity() -> None:
    """Its cost does not grow with what is kept; what it finds is said by similarity, as its threshold is."""
    small, large = (advise(count, 18, 128, CONSTANTS) for count in (10**6, 10**8))

    assert small.picked is not None
    assert large.picked is not None
    assert large.picked.plan == PLANS["bands"]
    assert large.picked.candidates < small.picked.candidates + 1
    assert "from 80% alike on" in large.why
    assert large.picked.as_json()["recall_by_similarity"]["0.8"] > 0.995


def test_more_documents_are_slower_and_need_more() -> None:
    """Candidates grow with the documents, so the predicted rate falls; memory grows in proportion."""
    small, large = (figures_of(PLANS["wide"], count, 21, CONSTANTS) for count in (10**6, 10**8))

    assert large.documents_per_second < small.documents_per_second
    assert large.candidates == pytest.approx(100 * small.candidates)
    assert 60 < large.memory_bytes / small.memory_bytes < 101


def test_a_share_that_is_none_is_refused() -> None:
    """The share to find is from 0 to 1."""
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        advise(1000, 3, 64, CONSTANTS, recall=1.5)


@pytest.mark.parametrize("plan", list(PLANS.values()), ids=lambda plan: plan.name)
def test_predicted_memory_is_what_the_arrays_hold(plan: Plan, tmp_path: Path) -> None:
    """Nearly, over an index that grew document by document."""
    dice = np.random.default_rng(int(os.environ["TEST_SEED"]))
    count = 200_000
    columns = no_columns(2, count, 120)
    columns.sketches[:] = dice.integers(0, 256, (count, 120), np.uint8)
    columns.prints[:], columns.digests[:] = dice.integers(0, 1 << 64, (2, count, 2), np.uint64)
    columns.offsets[:] = np.arange(count)

    def identities(numbers: NDArray[np.int64], known: Columns = columns) -> Columns:
        return take_rows(known, numbers)

    index = Neighbours(plan, 2, identities, budget=Budget(0, tmp_path), values=120)
    for first in range(0, count, 20_000):
        part = take_rows(columns, slice(first, first + 20_000))
        index.judge(part, np.full(20_000, 100, np.uint32), 1)

    predicted = CONSTANTS.memory_bytes(plan, index.live) / index.live
    # Among so few, keyed tables have a twelfth in their open parts, twice the share that is taken for the average.
    assert index.bytes_used / index.live == pytest.approx(predicted, rel=0.3 if plan.is_keyed else 0.15)


class Tight(Budget):
    """Holds what has to be in memory, and nothing that may lie in files."""

    def room(self, bytes_needed: int) -> int:
        """Return that there is none."""
        return -bytes_needed

    def demand(self, bytes_needed: int) -> None:
        """Refuse nothing."""


def test_a_budget_is_told_what_the_arrays_hold_at_most(tmp_path: Path) -> None:
    """What the least budget is told from bounds an index that grows, and is not far off."""
    dice = np.random.default_rng(int(os.environ["TEST_SEED"]))
    plan, count, shares = PLANS["bands"], 1_200_000, []
    columns = no_columns(2, count, 120)
    columns.sketches[:] = dice.integers(0, 256, (count, 120), np.uint8)
    columns.prints[:], columns.digests[:] = dice.integers(0, 1 << 64, (2, count, 2), np.uint64)
    columns.offsets[:] = np.arange(count)
    index = Neighbours(plan, 2, lambda numbers: take_rows(columns, numbers), budget=Tight(1, tmp_path), values=120)
    for first in range(0, count, 5_000):
        part = take_rows(columns, slice(first, first + 5_000))
        index.add(part, np.ones(5_000, np.bool_))
        index.judge(take_rows(part, slice(0, 1)), np.full(1, 100, np.uint32), 1)  # which sorts when it is due
        shares.append(
            index.bytes_used
            / bytes_for(plan.tables, index.live, index.live, 16, in_files=True, open_share=1 / MERGED_AGAIN_IN_FILES)
        )

    assert max(shares[-40:]) < 1.0
    assert min(shares[-40:]) > 0.7
    assert index.bytes_mapped > 150 * index.live
    assert least_memory(plan, 10**8) == pytest.approx(5.8e9, rel=0.05)
    assert least_memory(PLANS["wide"], 10**8) is None


def test_a_calibration_solves_for_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """From what four plans take on a machine whose costs are known it finds those costs."""

    def timed(plan: Plan, *_: Columns) -> calibration._Timed:
        if plan.is_keyed:
            return calibration._Timed(0.0, 0.5 + 0.2 * plan.tables, 2.0 + 0.4 * plan.tables)
        compared = float(candidates_of_plan(plan, calibration.ENTRIES)) * (0.01 if plan.threshold <= 7 else 0.03)
        return calibration._Timed(1.0 + 0.02 * plan.tables, 0.5 + 0.1 * plan.tables, 2.0 + 0.05 * plan.probes + compared)

    monkeypatch.setattr(calibration, "_time", timed)
    monkeypatch.setattr(calibration, "_time_merge", lambda _: 0.01 * calibration._KEYED.tables)
    monkeypatch.setattr(calibration, "_far", lambda _: 1.5)
    found = calibrate()

    assert found.as_json() == pytest.approx(
        {
            "document_us": 2.5,
            "table_us": 0.1 + 0.02 * (SEALED_AGAIN + 1),
            "probe_us": 0.05,
            "narrow_us": 0.01,
            "wide_us": 0.03,
            "far": 1.5,
            "keyed_us": 0.4,
            "keyed_table_us": 0.2 + 0.01 * (MERGED_AGAIN + 1),
            "entries": calibration.ENTRIES,
        }
    )


def test_a_calibration_measures_this_machine() -> None:
    """No cost is negative, however noisy the machine, and what lies far takes no less than what lies near."""
    found = calibrate()

    assert min(found.as_json().values()) >= 0
    assert found.far >= 1


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`plan --json` has every plan's figures, the pick and the constants."""
    code = main(["plan", "--documents", "1e6", "--threshold", "3", "--width", "64", "--memory", "4GB", "--json"])
    said = json.loads(capsys.readouterr().out)

    assert code == 0
    assert said["documents"] == 10**6
    assert said["picked"] in {one["plan"] for one in said["plans"]}
    assert all(share == 1 for one in said["plans"] if one["plan"] == said["picked"] for share in one["recall"])


def test_a_number_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be read is named, with how it is written."""
    assert main(["plan", "--documents", "many", "--threshold", "3"]) != 0
    assert "as in 1e8" in capsys.readouterr().err
    assert main(["plan", "--documents", "1e6", "--threshold", "3", "--memory", "lots"]) != 0
    assert "8GB" in capsys.readouterr().err
