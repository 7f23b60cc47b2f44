"""Which cases of a test `make test` runs; `make test-all` runs all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], chosen: int | tuple[Any, ...] = 1) -> list[Any]:
    """Return the cases for `parametrize`, all but the chosen ones (the first `chosen`, or those
    named) marked `thorough`.

    A case of several arguments is a tuple.
    """
    listed = list(cases)
    if not isinstance(chosen, int) and not set(chosen) <= set(listed):
        raise ValueError(
            f"{set(chosen) - set(listed)} is none of the cases: name those that `make test` is to "
            "run."
        )
    quick = listed[:chosen] if isinstance(chosen, int) else chosen
    return [
        case
        if case in quick
        else pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough
        )
        for case in listed
    ]
