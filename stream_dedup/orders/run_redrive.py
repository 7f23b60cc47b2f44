"""Send dead letters back to their source topic.

A dead letter (short: letter) that is sent back becomes a new record, in its original form, at the end
of its source partition. The same transaction commits, for the group `GROUP-redrive`, the offset of
the first letter that the options did not select. The next run starts there, so it may send later
letters again. A letter that lacks a part of its record is never sent, and does not hold the offset
back.

The steps: acquire the transactional id, which aborts the open transaction of a killed run and fences
a concurrent one; read the committed offsets; read the letters; write each transaction's records and
then its offset. If the outcome of a transaction is unknown, offsets and letters are read again.

Invariants: below the committed offset every letter was sent back or cannot be; without a selection
each letter is sent back once, also if programs are killed; nothing is sent without `--yes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stream_dedup.domain.errors import BrokerError, ConfigurationError
from stream_dedup.domain.printable import counted
from stream_dedup.domain.terminal import note
from stream_dedup.kafka import (
    Admin,
    Bounds,
    BoundsReader,
    GroupMetadataReader,
    Outcome,
    Output,
    TransactionalOutput,
    group_offsets,
    topic_bounds,
)
from stream_dedup.log import headers
from stream_dedup.log.dead_letters import Letter, letter_of, redrive_group, split_dead_letter
from stream_dedup.settings.settings import Settings

_TRANSACTION_LETTERS = 1000
_ATTEMPTS = 5
OBSTACLES = {
    "cut": "are incomplete, because their record was truncated or could not be read; produce "
    "these again",
    "foreign": "do not come from {documents}",
    "no such partition": "come from a partition that {documents} does not have",
}
"""The reasons why letters cannot be sent back, by their names in the totals."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters that the options select; an empty field selects all."""

    stages: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    contains: str = ""

    def includes(self, letter: Letter) -> bool:
        """Return whether a letter is selected."""
        return (
            (not self.stages or letter.stage in self.stages)
            and (not self.classes or letter.error_class in self.classes)
            and self.contains.lower() in letter.why.lower()
        )


def redrive(
    settings: Settings,
    selection: Selection,
    limit: int | None,
    totals: Counter[str],
    *,
    sends: bool,
) -> list[Letter]:
    """Send the selected letters, at most `limit`, and count them in `totals`; return them. Unless it
    `sends`, only return the letters that it would send.

    Raises:
        ConfigurationError: a topic does not exist, or the source topic refuses a letter.
        BrokerError: Kafka failed, or the outcome of a transaction stays unknown.
    """
    topic = settings.topic_names.dead_letters
    partitions = count_partitions(settings, topic)
    source_partitions = count_partitions(settings, settings.topic_names.documents)
    group = redrive_group(settings.group)
    transactions = TransactionalOutput(settings, group, "redrive") if sends else None
    metadata_reader = GroupMetadataReader(settings, group)
    sent: list[Letter] = []
    try:
        bounds = topic_bounds(settings, topic, partitions)
        for partition in range(partitions):
            remaining = None if limit is None else limit - totals["letters"]
            if remaining == 0:
                break
            run = PartitionRedrive(
                settings,
                topic,
                partition,
                bounds[partition],
                source_partitions,
                selection,
                remaining,
            )
            sent += run.send(transactions, metadata_reader, totals)
    finally:
        metadata_reader.close()
        if transactions is not None:
            transactions.close()
    return sent


@dataclass(slots=True)
class PartitionRedrive:
    """The redrive of one partition of the dead letters; `limit` None sends all."""

    settings: Settings
    topic: str
    partition: int
    bounds: Bounds
    source_partitions: int
    selection: Selection
    limit: int | None

    def send(
        self,
        transactions: TransactionalOutput | None,
        metadata_reader: GroupMetadataReader,
        totals: Counter[str],
    ) -> list[Letter]:
        """Send the selected letters in transactions, and count them in `totals`; return them.

        `transactions` None: send nothing, and return the letters that would be sent.

        Raises:
            BrokerError: the outcome of a transaction stays unknown.
            ConfigurationError: the source topic refuses a letter.
        """
        sent: list[Letter] = []
        for attempt in range(_ATTEMPTS):
            start = read_starts(self.settings, self.topic, self.partition + 1)[self.partition]
            selected, first_skipped = self._select(
                start, Counter() if attempt else totals, len(sent)
            )
            is_committed = True
            for first in range(0, len(selected), _TRANSACTION_LETTERS):
                letters = selected[first : first + _TRANSACTION_LETTERS]
                first_unsent = max(start, min(letters[-1].message.offset + 1, first_skipped))
                sent_again = sum(letter.message.offset >= first_unsent for letter in letters)
                if transactions is not None:
                    is_committed = self._write(transactions, metadata_reader, letters, first_unsent)
                    if not is_committed:
                        totals["twice"] += sent_again
                        break
                sent += letters
                totals["letters"] += len(letters)
                totals["again"] += sent_again
            if is_committed:
                return sent
        raise BrokerError(
            f"The dead letters of {self.topic}-{self.partition} could not be sent back: the "
            "outcome of a transaction is unknown. Run the same command again; it continues with "
            "these."
        )

    def _select(self, start: int, totals: Counter[str], sent: int) -> tuple[list[Letter], int]:
        """Return the letters to send from offset `start` on, and the offset of the first other
        letter that could be sent.
        """
        selected: list[Letter] = []
        low, end = self.bounds
        first_skipped = end
        bounds = Bounds(min(max(low, start), end), end)
        for letter in read_letters(self.settings, self.topic, {self.partition: bounds}):
            obstacle, is_selected = self._obstacle(letter), self.selection.includes(letter)
            is_full = self.limit is not None and len(selected) + sent >= self.limit
            if obstacle:
                totals[obstacle] += is_selected
            elif is_full or not is_selected:
                first_skipped = min(first_skipped, letter.message.offset)
            else:
                selected.append(letter)
        return selected, first_skipped

    def _obstacle(self, letter: Letter) -> str:
        if letter.is_cut:
            return "cut"
        if letter.topic != self.settings.topic_names.documents or letter.partition is None:
            return "foreign"
        return "no such partition" if letter.partition >= self.source_partitions else ""

    def _write(
        self,
        transactions: TransactionalOutput,
        metadata_reader: GroupMetadataReader,
        letters: Sequence[Letter],
        first_unsent: int,
    ) -> bool:
        """Send letters and commit `first_unsent`; return whether the transaction was committed."""
        result = transactions.run(
            [original(letter) for letter in letters],
            [(self.topic, self.partition, first_unsent, "")],
            metadata_reader.read_metadata(),
        )
        if result.refused:
            raise ConfigurationError(
                f"The topic {self.settings.topic_names.documents} refuses a dead letter of "
                f"{self.topic}-{self.partition}: {result.why} Nothing of this transaction was sent. "
                "See max.message.bytes and the timestamp bounds of that topic."
            )
        return result.outcome is Outcome.COMMITTED


