"""`replay`: the log judged once more, in an index of its own on disk that is thrown away; nothing
on Kafka is changed.

With `--verify` its answers are held against what was given: the answers that `verdicts` still
holds, byte for byte, and the headers of the outputs, which `dedup.log` leads to. With `--diff` they
are held against those under another plan.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.fingerprinting import format_prints, width_of
from stream_dedup.ground.better import BETTER_LABELS
from stream_dedup.ground.document import Headers, LogPlace, Message, Reason, Unreadable, Verdict
from stream_dedup.ground.errors import BrokerError, ConfigurationError
from stream_dedup.ground.terminal import console, note, print_json, print_table, progress
from stream_dedup.index.index import LogIndex
from stream_dedup.index.verify import GivenAnswers
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.kafka import Admin, Bounds, SpanReader, topic_bounds
from stream_dedup.log import answers, headers
from stream_dedup.log.answers import LogAnswer
from stream_dedup.proof import replay
from stream_dedup.proof.content import split_verdict
from stream_dedup.proof.verdicts import differences, expected_headers
from stream_dedup.settings.settings import Settings

_GROUP_RECORDS = 64
Advance = Callable[[int, int], None]
Group = list[tuple[int, int, bytes | None]]


@command("replay", example="stream-dedup replay --diff plan=classic")
def replay_command(
    settings: Settings,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare with the headers of the outputs, and with answers still on `verdicts`.",
        ),
    ] = False,
    diff: Annotated[
        list[str] | None,
        typer.Option(
            "--diff",
            metavar="NAME=VALUE",
            help="What another plan would change: plan=classic; several together. Or another rule: "
            "better=newest.",
        ),
    ] = None,
    most: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, help="Differences, or samples of each change, to tell."
        ),
    ] = 10,
    work: Annotated[
        Path | None,
        typer.Option(
            "--work",
            metavar="FOLDER",
            help="Where the index that judges is built, and removed again.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Judge the whole log once more: against what was given (--verify), or under another plan
    (--diff). Changes nothing.

    `--verify` ends with 1 if a verdict is not what the log gives; `--diff threshold=18` shows which
    would be another.
    """
    if verify == bool(diff):
        raise typer.BadParameter(
            "name one of --verify and --diff NAME=VALUE", param_hint="--verify"
        )

    if diff:
        return show_diff(settings, diff, work, most, as_json=as_json)
    return run_verify(settings, work, most, as_json=as_json)


@dataclass(slots=True)
class Verified:
    """What `--verify` found."""

    answers_compared: int = 0
    headers_compared: int = 0
    fail_open: int = 0
    differences: int = 0
    lines: list[str] = field(default_factory=list)
    log_end: int = 0
    chain: str = ""

    def tell(self, lines: Iterable[str], most: int) -> None:
        """Take in differences, of which `most` are told."""
        for line in lines:
            self.differences += 1
            if len(self.lines) < most:
                self.lines.append(line)


class _Given:
    """The verdicts on the outputs, by the place in the log that decided: a digest of our headers,
    and where they are.
    """

    def __init__(self) -> None:
        self._by_log: dict[int, list[tuple[int, bytes, str, bool]]] = defaultdict(list)

    def add(self, message: Message) -> None:
        """Take in a record of `unique` or `duplicates`; one that names no place in the log says
        nothing here.
        """
        _, own = split_verdict(message.headers)
        place = headers.place_of(headers.text_of(own, headers.LOG))
        if place is not None:
            is_open = headers.text_of(own, headers.REASON) == Reason.FAIL_OPEN.label
            where = message.at
            self._by_log[place.offset].append((place.place, _digest(own), where, is_open))

    def take(self, log_offset: int) -> list[tuple[int, bytes, str, bool]]:
        """Return, and forget, what names a record of the log: (place, digest, where, whether it was
        passed on unjudged).
        """
        return self._by_log.pop(log_offset, [])

    def left(self) -> Iterator[tuple[int, str]]:
        """Yield (log offset, where) of those that were not taken."""
        for log_offset, found in self._by_log.items():
            for _, _, where, _ in found:
                yield log_offset, where


def run_verify(settings: Settings, work: Path | None, most: int, *, as_json: bool) -> int:
    """Judge the log again and compare; print what differs; return 0 if nothing does, else 1.

    Raises:
        ConfigurationError: a topic is missing, or the log is not whole.
        BrokerError: Kafka failed.
    """
    started = time.monotonic()
    with progress("judging the log again", None) as advance:
        result = _verify(settings, work, most, advance)
    if as_json:
        fields: dict[str, Any] = {name: getattr(result, name) for name in Verified.__slots__}
        print_json(fields | {"seconds": round(time.monotonic() - started, 3)})
    else:
        for line in result.lines:
            console().print(line, soft_wrap=True)
        if result.differences > len(result.lines):
            note(f"... and {result.differences - len(result.lines):,} more.")
        compared = (
            f"{result.headers_compared:,} verdicts on the outputs and {result.answers_compared:,} "
            "answers compared"
        )
        passed = f", {result.fail_open:,} passed on unjudged" if result.fail_open else ""
        if result.differences:
            note(f"{result.differences:,} differences; {compared}{passed}.")
        else:
            console().print(
                f"The log up to offset {result.log_end:,} gives what was given: {compared}{passed}."
            )
    return 1 if result.differences else 0


