"""What the topic `decisions` must say of each log record, by the fold alone; and how what it says
differs from that.

The chains in it are not looked at: that of an answer holds the sentences of what was rejected,
which only an index writes (`replay --verify`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import FormatError, OtherFormatError
from stream_dedup.log.decisions import NOT_JUDGED, LogDecision, decode
from stream_dedup.proof.findings import Findings, Kind
from stream_dedup.proof.outline import Outline

_ANEW = "Delete the topic, create it again with stream-dedup topics apply, and have an index rebuilt, which writes it"


@dataclass(slots=True)
class AuditedDecisions:
    """The topic, one record after another; `close` compares it with the fold of the log.

    `missing` are log records that it passed over, which a rebuild has to look up.
    """

    compared: int = 0
    missing: int = 0
    _held: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    _wrong: list[tuple[str, str]] = field(default_factory=list)

    def take_message(self, message: Message) -> None:
        """Take in a record of the topic, in its order.

        Raises:
            OtherFormatError: a newer version wrote it.
        """
        try:
            log_offset = decode(message.value, f"The record {message.at}").log_offset
        except OtherFormatError:
            raise
        except FormatError as error:
            self._wrong.append((message.at, str(error)))
            return
        first = self._held.setdefault(log_offset, (message.at, message.value or b""))
        if first[1] != message.value:
            self._wrong.append(
                (
                    message.at,
                    f"{message.at} says of log record {log_offset} what {first[0]} does not.",
                )
            )

    def close(self, outline: Outline, findings: Findings) -> None:
        """Compare, once the log was folded to its end."""
        for where, sentence in self._wrong:
            findings.add_finding(Kind.DECISION, where, f"{sentence} {_ANEW}.")
        last = max(self._held, default=-1)
        self.missing = sum(at < last and at not in self._held for at in outline.made)
        end = max(outline.made, default=-1)
        for log_offset, (where, raw) in sorted(self._held.items()):
            if log_offset > end:
                continue  # appended, and decided, since the log was read
            self.compared += 1
            for sentence in differences(outline, log_offset, decode(raw)):
                findings.add_finding(
                    Kind.DECISION,
                    where,
                    f"{where}: of log record {log_offset} {sentence}. {_ANEW}.",
                )
                break


def differences(outline: Outline, log_offset: int, decision: LogDecision) -> Iterator[str]:
    """Yield what a decision says otherwise than the log does."""
    made, batch = outline.made.get(log_offset), outline.batches.get(log_offset)
    if made is None or batch is None or len(batch) != len(decision):
        yield f"it says {len(decision)} documents were judged, which the log does not"
        return
    judgements, named = outline.judged.get(log_offset), iter(outline.named[log_offset])
    told = iter(range(len(decision.of)))
    columns = (
        decision.of,
        decision.distances,
        decision.similarity,
        decision.copies,
        decision.better,
    )
    for place in range(len(decision)):
        judgement = None if judgements is None else judgements[place]
        wanted: tuple[int, ...] = ()
        if (
            judgement is not None
            and judgement.of is not None
            and judgement.decided == (log_offset, place)
        ):
            one = judgement
            wanted = (
                int(one.reason),
                next(named),
                one.distance,
                one.similarity,
                one.copies,
                one.better,
            )
        said: tuple[int, ...] = ()
        if (reason := int(decision.reasons[place])) != NOT_JUDGED:
            at = next(told)
            said = (reason, *(int(column[at]) for column in columns))
        if bool(decision.made[place]) != (place in made) or said != wanted:
            yield f"it says of document {place} {_shown(decision.made[place], said)}, the log {_shown(place in made, wanted)}"


def _shown(made: object, said: tuple[object, ...]) -> str:
    return "that it became a representative" if made else f"{said}" if said else "nothing"
