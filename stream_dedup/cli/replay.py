"""`replay`: the log judged once more, under its own plan and under another one, in indexes on disk
that are thrown away; nothing on Kafka is changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.audit import replay
from stream_dedup.cli.options import JsonOption, command
from stream_dedup.domain.better import BETTER_LABELS
from stream_dedup.domain.document import Reason, Verdict
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.terminal import console, note, print_json, print_table, progress
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.kafka import Admin, Bounds, read_log, topic_bounds
from stream_dedup.log.schema import Judgement
from stream_dedup.settings.settings import Settings


@command("replay", example="stream-dedup replay --diff plan=classic")
def replay_command(
    settings: Settings,
    diff: Annotated[
        list[str],
        typer.Option(
            "--diff",
            metavar="NAME=VALUE",
            help="A change of the plan (plan=classic) or a rule (better=newest). Repeatable.",
        ),
    ],
    most: Annotated[
        int,
        typer.Option("--limit", "-n", min=1, help="Number of samples of each change."),
    ] = 10,
    work: Annotated[
        Path | None,
        typer.Option(
            "--work",
            metavar="FOLDER",
            help="Temporary folder of the index.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Judge the log again under another plan or rule, and print the verdicts that differ.
    Changes nothing.
    """
    return show_diff(settings, diff, work, most, as_json=as_json)


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
                "samples": [sample.to_fields() for sample in difference.samples],
            }
        )
    else:
        _print_difference(difference, plan)
    return 0


def _print_difference(difference: replay.Difference, plan: str | None) -> None:
    for sample in difference.samples:
        console().print(
            f"{sample.kind}: {sample.position} {sample.id!r}: {_judgement(sample.was)}; would be "
            f"{_judgement(sample.would_be)}",
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
                f"{sum(counts[label] for label in unique):,}"
                for counts in (difference.was, difference.would_be)
            ),
        ]
    )
    print_table(["reason", "as judged", f"under {plan}"], rows)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in difference.kinds.items()) or "none"
    note(
        f"Of {difference.documents:,} documents {difference.kinds.total():,} would be judged "
        f"otherwise: {kinds}."
    )


def _judgement(judgement: Judgement) -> str:
    if judgement.of is None:
        return judgement.reason.label
    if judgement.sibling is not None:
        position = judgement.sibling.position
        return f"{judgement.reason.label} beside {position}, similarity {judgement.alike or 0:.2f}"
    better = (
        f", better than all before by the rule {BETTER_LABELS[judgement.better]}"
        if judgement.better
        else ""
    )
    alike = "" if judgement.alike is None else f", similarity {judgement.alike:.2f}"
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