def original(letter: Letter) -> Output:
    """Return the source record of a letter: its timestamp, and its headers under their original
    names without the error headers.
    """
    foreign, error_headers = split_dead_letter(letter.message.headers)
    timestamp = headers.text_of(error_headers, headers.ERROR_TIMESTAMP)
    return Output(
        letter.topic,
        letter.partition or 0,
        letter.message.key,
        letter.message.value,
        int(timestamp) if timestamp.isascii() and timestamp.isdigit() else None,
        headers.unescape_source_headers(foreign),
    )


def read_letters(settings: Settings, topic: str, bounds: Mapping[int, Bounds]) -> Iterator[Letter]:
    """Yield the dead letters within bounds; print a note if an open transaction hides later ones."""
    reader = BoundsReader(settings, topic, bounds)
    for messages in reader.read_messages():
        yield from map(letter_of, messages)
    for (_, partition), offset in reader.open_transactions.items():
        note(
            f"A transaction is open on {topic}-{partition} at offset {offset}; later dead letters "
            "were not read."
        )


def count_partitions(settings: Settings, topic: str) -> int:
    """Return the number of partitions of a topic.

    Raises:
        ConfigurationError: it does not exist.
    """
    topics = Admin(settings).topic_ids([topic])
    if topic not in topics:
        raise ConfigurationError(
            f"The topic {topic} does not exist; set STREAM_DEDUP_TOPIC_PREFIX to that of the roles."
        )
    return topics[topic].partitions


def read_starts(settings: Settings, topic: str, partitions: int) -> dict[int, int]:
    """Return the offset of each partition at which the next run starts."""
    offsets = group_offsets(settings, redrive_group(settings.group), topic, partitions)
    return {partition: committed.offset or 0 for partition, committed in offsets.items()}


def print_remarks(settings: Settings, totals: Counter[str], *, is_sent: bool) -> None:
    """Print how many letters were sent, and why others were not."""
    names = settings.topic_names
    for name, reason in OBSTACLES.items():
        if totals[name]:
            note(
                f"{totals[name]:,} cannot be sent back: they "
                f"{reason.format(documents=names.documents)}."
            )
    if totals["again"]:
        note(
            f"A later run may send {totals['again']:,} of them again, because it starts at an "
            "earlier dead letter that was not selected."
        )
    if totals["twice"]:
        note(
            f"The outcome of a transaction is unknown: at most {totals['twice']:,} dead letters "
            "were sent twice."
        )
    if is_sent:
        note(
            f"{totals['letters']:,} dead letters were sent back to {names.documents}; each is "
            "judged as a new document."
        )
    else:
        note(
            f"{totals['letters']:,} would be sent back. Nothing was written; add --yes to send "
            "them."
        )


def summary_of(
    topic: str,
    selected: Counter[tuple[str, str]],
    others: Counter[tuple[str, str]],
    shown: int,
) -> str:
    """Return a sentence on the selected dead letters by stage and class; if there are none, on those
    that the topic contains.
    """
    if others and not selected:
        return f"No dead letter on {topic} matches. It contains: {_by_kind(others)}."
    kinds = f": {_by_kind(selected)}" if selected else ""
    return f"{counted(selected.total(), 'dead letter')} on {topic}{kinds}; {shown:,} shown."


def _by_kind(counts: Counter[tuple[str, str]]) -> str:
    """Return the number of dead letters of each stage and class, the most frequent first."""
    return ", ".join(
        f"{count:,} {stage or '-'}/{kind or '-'}" for (stage, kind), count in counts.most_common()
    )