def _verify(settings: Settings, work: Path | None, most: int, advance: Advance) -> Verified:
    names = settings.topic_names
    outputs = [names.unique, names.duplicates] if settings.judging_mode.delivers else []
    bounds = _bounds(settings, [*outputs, names.verdicts, names.fingerprints])
    given, known = _Given(), GivenAnswers()
    for topic in outputs:
        for messages in SpanReader(settings, topic, bounds[topic]).read_messages():
            for one in messages:
                given.add(one)
            advance(len(messages), 0)
    result = Verified(log_end=bounds[names.fingerprints][0].end)
    read_answers(settings, bounds[names.verdicts], known, 0, result.log_end)
    wrong: list[tuple[str, Headers]] = []
    with (
        tempfile.TemporaryDirectory(prefix="stream-dedup-replay-", dir=work) as folder,
        closing(LogIndex(RocksStore(Path(folder) / "index"))) as index,
    ):
        for group in read_log(settings, bounds[names.fingerprints][0], advance):
            _compare_group(index, group, given, known, result, wrong, most)
        result.chain = index.chain.hex()
    result.answers_compared = known.compared
    result.tell(
        (
            f"{where} names log record {log_offset}, which gives no verdicts."
            for log_offset, where in given.left()
        ),
        most,
    )
    result.lines += [_difference(settings, *one) for one in wrong]
    return result


def _compare_group(
    index: LogIndex,
    group: Group,
    given: _Given,
    known: GivenAnswers,
    result: Verified,
    wrong: list[tuple[str, Headers]],
    most: int,
) -> None:
    batches = dict(replay.batches_of(group))
    found = dict(index.apply(group))
    index.answered(index.applied)
    for log_offset, raw in found.items():
        result.tell((f"The {line}." for line, _ in known.differences(log_offset, raw)), most)
        answer = answers.decode(raw, f"The answer to log record {log_offset}")
        batch = batches.get(log_offset)
        if not isinstance(answer, LogAnswer) or batch is None:
            continue
        prints = format_prints(batch.prints, width_of(batch.recipe, batch.prints.shape[1]))
        for place, digest, where, is_open in given.take(log_offset):
            if is_open:
                result.fail_open += 1
                continue
            result.headers_compared += 1
            judgement = answer.judgements[place] if place < len(answer.judgements) else None
            expected: Headers = []
            if judgement is not None and judgement.reason.verdict is not None:
                expected = expected_headers(
                    batch.position(place), judgement, batch.recipe, prints[place]
                )
            _compare(where, digest, [expected], result, wrong, most)
    for log_offset, released in replay.releases_of(group):
        (print_hex,) = format_prints(
            released.prints, width_of(released.recipe, released.prints.shape[1])
        )
        here = LogPlace(log_offset, 0)
        # As it left; or, read again, as a redelivered document that represents itself.
        may_be = [
            headers.of_verdict(released.position(0), reason, released.recipe, print_hex, here)
            for reason in (Reason.RELEASED, Reason.NEW, Reason.TOO_SHORT)
        ]
        for _, digest, where, _ in given.take(log_offset):
            result.headers_compared += 1
            _compare(where, digest, may_be, result, wrong, most)


def _compare(
    where: str,
    digest: bytes,
    may_be: Sequence[Headers],
    result: Verified,
    wrong: list[tuple[str, Headers]],
    most: int,
) -> None:
    if digest not in map(_digest, may_be):
        result.differences += 1
        if len(wrong) < most:
            wrong.append((where, may_be[0]))


def _difference(settings: Settings, where: str, expected: Headers) -> str:
    """Read one record once more, to say what it has; only digests of all were kept."""
    name, _, offset = where.rpartition("@")
    topic, _, part = name.rpartition("-")
    for messages in SpanReader(
        settings, topic, {int(part): Bounds(int(offset), int(offset) + 1)}
    ).read_messages():
        for one in messages:
            return f"{where} is not what the log gives: {differences(split_verdict(one.headers)[1], expected)}."
    return f"{where} was not what the log gives, and is not there any more."


