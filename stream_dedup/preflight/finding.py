"""The outcome of one check."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from stream_dedup.domain.errors import ConfigurationError


class CheckState(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    REFUSED = "refused"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One line of `doctor`. The sentence says what is so; if that is not well, what follows from it
    and what to do.
    """

    check: str
    state: CheckState
    sentence: str


def ok(check: str, sentence: str) -> CheckFinding:
    """Return that a check found nothing to say."""
    return CheckFinding(check, CheckState.OK, sentence)


def warning(check: str, sentence: str) -> CheckFinding:
    """Return something that costs, and endangers no document."""
    return CheckFinding(check, CheckState.WARNING, sentence)


def refused(check: str, sentence: str) -> CheckFinding:
    """Return something that no role may start with."""
    return CheckFinding(check, CheckState.REFUSED, sentence)


def not_checked(check: str, sentence: str) -> CheckFinding:
    """Return that something could not be looked at, and why."""
    return CheckFinding(check, CheckState.NOT_CHECKED, sentence)


@dataclass(slots=True)
class Problems:
    """What one check finds wrong."""

    check: str
    found: list[CheckFinding] = field(default_factory=list)

    def warn(self, sentence: str) -> None:
        """Add something that costs, and endangers no document."""
        self.found.append(warning(self.check, sentence))

    def refuse(self, sentence: str) -> None:
        """Add something that no role may start with."""
        self.found.append(refused(self.check, sentence))

    def or_ok(self, sentence: str) -> list[CheckFinding]:
        """Return them; if there are none, that all is well."""
        return self.found or [ok(self.check, sentence)]


def raise_refusals(findings: Iterable[CheckFinding]) -> None:
    """Raise what was refused, all at once.

    Raises:
        ConfigurationError: something was.
    """
    sentences = [one.sentence for one in findings if one.state is CheckState.REFUSED]
    if sentences:
        raise ConfigurationError("\n".join(sentences))
