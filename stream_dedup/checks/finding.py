"""The outcome of one check."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from stream_dedup.ground.errors import ConfigurationError


class State(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    REFUSED = "refused"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `doctor`. The sentence says what is so; if that is not well, what follows from it and what to do."""

    check: str
    state: State
    sentence: str


def ok(check: str, sentence: str) -> Finding:
    """Return that a check found nothing to say."""
    return Finding(check, State.OK, sentence)


def warning(check: str, sentence: str) -> Finding:
    """Return something that costs, and endangers no document."""
    return Finding(check, State.WARNING, sentence)


def refused(check: str, sentence: str) -> Finding:
    """Return something that no role may start with."""
    return Finding(check, State.REFUSED, sentence)


def not_checked(check: str, sentence: str) -> Finding:
    """Return that something could not be looked at, and why."""
    return Finding(check, State.NOT_CHECKED, sentence)


def raise_refusals(findings: Iterable[Finding]) -> None:
    """Raise what was refused, all at once.

    Raises:
        ConfigurationError: something was.
    """
    sentences = [one.sentence for one in findings if one.state is State.REFUSED]
    if sentences:
        raise ConfigurationError("\n".join(sentences))
