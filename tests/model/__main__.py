"""Run the model: `python -m tests.model --schedules 10000`; `--replay SEED` runs one schedule and
tells what happened in it."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from tests.model.checker import check
from tests.model.stand_ins import patched
from tests.model.world import Happening, Tuning, Violation, World


def violation(
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
        counts.update(one.kind for one in world.plan)
        counts.update(reasons)
        counts["turns"] += world.turn
    return None


def shrink(seed: int, tuning: Tuning | None = None) -> list[Happening]:
    """Return a smallest part of what happens in a schedule that still violates something of the
    same kind."""
    left = World(seed, tuning).plan
    first = violation(seed, tuning, left)
    kind = (first or "").split(":")[0]
    size = max(1, len(left) // 2)
    while size:
        for at in range(0, len(left), size):
            fewer = left[:at] + left[at + size :]
            if (violation(seed, tuning, fewer) or "").split(":")[0] == kind:
                left = fewer
                break
        else:
            size //= 2
    return left


def tell(seed: int, tuning: Tuning | None = None, plan: list[Happening] | None = None) -> str:
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
        help="run this one, and tell what happens in it",
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="with --replay: do not leave out what the violation can do without",
    )
    parser.add_argument(
        "--most",
        type=int,
        default=5,
        metavar="N",
        help="stop after so many violations [default: 5]",
    )
    given = parser.parse_args()
    with patched():
        if given.replay is not None:
            is_broken = violation(given.replay) is not None
            print(
                tell(
                    given.replay,
                    plan=shrink(given.replay) if is_broken and not given.whole else None,
                )
            )
            return int(is_broken)
        first = random.SystemRandom().randrange(2**31) if given.seed is None else given.seed
        print(f"{given.schedules} schedules from seed {first}", flush=True)
        began, broken, counts = time.process_time(), 0, Counter[str]()
        for seed in range(first, first + given.schedules):
            found = violation(seed, counts=counts)
            if found is not None:
                broken += 1
                print(
                    f"seed {seed}: {found}\n    again, as small as it gets: python -m tests.model "
                    f"--replay {seed}",
                    flush=True,
                )
                if broken == given.most:
                    break
        print(
            f"{seed - first + 1} schedules, {broken} of them broken, "
            f"{time.process_time() - began:.0f} s CPU"
        )
        print(", ".join(f"{name} {count:,}" for name, count in counts.most_common()))
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
