"""What the topic `representatives` must hold, by the fold alone; and how what it holds differs from
that.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import FormatError
from stream_dedup.log.headers import rfc3339
from stream_dedup.log.representatives import PROGRESS_KEY, Progress, decode_progress
from stream_dedup.proof.copies import RULES, FoldedCopies
from stream_dedup.proof.findings import Findings, Kind
from stream_dedup.proof.fold import Fold
from stream_dedup.proof.outline import Outline

_PROGRESS = PROGRESS_KEY.decode()
_ANEW = "delete the topic, and create it again with stream-dedup topics apply"
Expected = dict[str, dict[str, object]]


def expected(fold: Fold) -> Expected:
    """Return the value of each representative that has copies, by its position.

    Of two topics with one name the fold's later one counts: what was said of the one before may
    stand where it was.
    """
    found = {}
    for one in fold.latest_entries():
        topic, _, partition = one.partition
        value = _value(one.copies)
        if value is not None:
            found[f"{topic}-{partition}@{one.offset}"] = value
    return found


def differences(fold: Fold, records: Mapping[str, bytes | None]) -> Iterator[str]:
    """Yield, as sentences, where the topic's last record of each key is not what it must be."""
    wanted, held = expected(fold), held_in(records)
    for key in wrong_in(held, wanted, fold):
        yield sentence_of(key, held, wanted)


def held_in(records: Mapping[str, bytes | None]) -> dict[str, object]:
    """Return what the topic says of each representative, by the last record of each key; nothing of
    one that is gone.
    """
    return {
        key: _said(value)
        for key, value in records.items()
        if value is not None and key != _PROGRESS
    }


def wrong_in(held: Mapping[str, object], wanted: Expected, fold: Fold) -> list[str]:
    """Return the keys of which the topic does not say what it must.

    Of a source topic that was created again, what was said of the documents of before may stand
    where it was.
    """
    again = tuple(f"{topic}-" for topic in fold.topics_made_again)
    return [
        key
        for key in sorted(wanted.keys() | held.keys())
        if held.get(key) != wanted.get(key) and (key in wanted or not key.startswith(again))
    ]


def sentence_of(key: str, held: Mapping[str, object], wanted: Expected) -> str:
    """Return what is wrong with a key."""
    return f"Of {key} the topic says {held.get(key, 'nothing')}, and the log leads to {wanted.get(key, 'nothing')}"


@dataclass(slots=True)
class AuditedRepresentatives:
    """The topic, one record after another, and then what the fold says where the topic stands:
    `before` is told of each record of the log before it is folded. `close` compares.

    The topic follows the log: all that changed below `written_below` of its progress is there, and
    nothing was told beyond `applied`. What changed between the two is on its way, and may be there
    or not; all else must be what the fold says. `log` and `topic_id` are those of now, as an index
    writes them.
    """

    topic: str
    log: str
    topic_id: str
    compared: int = 0
    on_their_way: int = 0
    _damage: str = ""
    _last: dict[str, Message] = field(default_factory=dict)
    _stages: list[tuple[int, Expected | None]] = field(default_factory=list)

    def take_message(self, message: Message) -> None:
        """Take in a record of the topic, in its order."""
        self._last[(message.key or b"").decode("utf-8", "replace")] = message

    def before(self, fold: Fold, log_offset: float) -> None:
        """Look at the fold before it takes in the record of the log at an offset."""
        if not self._stages:
            self._begin()
        for at, (goal, seen) in enumerate(self._stages):
            if seen is None and log_offset >= goal:
                self._stages[at] = goal, expected(fold)

    def close(self, outline: Outline, findings: Findings) -> None:
        """Compare, once the log was folded to its end."""
        fold = outline.verdicts
        self.before(fold, float("inf"))
        if self._damage:
            findings.add_finding(
                Kind.PUBLISHED,
                self._where(_PROGRESS),
                f"cannot be followed: {self._damage} {_ANEW.capitalize()}.",
            )
            return
        (below, first), (applied, wanted) = ((goal, seen or {}) for goal, seen in self._stages)
        judged = itertools.chain.from_iterable(
            found for at, found in outline.judged.items() if below <= at < applied
        )
        named = {str(one.of.position) for one in judged if one.of is not None}
        held = held_in({key: one.value for key, one in self._last.items()})
        self.compared = len(wanted.keys() | held.keys())
        for key in wrong_in(held, wanted, fold):
            if key not in named and first.get(key) == wanted.get(key):
                said = f"is not what it must be. {sentence_of(key, held, wanted)}. If it stays so: {_ANEW}."
                findings.add_finding(Kind.PUBLISHED, self._where(key), said)
            else:
                self.on_their_way += 1

    def _begin(self) -> None:
        """Read off the progress between which offsets of the log the topic stands."""
        last = self._last.get(_PROGRESS)
        progress = Progress()
        try:
            progress = decode_progress(None if last is None else last.value)
        except FormatError as error:
            self._damage = str(error)
        if progress.log not in ("", self.log):
            self._damage = f"The topic tells of the log {progress.log!r}, and this is {self.log!r}: the log was made anew."
        below = progress.written_below if progress.topic_id == self.topic_id else 0
        self._stages = [(below, None), (max(below, progress.applied), None)]

    def _where(self, key: str) -> str:
        one = self._last.get(key)
        return self.topic if one is None else one.at


def _said(value: bytes) -> object:
    try:
        return json.loads(value)
    except ValueError:  # written by nobody of ours
        return repr(value[:100])


def _value(copies: FoldedCopies) -> dict[str, object] | None:
    best = copies.best
    if not (copies.count or best.rule):
        return None
    why = RULES[best.rule - 1] if best.rule else "first"
    value: dict[str, object] = {
        "best": {
            "position": str(best.position),
            "id": best.id.decode("utf-8", "replace"),
            "why": why,
        }
    }
    if copies.count:
        value |= {
            "copies": copies.count,
            "first": rfc3339(copies.first_ms),
            "last": rfc3339(copies.last_ms),
        }
    return value
