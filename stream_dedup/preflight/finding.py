"""The results of checks."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from stream_dedup.domain.errors import ConfigurationError


class CheckState(enum.StrEnum):
    """The state of a check's result."""

    OK = "ok"
    WARNING = "warning"
    REFUSED = "refused"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """A line of `doctor`. The sentence states the fact, and for a problem its consequence and the
    remedy.
    """

    check: str
    state: CheckState
    sentence: str


def ok(check: str, sentence: str) -> CheckFinding:
    """Return the finding of a check without a problem."""
    return CheckFinding(check, CheckState.OK, sentence)


def warning(check: str, sentence: str) -> CheckFinding:
    """Return the finding of a problem that endangers no document."""
    return CheckFinding(check, CheckState.WARNING, sentence)


def refused(check: str, sentence: str) -> CheckFinding:
    """Return the finding of a problem with which no role may start."""
    return CheckFinding(check, CheckState.REFUSED, sentence)


def not_checked(check: str, sentence: str) -> CheckFinding:
    """Return the finding of a check that could not run, with the reason."""
    return CheckFinding(check, CheckState.NOT_CHECKED, sentence)


@dataclass(slots=True)
class Problems:
    """The problems that a check finds."""

    check: str
    findings: list[CheckFinding] = field(default_factory=list)

    def warn(self, sentence: str) -> None:
        """Add a problem that endangers no document."""
        self.findings.append(warning(self.check, sentence))

    def refuse(self, sentence: str) -> None:
        """Add a problem with which no role may start."""
        self.findings.append(refused(self.check, sentence))

    def or_ok(self, sentence: str) -> list[CheckFinding]:
        """Return the problems, or an ok finding without any."""
        return self.findings or [ok(self.check, sentence)]


def raise_refusals(findings: Iterable[CheckFinding]) -> None:
    """Raise an error with all refused findings.

    Raises:
        ConfigurationError: there is a refused finding.
    """
    sentences = [finding.sentence for finding in findings if finding.state is CheckState.REFUSED]
    if sentences:
        raise ConfigurationError("\n".join(sentences))
