"""`dlq show` and `dlq redrive`: dead letters listed, and sent back to where they came from.

A letter that is sent back becomes a new record at the end of its source partition, as it first
came. The group `GROUP-redrive` commits, in the transaction that sends, the offset of the first
letter that a filter left; the next run begins there. So no letter is skipped, and those sent from
behind that offset may be sent again: the filter then judges them `unchanged`. A letter that lacks a
part of its record holds nobody up.

The order: take the transactional id, which ends what a killed run left open and fences one beside
this; read the committed offsets; read the letters; for each transaction outputs, then offsets.
After an unclear end both are read again.

Invariants: below the committed offset every letter was sent back, or cannot be; without a filter
each is sent back once, also where programs are killed; nothing is sent without `--yes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from stream_dedup.audit.content import split_dead_letter
from stream_dedup.audit.letters import Letter, letter_of, redrive_group
from stream_dedup.cli.options import (
    ClassesOption,
    ContainsOption,
    JsonOption,
    StagesOption,
    command,
)
from stream_dedup.domain.errors import BrokerError, ConfigurationError
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.kafka import (
    Admin,
    Bounds,
    GroupStamp,
    Outcome,
    Output,
    SpanReader,
    TransactionalOutput,
    group_offsets,
    topic_bounds,
)
from stream_dedup.log import headers
from stream_dedup.settings.settings import Settings

_AT_ONCE = 1000
_ATTEMPTS = 5


@command("dlq show", example="stream-dedup dlq show --stage decode --limit 20")
def dlq_show_command(
    settings: Settings,
    stages: StagesOption = None,
    classes: ClassesOption = None,
    contains: ContainsOption = "",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Show at most N letters.")
    ] = 50,
    as_json: JsonOption = False,
) -> int:
    """List dead letters: position, reason, size, and whether they were sent back."""
    wanted = Filter(tuple(stages or ()), tuple(classes or ()), contains)
    topic, partitions = _topic(settings)
    bounds = topic_bounds(settings, topic, partitions)
    begins = _begins(settings, topic, partitions)
    shown: list[Letter] = []
    counts: Counter[tuple[str, str]] = Counter()
    for letter in _letters(settings, topic, bounds):
        if wanted.takes(letter):
            counts[letter.stage, letter.error_class] += 1
            if limit is None or len(shown) < limit:
                shown.append(letter)
    fields = [
        _fields(letter, is_settled=letter.message.offset < begins.get(letter.message.partition, 0))
        for letter in shown
    ]
    fields.sort(key=lambda row: (row["time"] or "", row["partition"], row["offset"]))
    if as_json:
        for row in fields:
            print_json(row)
        return 0
    rows = [
        [
            f"{row['partition']}@{row['offset']}",
            *(row[name] or "-" for name in ("source", "stage", "class")),
            f"{row['bytes']:,}",
            "yes" if row["sent_back"] else "-",
            row["message"],
        ]
        for row in fields
    ]
    if rows:
        print_table(["letter", "source", "stage", "class", "bytes", "sent back", "reason"], rows)
    by_kind = ", ".join(
        f"{count:,} {stage or '-'}/{kind or '-'}" for (stage, kind), count in counts.most_common()
    )
    note(
        f"{counts.total():,} dead letters on {topic}{f': {by_kind}' if by_kind else ''}; "
        f"{len(shown):,} shown."
    )
    return 0


@command("dlq redrive", example="stream-dedup dlq redrive --stage decode --yes")
def dlq_redrive_command(
    settings: Settings,
    stages: StagesOption = None,
    classes: ClassesOption = None,
    contains: ContainsOption = "",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Send at most N letters.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Send them; without it they are only counted.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Send dead letters back to `documents` in their original form, from the first that was not
    sent.

    Fix the cause first: each is judged as a new document.
    """
    wanted = Filter(tuple(stages or ()), tuple(classes or ()), contains)
    topic, partitions = _topic(settings)
    _, source_partitions = _existing(settings, settings.topic_names.documents)
    transactions = (
        TransactionalOutput(settings, redrive_group(settings.group), "redrive") if yes else None
    )
    stamp = GroupStamp(settings, redrive_group(settings.group))
    totals: Counter[str] = Counter()
    rows: list[Letter] = []
    try:
        bounds = topic_bounds(settings, topic, partitions)
        for part in range(partitions):
            room = None if limit is None else limit - totals["letters"]
            if room == 0:
                break
            run = _Redrive(settings, topic, part, bounds[part], source_partitions, wanted, room)
            rows += run.send(transactions, stamp, totals)
    finally:
        stamp.close()
        if transactions is not None:
            transactions.close()
    _print(settings, rows, totals, is_sent=yes, as_json=as_json)
    return 0


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are meant; empty means all."""

    stages: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    contains: str = ""

    def takes(self, letter: Letter) -> bool:
        """Return whether a letter is meant."""
        return (
            (not self.stages or letter.stage in self.stages)
            and (not self.classes or letter.error_class in self.classes)
            and self.contains.lower() in letter.why.lower()
        )


@dataclass(slots=True)
class _Redrive:
    """One partition of the dead letters being sent back."""

    settings: Settings
    topic: str
    partition: int
    bounds: Bounds
    source_partitions: int
    wanted: Filter
    limit: int | None

    def send(
        self, transactions: TransactionalOutput | None, stamp: GroupStamp, totals: Counter[str]
    ) -> list[Letter]:
        """Send what is meant, in transactions; return the letters that were, or would be, sent."""
        sent: list[Letter] = []
        for attempt in range(_ATTEMPTS):
            begin = _begins(self.settings, self.topic, self.partition + 1).get(self.partition, 0)
            chosen, left = self._choose(begin, Counter() if attempt else totals, len(sent))
            is_clear = True
            for first in range(0, len(chosen), _AT_ONCE):
                part = chosen[first : first + _AT_ONCE]
                after = max(begin, min(left, part[-1].message.offset + 1))
                if transactions is not None:
                    is_clear = self._write(transactions, stamp, part, after)
                    if not is_clear:
                        totals["twice"] += sum(letter.message.offset >= after for letter in part)
                        break
                sent += part
                totals["letters"] += len(part)
                totals["again"] += sum(letter.message.offset >= after for letter in part)
            if is_clear:
                return sent
        raise BrokerError(
            f"The letters of {self.topic}-{self.partition} could not be sent back: transactions "
            "end unclear. Run the same "
            "command again; it goes on where this ended."
        )

    def _choose(self, begin: int, totals: Counter[str], sent: int) -> tuple[list[Letter], int]:
        """Return the letters to send from offset `begin` on, and the offset of the first that is
        left.
        """
        chosen: list[Letter] = []
        low, end = self.bounds
        left = end
        bounds = Bounds(min(max(low, begin), end), end)
        for letter in _letters(self.settings, self.topic, {self.partition: bounds}):
            why = self._unfit(letter)
            is_full = self.limit is not None and len(chosen) + sent >= self.limit
            if why:
                totals[why] += 1
            elif is_full or not self.wanted.takes(letter):
                left = min(left, letter.message.offset)
            else:
                chosen.append(letter)
        return chosen, left

    def _unfit(self, letter: Letter) -> str:
        if letter.is_cut:
            return "cut"
        if letter.topic != self.settings.topic_names.documents or letter.partition is None:
            return "foreign"
        return "no such partition" if letter.partition >= self.source_partitions else ""

    def _write(
        self,
        transactions: TransactionalOutput,
        stamp: GroupStamp,
        part: Sequence[Letter],
        after: int,
    ) -> bool:
        result = transactions.run(
            [original(letter) for letter in part],
            [(self.topic, self.partition, after, "")],
            stamp.read_metadata(),
        )
        if result.refused:
            raise ConfigurationError(
                f"The topic {self.settings.topic_names.documents} refuses a letter of "
                f"{self.topic}-{self.partition}: "
                f"{result.why} Nothing of this step was sent. See max.message.bytes and the "
                "timestamp bounds of that topic."
            )
        return result.outcome is Outcome.COMMITTED


def original(letter: Letter) -> Output:
    """Return the record as it first came: error headers gone, renamed ones under their first name,
    its own timestamp.
    """
    foreign, ours = split_dead_letter(letter.message.headers)
    came = headers.as_they_came(foreign)
    stamp = headers.text_of(ours, headers.ERROR_TIMESTAMP)
    timestamp_ms = int(stamp) if stamp.isascii() and stamp.isdigit() else None
    message = letter.message
    return Output(
        letter.topic, letter.partition or 0, message.key, message.value, timestamp_ms, came
    )


def _letters(settings: Settings, topic: str, bounds: Mapping[int, Bounds]) -> Iterator[Letter]:
    reader = SpanReader(settings, topic, bounds)
    for messages in reader.read_messages():
        yield from map(letter_of, messages)
    for (_, part), offset in reader.open_at.items():
        note(
            f"A transaction is open on {topic}-{part} from offset {offset} on; letters behind it "
            "were not read."
        )


def _topic(settings: Settings) -> tuple[str, int]:
    topic = settings.topic_names.dead_letters
    return topic, _existing(settings, topic)[1]


def _existing(settings: Settings, topic: str) -> tuple[bytes, int]:
    found = Admin(settings).topic_ids([topic])
    if topic not in found:
        raise ConfigurationError(
            f"The topic {topic} does not exist; set STREAM_DEDUP_TOPIC_PREFIX as the roles have it."
        )
    return found[topic]


def _begins(settings: Settings, topic: str, partitions: int) -> dict[int, int]:
    """Return the offset at which a run begins, of each partition that has had one."""
    found = group_offsets(settings, redrive_group(settings.group), topic, partitions)
    return {part: offset.offset for part, offset in found.items() if offset.offset is not None}


def _fields(letter: Letter, *, is_settled: bool) -> dict[str, Any]:
    message = letter.message
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "time": None
        if message.timestamp_ms is None
        else headers.rfc3339(message.timestamp_ms) or None,
        "source": letter.source or None,
        "stage": letter.stage,
        "class": letter.error_class,
        "message": letter.why,
        "key": None if message.key is None else message.key.decode("utf-8", "replace"),
        "bytes": letter.size,
        "cut": letter.is_cut,
        "sent_back": is_settled,
    }


def _print(
    settings: Settings,
    rows: Sequence[Letter],
    totals: Counter[str],
    *,
    is_sent: bool,
    as_json: bool,
) -> None:
    names = settings.topic_names
    unfit = {name: totals[name] for name in ("cut", "foreign", "no such partition") if totals[name]}
    if as_json:
        print_json(
            {
                "letters": totals["letters"],
                "sent": is_sent,
                "may_be_sent_again": totals["again"],
                "sent_twice_at_most": totals["twice"],
                "unfit": {name.replace(" ", "_"): count for name, count in unfit.items()},
                "sources": [row.source for row in rows],
            }
        )
    else:
        counts = Counter((row.stage, row.error_class) for row in rows)
        if counts:
            print_table(
                ["stage", "class", "sent back" if is_sent else "would be sent back"],
                [
                    [stage or "-", kind or "-", f"{count:,}"]
                    for (stage, kind), count in counts.most_common()
                ],
            )
    reasons = {
        "cut": "lack a part of their record, which was cut or could not be read; send the source records anew",
        "foreign": f"did not come from {names.documents}",
        "no such partition": f"came from a partition that {names.documents} does not have",
    }
    for name, count in unfit.items():
        note(f"{count:,} stay: they {reasons[name]}.")
    if totals["again"]:
        note(
            f"{totals['again']:,} of them are behind a letter that is left: a run that takes both "
            "sends them again, and they are judged unchanged."
        )
    if totals["twice"]:
        note(f"A transaction ended unclear: at most {totals['twice']:,} were sent twice.")
    if is_sent:
        note(
            f"{totals['letters']:,} dead letters were sent back to {names.documents}; each is "
            "judged as a new document."
        )
    else:
        note(f"{totals['letters']:,} would be sent back. Nothing was written; do it with --yes.")
