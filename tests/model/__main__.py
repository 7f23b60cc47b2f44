"""Run the model: `python -m tests.model --schedules 10000`; `--replay SEED` runs one schedule and
prints what happened in it."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from tests.model.checker import check
from tests.model.stand_ins import patched
from tests.model.world import Happening, Tuning, Violation, World


def find_violation(
    seed: int,
    tuning: Tuning | None = None,
    plan: list[Happening] | None = None,
    *,
    counts: Counter[str] | None = None,
) -> str | None:
    """Run one schedule; return what it violates, or None. `patched` must be in force."""
    world = World(seed, tuning, plan)
    try:
        world.run()
        reasons = check(world)
    except Violation as error:
        return str(error)
    if counts is not None:
        counts.update(happening.kind for happening in world.plan)
        counts.update(reasons)
        counts["turns"] += world.turn
    return None


def shrink(seed: int, tuning: Tuning | None = None) -> list[Happening]:
    """Return the smallest part found of a schedule that still has the same kind of violation."""
    left = World(seed, tuning).plan
    first = find_violation(seed, tuning, left)
    kind = (first or "").split(":")[0]
    size = max(1, len(left) // 2)
    while size:
        for start in range(0, len(left), size):
            fewer = left[:start] + left[start + size :]
            if (find_violation(seed, tuning, fewer) or "").split(":")[0] == kind:
                left = fewer
                break
        else:
            size //= 2
    return left


def render_trace(
    seed: int, tuning: Tuning | None = None, plan: list[Happening] | None = None
) -> str:
    """Return the trace of one schedule, and how it ended."""
    world = World(seed, tuning, plan, traces=True)
    end = "No promise is broken."
    try:
        world.run()
        check(world)
    except Violation as error:
        end = str(error)
    return "\n".join([*(world.trace or []), "", end])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument(
        "--schedules", type=int, default=1000, metavar="N", help="run so many [default: 1000]"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        metavar="S",
        help="seed of the first one; the others follow it",
    )
    parser.add_argument(
        "--replay",
        type=int,
        default=None,
        metavar="SEED",
        help="run this schedule, and print what happens in it",
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="with --replay: do not leave out what the violation does not need",
    )
    parser.add_argument(
        "--most",
        type=int,
        default=5,
        metavar="N",
        help="stop after so many violations [default: 5]",
    )
    options = parser.parse_args()
    with patched():
        if options.replay is not None:
            is_broken = find_violation(options.replay) is not None
            print(
                render_trace(
                    options.replay,
                    plan=shrink(options.replay) if is_broken and not options.whole else None,
                )
            )
            return int(is_broken)
        first = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
        print(f"{options.schedules} schedules from seed {first}", flush=True)
        began, broken, counts = time.process_time(), 0, Counter[str]()
        for seed in range(first, first + options.schedules):
            found = find_violation(seed, counts=counts)
            if found is not None:
                broken += 1
                print(
                    f"seed {seed}: {found}\n    again, as small as it gets: python -m tests.model "
                    f"--replay {seed}",
                    flush=True,
                )
                if broken == options.most:
                    break
        print(
            f"{seed - first + 1} schedules, {broken} of them broken, "
            f"{time.process_time() - began:.0f} s CPU"
        )
        print(", ".join(f"{name} {count:,}" for name, count in counts.most_common()))
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