def show_diff(
    settings: Settings, texts: Sequence[str], work: Path | None, most: int, *, as_json: bool
) -> int:
    """Judge the log under another plan, beside its own, and print which verdicts would change;
    return 0.

    Raises:
        InputError: a text names no setting of a plan.
        ConfigurationError: there is no such plan, or it cannot judge this log's prints.
        BrokerError: Kafka failed.
    """
    alternative = replay.Alternative.parse(texts)
    names = settings.topic_names
    bounds = _bounds(settings, [names.fingerprints])[names.fingerprints][0]
    difference = replay.Difference(most)
    with (
        tempfile.TemporaryDirectory(prefix="stream-dedup-replay-", dir=work) as folder,
        closing(LogIndex(RocksStore(Path(folder) / "log"))) as recorded,
        closing(LogIndex(RocksStore(Path(folder) / "changed"))) as changed,
        progress("judging the log twice", None) as advance,
    ):
        replay.compare(
            read_log(settings, bounds, advance), recorded, changed, alternative, difference
        )
        plan = None if changed.plan is None else changed.plan.id
    if as_json:
        print_json(
            {
                "plan": plan,
                "documents": difference.documents,
                "changed": difference.kinds.total(),
                "changes": dict(difference.kinds),
                "reasons": {"was": dict(difference.was), "would_be": dict(difference.would_be)},
                "samples": [one.to_fields() for one in difference.samples],
            }
        )
    else:
        _print_difference(difference, plan)
    return 0


def _print_difference(difference: replay.Difference, plan: str | None) -> None:
    for one in difference.samples:
        console().print(
            f"{one.kind}: {one.position} {one.id!r}: {_judgement(one.was)}; would be "
            f"{_judgement(one.would_be)}",
            soft_wrap=True,
        )
    reasons = [
        reason
        for reason in Reason
        if reason.label in difference.was.keys() | difference.would_be.keys()
    ]
    rows = [
        [
            reason.label,
            f"{difference.was[reason.label]:,}",
            f"{difference.would_be[reason.label]:,}",
        ]
        for reason in reasons
    ]
    unique = [reason.label for reason in reasons if reason.verdict is Verdict.UNIQUE]
    rows.append(
        [
            "kept in all",
            *(
                f"{sum(one[label] for label in unique):,}"
                for one in (difference.was, difference.would_be)
            ),
        ]
    )
    print_table(["reason", "as judged", f"under {plan}"], rows)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in difference.kinds.items()) or "none"
    note(
        f"Of {difference.documents:,} documents {difference.kinds.total():,} would be judged "
        f"otherwise: {kinds}."
    )


def _judgement(judgement: answers.Judgement) -> str:
    if judgement.of is None:
        return judgement.reason.label
    if judgement.sibling is not None:
        position = judgement.sibling.position
        return f"{judgement.reason.label} beside {position}, {judgement.alike or 0:.2f} alike"
    better = (
        f", better than all before by the rule {BETTER_LABELS[judgement.better]}"
        if judgement.better
        else ""
    )
    alike = "" if judgement.alike is None else f", {judgement.alike:.2f} alike"
    return f"{judgement.reason.label} of {judgement.of.position} at {judgement.distance} bits{alike}{better}"


def _bounds(settings: Settings, topics: Sequence[str]) -> dict[str, dict[int, Bounds]]:
    """Return the bounds of topics, asked in their order; the log's must be whole."""
    known = Admin(settings).topic_ids(topics)
    missing = [topic for topic in topics if topic not in known]
    if missing:
        raise ConfigurationError(
            f"There is nothing to replay: {', '.join(missing)} cannot be found. Set "
            "STREAM_DEDUP_TOPIC_PREFIX as the roles "
            "have it."
        )
    found = {topic: topic_bounds(settings, topic, known[topic][1]) for topic in topics}
    log = settings.topic_names.fingerprints
    if found[log][0].low > 0:
        raise ConfigurationError(
            f"The log {log} begins at offset {found[log][0].low}: records of it were removed, so "
            "it cannot be judged again. "
            "Restore it from a backup."
        )
    return found


def read_answers(
    settings: Settings, bounds: Mapping[int, Bounds], given: GivenAnswers, first: int, end: int
) -> None:
    """Take in the answers to the log records from `first` to before `end` that are still on
    `verdicts`, of any replica.
    """
    for messages in SpanReader(settings, settings.topic_names.verdicts, bounds).read_messages():
        for one in messages:
            answer = answers.decode(one.value, f"The record {one.at}")
            if not isinstance(answer, answers.Announce) and first <= answer.log_offset < end:
                given.add(answer.log_offset, one.value or b"", f"at {one.at}", of_volume=False)


def read_log(settings: Settings, bounds: Bounds, advance: Advance) -> Iterator[Group]:
    """Yield the log records within the bounds, as (log offset, LogAppendTime, bytes), in groups
    that are judged at once.

    Raises:
        BrokerError: one cannot be read, or they do not come.
    """
    for messages in SpanReader(
        settings, settings.topic_names.fingerprints, {0: bounds}
    ).read_messages():
        for one in messages:
            if isinstance(one, Unreadable):
                raise BrokerError(
                    f"The record {one.at} of the log cannot be read: {one.why}. Restore the topic "
                    "from a backup."
                )
        for first in range(0, len(messages), _GROUP_RECORDS):
            part = messages[first : first + _GROUP_RECORDS]
            yield [(one.offset, one.timestamp_ms or 0, one.value) for one in part]
            advance(0, sum(len(one.value or b"") for one in part))


def _digest(own: Headers) -> bytes:
    return hashlib.blake2b(repr(own).encode(), digest_size=16).digest()
