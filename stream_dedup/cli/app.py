"""All commands with their options and help, and the one place where errors become sentences and exit codes.

Nothing heavy is imported before a command runs, so that `--help` and completion answer at once.
"""
# ruff: noqa: PLC0415 - see above: every import within a function is there for that reason

from __future__ import annotations

import enum
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_dedup.cli.examples import EXAMPLES
from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.ground.printable import printable

if TYPE_CHECKING:
    from stream_dedup.settings.settings import Settings

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
_SENTENCE_CHARACTERS_MAX = 4000


class DocumentFormat(enum.StrEnum):
    """How a file holds documents."""

    AUTO = "auto"
    JSONL = "jsonl"
    TEXT = "text"
    LINES = "lines"
    WARC = "warc"


class Outlet(enum.StrEnum):
    """Where documents end, as `tap --only` names it."""

    UNIQUE = "unique"
    DUPLICATES = "duplicates"
    DEAD_LETTERS = "dead-letters"


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file (TOML or YAML); else STREAM_DEDUP_CONFIG."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting, above environment and file: --set group=crawl; can be given several times.",
    ),
]
BrokersOption = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", "-b", metavar="HOST:PORT", help="First brokers to ask."),
]
OwnBrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker", envvar="BROKER", metavar="HOST:PORT", help="Use this Kafka.  [default: a local one, set up for you]"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
FiguresOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write all figures there as JSON; - is standard output.")
]
FitOption = Annotated[
    bool,
    typer.Option(
        "--fit-brokers",
        help="Lower replicas and min.insync.replicas to the brokers there are. For a broker to play with.",
    ),
]
PartitionsOption = Annotated[
    int | None,
    typer.Option("--partitions", min=1, max=10_000, help="Partitions of documents and the outputs where they are created."),
]
TopicFilesOption = Annotated[
    Path | None,
    typer.Option("--from", metavar="FOLDER", help="Your own copy of the topic files instead of the packaged one."),
]
StopWithParentOption = Annotated[bool, typer.Option("--stop-with-parent", hidden=True)]
FirstStartOption = Annotated[
    bool | None,
    typer.Option(
        "--first-start",
        help="Confirm that a group without committed offsets may begin at the beginning.",
        show_default=False,
    ),
]
StagesOption = Annotated[
    list[str] | None, typer.Option("--stage", help="Only letters of this stage: decode, field, size, fingerprint.")
]
ClassesOption = Annotated[list[str] | None, typer.Option("--class", help="Only letters of this class of error.")]
ContainsOption = Annotated[str, typer.Option("--contains", metavar="TEXT", help="Only letters whose reason has this text.")]

app = typer.Typer(
    name="stream-dedup",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Near-duplicate filter for crawled documents on Apache Kafka: exactly once, over all partitions, with the "
    "reason on every record.",
    epilog="Try it without any set-up: stream-dedup demo. Your own documents without Kafka: stream-dedup check pages.jsonl. "
    "Is all well here: stream-dedup doctor. Each command's own --help ends with an example.",
)
run_app = typer.Typer(no_args_is_help=True, help="Run a role of the filter until SIGTERM or Ctrl-C.")
topics_app = typer.Typer(
    no_args_is_help=True, help="Compare the cluster's topics with the declared ones, and create or correct them."
)
config_app = typer.Typer(no_args_is_help=True, help="Check and show the settings, and print their reference.")
app.add_typer(run_app, name="run")
app.add_typer(topics_app, name="topics")
app.add_typer(config_app, name="config")
bench_app = typer.Typer(no_args_is_help=True, help="Measure the filter beside a yardstick, in one run on one machine.")
app.add_typer(bench_app, name="bench")
index_app = typer.Typer(no_args_is_help=True, help="Look after an index's volume: figures, snapshots, proof by the log.")
app.add_typer(index_app, name="index")
dlq_app = typer.Typer(no_args_is_help=True, help="Look at the dead letters, and send them back to where they came from.")
app.add_typer(dlq_app, name="dlq")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error of ours is its sentence on standard error, never a traceback.

    With the log level `debug` the traceback follows. An error that is not ours is a fault of the program: its
    traceback is always shown, because nothing else tells what happened.
    """
    try:
        _commands()(args=None if arguments is None else list(arguments), prog_name="stream-dedup")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILURE if end.code else 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except StreamDedupError as error:
        if _is_debug():
            traceback.print_exc()
        print_sentence(str(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last resort of a program
        traceback.print_exc()
        print_sentence(f"This is a fault of stream-dedup: {type(error).__name__}: {error}. Please report the lines above.")
        return EXIT_FAILURE
    return 0


@cache  # a tenth of a second
def _commands() -> Callable[..., object]:
    """Return the program with all its commands; `app` called directly would make it at each call."""
    return typer.main.get_command(app)


def print_sentence(text: str) -> None:
    """Print a sentence for people on standard error, line by line, each safe to show."""
    for line in text.splitlines():
        sys.stderr.write(printable(line, _SENTENCE_CHARACTERS_MAX) + "\n")
    sys.stderr.flush()


def _is_debug() -> bool:
    asked = os.environ.get("STREAM_DEDUP_LOG_LEVEL", "").lower() == "debug"
    return asked or logging.getLogger("stream_dedup").level == logging.DEBUG


def _settings(config: Path | None, assignments: list[str] | None, brokers: str | None = None, **flags: object) -> Settings:
    from stream_dedup.settings.settings import load_settings

    return load_settings({**_assigned(assignments), "kafka_bootstrap_servers": brokers, **flags}, config)


def _assigned(assignments: list[str] | None) -> dict[str, object]:
    """Return what `--set NAME=VALUE` options say; names may be written as in the environment or with hyphens."""
    found: dict[str, object] = {}
    for text in assignments or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"write NAME=VALUE, not {printable(text)!r}", param_hint="--set")
        name = name.strip()
        if not name.startswith("kafka."):
            name = name.removeprefix("STREAM_DEDUP_").lower().replace("-", "_")
        found[name] = value
    return found


def _plain_logs(settings: Settings) -> None:
    """Set up logs for a command that is not a role: warnings and errors only, for whoever typed it."""
    from stream_dedup.service import logs

    is_debug = settings.log_level == "debug"
    logs.configure("debug" if is_debug else "warning", settings.log_format)
    # librdkafka warns of whatever it will try again; a command says at its end whether it worked.
    logs.kafka_logger().setLevel(logging.DEBUG if is_debug else logging.ERROR)


@run_app.command("worker")
def run_worker(
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    first_start: FirstStartOption = None,
    stop_with_parent: StopWithParentOption = False,
) -> None:
    """Fingerprint documents, ask the index, and write each to `unique` or `duplicates` in a transaction."""
    from stream_dedup.cli.run import run_role

    settings = _settings(config, assignments, brokers, first_start=first_start)
    raise typer.Exit(run_role("worker", settings, stop_with_parent=stop_with_parent))


@run_app.command("index")
def run_index(
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    stop_with_parent: StopWithParentOption = False,
) -> None:
    """Apply the log of fingerprints to an index on disk, and answer each record with its verdicts."""
    from stream_dedup.cli.run import run_role

    settings = _settings(config, assignments, brokers)
    raise typer.Exit(run_role("index", settings, stop_with_parent=stop_with_parent))


@run_app.command("insights")
def run_insights(
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    stop_with_parent: StopWithParentOption = False,
) -> None:
    """Add up the workers' counts per host, write `host-signals` for the crawler's frontier, and show a page of the hosts."""
    from stream_dedup.cli.run import run_role

    settings = _settings(config, assignments, brokers)
    raise typer.Exit(run_role("insights", settings, stop_with_parent=stop_with_parent))


@run_app.command("all")
def run_all(
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    first_start: FirstStartOption = None,
    insights: Annotated[bool, typer.Option("--insights", help="Run insights too, on the second port after HTTP_PORT.")] = False,
) -> None:
    """Run an index and a worker together, as two processes, for a laptop. The index takes the port after HTTP_PORT."""
    from stream_dedup.cli.supervise import supervise

    settings = _settings(config, assignments, brokers, first_start=first_start)
    common: list[str] = []
    if config is not None:
        common += ["--config", str(config)]
    for text in assignments or []:
        common += ["--set", text]
    if brokers is not None:
        common += ["--bootstrap-servers", brokers]
    raise typer.Exit(supervise(settings, common, ["--first-start"] if first_start else [], with_insights=insights))


@topics_app.command("plan")
def topics_plan(
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    fit_brokers: FitOption = False,
    partitions: PartitionsOption = None,
    folder: TopicFilesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the cluster's topics lack, and change nothing. Ends with 78 if something cannot be corrected."""
    from stream_dedup.cli.topics import show_plan

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    raise typer.Exit(show_plan(settings, folder, partitions, fit_brokers=fit_brokers, as_json=as_json))


@topics_app.command("apply")
def topics_apply(
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    fit_brokers: FitOption = False,
    partitions: PartitionsOption = None,
    folder: TopicFilesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create missing topics, add partitions, correct settings. Nothing is ever deleted or shrunk."""
    from stream_dedup.cli.topics import apply_plan

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    raise typer.Exit(apply_plan(settings, folder, partitions, fit_brokers=fit_brokers, as_json=as_json))


@config_app.command("check")
def config_check(
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check all settings, the key and the Kafka properties, without connecting. All problems at once; 78 if any."""
    from stream_dedup.cli.config import check

    overrides = {**_assigned(assignments), "kafka_bootstrap_servers": brokers}
    raise typer.Exit(check(overrides, config, as_json=as_json))


@config_app.command("show")
def config_show(
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Also say where each value came from.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every setting in force, secrets masked."""
    from stream_dedup.cli.config import show

    show(_settings(config, assignments, brokers), origin=origin, as_json=as_json)


@config_app.command("reference")
def config_reference() -> None:
    """Print the reference page of all settings, as Markdown."""
    from stream_dedup.settings.page import reference_page

    sys.stdout.write(reference_page())


@app.command("doctor")
def doctor(
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at everything that must hold: settings, clients, this machine, topics, offsets, recipe, volume. Changes nothing.

    The roles hold the same checks at their start. Ends with 78 if anything is refused.
    """
    from stream_dedup.cli.doctor import show_doctor

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    raise typer.Exit(show_doctor(settings, as_json=as_json))


@app.command("load")
def load(
    target: Annotated[str, typer.Argument(metavar="FILE|DIR|-", help="JSONL, WARC, text or pages; - is standard input.")],
    topic: Annotated[str | None, typer.Option("--topic", help="Topic to write to.  [default: documents]")] = None,
    document_format: Annotated[
        DocumentFormat,
        typer.Option(
            "--format",
            help="auto: by the name (.jsonl, .ndjson, .txt, .html, .warc, .wet; + .gz, .zst); standard input is jsonl.",
        ),
    ] = DocumentFormat.AUTO,
    key_field: Annotated[
        str | None,
        typer.Option("--key-field", metavar="PATH", help="Field that becomes the record's key.  [default: id, else url]"),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Begin anew where an earlier run was stopped, instead of going on.")
    ] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write documents from files into `documents`, for a first try or a backfill. Stopped, it goes on when it is run again.

    A line of JSONL becomes a record's value as it is. A text file becomes one record, whose key is its path, a page of a WARC
    file one whose key is its URL.
    """
    from stream_dedup.cli.load import load_documents

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    code = load_documents(settings, target, topic, document_format.value, key_field, again=again, as_json=as_json)
    raise typer.Exit(code)


@app.command("tap")
def tap(
    only: Annotated[list[Outlet] | None, typer.Option("--only", help="Show these only; can be given several times.")] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Begin with the oldest verdicts instead of the next one.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after so many.")] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch verdicts as they are given: time, verdict, reason, distance, id, and the kept document's id and position."""
    from stream_dedup.cli.tap import watch

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    outlets = [one.value for one in only or []]
    raise typer.Exit(watch(settings, outlets, limit, from_beginning=from_beginning, as_json=as_json))


@app.command("top")
def top(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL...", help="Roles to watch, http://HOST:PORT.  [default: this machine's HTTP_PORT and the next]"
        ),
    ] = None,
    interval: Annotated[float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between two readings.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table, of one interval, and end.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch the roles at work: documents a second, share of duplicates, lag, latency, aborts, the index. From their /metrics.

    With --json a line per interval. With --once it ends with 1 if no role answers.
    """
    from stream_dedup.cli.top import show_top

    settings = _settings(config, assignments)
    raise typer.Exit(show_top(settings, urls or [], interval, once=once, as_json=as_json))


@app.command("stats")
def stats(
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="How far back: 12h, 7d, 4w.")] = "7d",
    exact: Annotated[
        bool, typer.Option("--exact", help="Read every record of the period instead of a few thousand: whole documents.")
    ] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what was saved: documents, duplicates by reason and bytes, by day. Cheap: it reads a sample, and says how much.

    Days are those of the records' timestamps, as far back as the outputs still hold them.
    """
    from stream_dedup.cli.stats import show_stats
    from stream_dedup.settings.settings import parse_duration

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    try:
        seconds = parse_duration(since).total_seconds()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from error
    if not 0 < seconds <= 366 * 86_400:
        raise typer.BadParameter("must be more than nothing and at most 366d", param_hint="--since")
    raise typer.Exit(show_stats(settings, seconds, exact=exact, as_json=as_json))


@app.command("rewind")
def rewind(
    positions: Annotated[
        list[str],
        typer.Argument(metavar="PARTITION@OFFSET", help="Where to read on: 3@8812 or documents-3@8812; several at once."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and change nothing.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have partitions of `documents` read again from an offset on, while no worker runs. What left already leaves again.

    Other tools must not set the group's offsets: only this raises the epoch that tells the index of it.
    """
    from stream_dedup.cli.rewind import rewind_group

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    raise typer.Exit(rewind_group(settings, positions, dry_run=dry_run, as_json=as_json))


@app.command("audit")
def audit(
    finished: Annotated[
        bool, typer.Option("--finished", help="No documents should wait: one that does is a violation. For a filter at rest.")
    ] = False,
    most: Annotated[int, typer.Option("--limit", "-n", min=1, help="Violations of each kind to tell; all are counted.")] = 20,
    scan_max: Annotated[
        int,
        typer.Option(
            "--scan-max", min=0, metavar="DOCUMENTS", help="Do not judge a log of more documents anew: that is quadratic."
        ),
    ] = 1_000_000,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold all promises against what Kafka holds, also while the filter runs: each record once, in order, as it was.

    Every verdict is judged anew by a plain scan of the log that shares nothing with the index; every kept document that a
    duplicate names must be in `unique`. Ends with 1 and a sentence for each violation. It reads all topics whole.
    """
    from stream_dedup.cli.audit import audit as run_audit

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    raise typer.Exit(run_audit(settings, finished=finished, most=most, scan_max=scan_max, as_json=as_json))


@app.command("replay")
def replay(
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with the headers of the outputs, and with answers still on `verdicts`.")
    ] = False,
    diff: Annotated[
        list[str] | None,
        typer.Option("--diff", metavar="NAME=VALUE", help="What another plan would change: plan=classic; several together."),
    ] = None,
    most: Annotated[int, typer.Option("--limit", "-n", min=1, help="Differences, or samples of each change, to tell.")] = 10,
    work: Annotated[
        Path | None, typer.Option("--work", metavar="FOLDER", help="Where the index that judges is built, and removed again.")
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge the whole log once more: against what was given (--verify), or under another plan (--diff). Changes nothing.

    `--verify` ends with 1 if a verdict is not what the log gives; `--diff threshold=18` shows which would be another.
    """
    if verify == bool(diff):
        raise typer.BadParameter("name one of --verify and --diff NAME=VALUE", param_hint="--verify")
    from stream_dedup.cli.replay import diff as show_diff
    from stream_dedup.cli.replay import verify as run_verify

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    if diff:
        raise typer.Exit(show_diff(settings, diff, work, most, as_json=as_json))
    raise typer.Exit(run_verify(settings, work, most, as_json=as_json))


@dlq_app.command("show")
def dlq_show(
    stages: StagesOption = None,
    classes: ClassesOption = None,
    contains: ContainsOption = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Show so many.")] = 50,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters: where each came from, why it could not go on, its size, and whether it was sent back."""
    from stream_dedup.cli.dlq import Filter, show

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    wanted = Filter(tuple(stages or ()), tuple(classes or ()), contains)
    raise typer.Exit(show(settings, wanted, limit, as_json=as_json))


@dlq_app.command("redrive")
def dlq_redrive(
    stages: StagesOption = None,
    classes: ClassesOption = None,
    contains: ContainsOption = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Send so many.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Send them; without it only the figures are shown.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters back to `documents` as they first came, each at most once, whatever is killed meanwhile.

    Correct first what made them dead letters: each is judged as a new document, and may become a dead letter again.
    """
    from stream_dedup.cli.dlq import Filter, redrive

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    wanted = Filter(tuple(stages or ()), tuple(classes or ()), contains)
    raise typer.Exit(redrive(settings, wanted, limit, yes=yes, as_json=as_json))


@app.command("compile")
def compile_command(
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="A cache folder for STREAM_DEDUP_CACHE_DIR instead of the program's own."),
    ] = None,
    native: Annotated[bool, typer.Option("--native", help="For this very processor, not for its whole family.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the machine code ahead, when an image or a package is made: a role then starts in a second or two.

    Without it each machine compiles once, for some ten seconds, and each start does where nothing can be written. The
    code is for every x86-64 processor with AVX2, or every 64-bit ARM; any other compiles at start as before.
    """
    from stream_dedup.cli.compile import compile_kernels

    compile_kernels(to, native=native, as_json=as_json)


DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and change nothing.")]


@app.command("declare")
def declare(
    plan: Annotated[str | None, typer.Option("--plan", help="Plan from now on: wide, classic, or in numbers.")] = None,
    window: Annotated[
        str | None, typer.Option("--window", metavar="TIME|none", help="Window from now on, such as 30d.")
    ] = None,
    refresh: Annotated[
        bool | None,
        typer.Option("--refresh/--no-refresh", help="Whether a duplicate refreshes what it names.", show_default=False),
    ] = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which plan and window are in force in the log, or change them for all that follows. Nothing has to stop for it."""
    from stream_dedup.cli.declare import declare as declare_in_log

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    try:
        code = declare_in_log(settings, plan, window, refresh, dry_run=dry_run, as_json=as_json)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--window") from error
    raise typer.Exit(code)


@app.command("forget")
def forget(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The document's id: the record's key, or its id field.")],
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take down what is kept of an id: its representatives and the id leave every index. What left already is not recalled."""
    from stream_dedup.cli.forget import forget as forget_id

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    raise typer.Exit(forget_id(settings, identifier, dry_run=dry_run, as_json=as_json))


@app.command("seed")
def seed(
    target: Annotated[str, typer.Argument(metavar="FILE|DIR|-|TOPIC", help="Documents as `load` takes them, or a topic.")],
    document_format: Annotated[
        DocumentFormat,
        typer.Option("--format", help="auto: by the name (.jsonl, .ndjson, .txt; + .gz), standard input is jsonl."),
    ] = DocumentFormat.AUTO,
    key_field: Annotated[
        str | None,
        typer.Option(
            "--key-field", metavar="PATH", help="Field of a file's documents that is their key.  [default: id, else url]"
        ),
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make documents that were delivered elsewhere count as kept: copies of them are duplicates. Run again, it goes on."""
    from stream_dedup.cli.seed import seed as seed_documents

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    raise typer.Exit(seed_documents(settings, target, document_format.value, key_field, as_json=as_json))


@app.command("release")
def release(
    position: Annotated[
        str, typer.Argument(metavar="POSITION", help="Where it lies in documents: documents-3@8812 or 3@8812.")
    ],
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a document that was wrongly dropped to `unique` after all, once, however often this is run."""
    from stream_dedup.cli.release import release as release_document

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    raise typer.Exit(release_document(settings, position, dry_run=dry_run, as_json=as_json))


@app.command("check")
def check(
    target: Annotated[str, typer.Argument(metavar="FILE|DIR|-", help="JSONL, WARC, text or pages; - is standard input.")],
    document_format: Annotated[
        DocumentFormat,
        typer.Option(
            "--format",
            help="auto: by the name (.jsonl, .ndjson, .txt, .html, .warc, .wet; + .gz, .zst); standard input is jsonl.",
        ),
    ] = DocumentFormat.AUTO,
    lines: Annotated[bool, typer.Option("--lines", help="Plain text, one document a line (= --format lines).")] = False,
    text_field: Annotated[str | None, typer.Option("--text-field", metavar="PATH", help="Field that holds the text.")] = None,
    id_field: Annotated[
        str | None, typer.Option("--id-field", metavar="PATH", help="Field that holds the id.  [default: id, else url]")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="Recipe of the prints: words, chars, chars:64, keywords, ... or its stages.")
    ] = None,
    plan: Annotated[str | None, typer.Option("--plan", help="Plan to judge with: wide, classic, or in numbers.")] = None,
    rows: Annotated[int, typer.Option("--rows", min=0, help="Most duplicates to list in the table; 0 lists all.")] = 50,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the duplicates in a file with the same core, without Kafka. With --json one object per document."""
    from stream_dedup.cli.check import check_documents

    chosen = DocumentFormat.LINES if lines else document_format
    flags = {"text_field": text_field, "id_field": id_field, "recipe": recipe, "plan": plan}
    overrides = {**_assigned(assignments), **{name: value for name, value in flags.items() if value is not None}}
    raise typer.Exit(check_documents(overrides, config, target, chosen.value, rows, as_json=as_json))


@app.command("similar")
def similar(
    target: Annotated[
        str, typer.Argument(metavar="TEXT|FILE|-", help="A text, a file that holds one, or - for standard input.")
    ],
    as_text: Annotated[bool, typer.Option("--text", help="Take the argument as a text even if a file has that name.")] = False,
    index: Annotated[
        str | None,
        typer.Option("--index", metavar="URL", help="A running index.  [default: on this machine, HTTP_PORT or the one after]"),
    ] = None,
    volume: Annotated[
        Path | None, typer.Option("--volume", metavar="DIR", help="Look into the volume of an index, running or not.")
    ] = None,
    documents: Annotated[
        str | None, typer.Option("--in", metavar="FILE|DIR", help="Compare with every document in files, without an index.")
    ] = None,
    scope: Annotated[str | None, typer.Option("--scope", help="Among documents with this value of SCOPE_FIELD.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Show at most so many.")] = 100,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the kept documents that are near a text: id, position, distance in bits, time. Nearest first.

    A text of a few words is found only where a document is that very text.
    """
    from stream_dedup.cli.similar import find_similar

    if sum(one is not None for one in (index, volume, documents)) > 1:
        raise typer.BadParameter("give one of --index, --volume and --in")
    settings = _settings(config, assignments)
    _plain_logs(settings)
    code = find_similar(
        settings,
        target,
        as_text=as_text,
        index=index,
        volume=volume,
        documents=documents,
        scope=scope,
        limit=limit,
        as_json=as_json,
    )
    raise typer.Exit(code)


@app.command("explain")
def explain(
    first: Annotated[str, typer.Argument(metavar="A", help="A file, or a record's position: documents-3@8812.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    rows: Annotated[int, typer.Option("--rows", min=0, help="Show so many of the features that differ most.")] = 20,
    plan: Annotated[str | None, typer.Option("--plan", help="Plan to judge with, instead of PLAN.")] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why two documents are duplicates or not: distance, threshold, blocks, and the features that differ most."""
    from stream_dedup.cli.explain import explain as explain_two

    flags = {} if plan is None else {"plan": plan}
    settings = _settings(config, assignments, brokers, **flags)
    _plain_logs(settings)
    raise typer.Exit(explain_two(settings, first, second, rows, as_json=as_json))


VolumeOption = Annotated[
    Path | None, typer.Option("--volume", metavar="DIR", help="The index's directory.  [default: INDEX_DIR]")
]


@index_app.command("stats")
def index_stats(
    volume: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The index's directory.  [default: INDEX_DIR]", show_default=False)
    ] = None,
    hottest: Annotated[int, typer.Option("--hottest", min=0, help="Show so many of the fullest buckets.")] = 10,
    digest: Annotated[
        bool, typer.Option("--digest/--no-digest", help="Compute the state digest: one pass over the volume.")
    ] = True,
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what an index holds: entries, bytes, buckets, offsets, recipe, plan, state digest. Also while it runs."""
    from stream_dedup.cli.index import show_stats

    settings = _settings(config, assignments)
    _plain_logs(settings)
    raise typer.Exit(show_stats(volume or Path(settings.index_dir), hottest, with_digest=digest, as_json=as_json))


@index_app.command("snapshot")
def index_snapshot(
    target: Annotated[Path, typer.Argument(metavar="SNAPSHOT", help="An empty or a new directory.")],
    volume: VolumeOption = None,
    wait: Annotated[str, typer.Option("--wait", metavar="TIME", help="How long the running index may take to answer.")] = "60s",
    config: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an index's volume, also while it runs, with a manifest: log offset, recipe, plan, state digest, checksums."""
    from stream_dedup.cli.index import take_snapshot
    from stream_dedup.settings.settings import parse_duration

    settings = _settings(config, assignments)
    _plain_logs(settings)
    try:
        seconds = parse_duration(wait).total_seconds()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--wait") from error
    raise typer.Exit(take_snapshot(volume or Path(settings.index_dir), target, seconds, as_json=as_json))


@index_app.command("restore")
def index_restore(
    source: Annotated[Path, typer.Argument(metavar="SNAPSHOT", help="A directory that `index snapshot` wrote.")],
    volume: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Where the index will run; empty or new.  [default: INDEX_DIR]", show_default=False),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Do not ask Kafka whether the snapshot follows this log; the index does at its start."),
    ] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an index volume of a snapshot, so that a new replica need not read the whole log."""
    from stream_dedup.cli.index import restore_snapshot

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    directory = volume or Path(settings.index_dir)
    raise typer.Exit(restore_snapshot(settings, source, directory, offline=offline, as_json=as_json))


@index_app.command("verify")
def index_verify(
    volume: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The index's directory.  [default: INDEX_DIR]", show_default=False)
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option("--snapshot", metavar="DIR", help="Begin with a snapshot instead of the log's first record.")
    ] = None,
    first: Annotated[
        int | None, typer.Option("--from", metavar="N", min=0, help="Compare answers from this log offset on.")
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", metavar="N", min=0, help="Fold only the records below this offset.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option("--work", metavar="DIR", help="Where the fold's own volume is put.  [default: TMPDIR]")
    ] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    brokers: BrokersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold the log again and compare with the volume: state digest, answers stored and sent. Ends with 1 if they differ."""
    from stream_dedup.cli.index import verify_index

    settings = _settings(config, assignments, brokers)
    _plain_logs(settings)
    directory = volume or Path(settings.index_dir)
    raise typer.Exit(verify_index(settings, directory, snapshot, first, end, work, as_json=as_json))


@app.command("broker")
def broker(
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Port on 127.0.0.1.  [default: any free one]")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder for its data, kept.  [default: a temporary one, deleted]")
    ] = None,
    partitions: PartitionsOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Run a real Apache Kafka on this machine to play with, with all topics, until Ctrl-C. Needs no Java and no Docker."""
    from stream_dedup.cli.broker import run_broker

    settings = _settings(config, assignments)
    _plain_logs(settings)
    raise typer.Exit(run_broker(settings, folder, port, partitions))


@app.command("demo")
def demo(
    documents: Annotated[int | None, typer.Option("--documents", min=100, help="Size of the generated crawl.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated crawl.")] = 1,
    brokers: OwnBrokerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the whole filter on a generated crawl in many languages, on a real Kafka, and show what it found."""
    from stream_dedup.cli.demo import show_demo

    raise typer.Exit(show_demo(documents, seed, brokers, as_json=as_json))


@app.command("plan")
def plan(
    documents: Annotated[
        str, typer.Option("--documents", metavar="N", help="Representatives that the index will hold, as in 1e8.")
    ],
    threshold: Annotated[int, typer.Option("--threshold", min=0, max=255, help="Bits that near-duplicates may differ in.")],
    width: Annotated[int, typer.Option("--width", min=1, max=256, help="Bits of the print that are judged.")] = 128,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="What the index may take, as in 8GB.")] = None,
    recall: Annotated[float, typer.Option("--recall", help="Share to find at every distance up to the threshold.")] = 0.99,
    as_json: JsonOption = False,
) -> None:
    """Tell what the sensible plans find and cost for so many documents, and which one to take.

    Recall is counted exactly; documents per second are predicted from a calibration of about a second on this machine.
    """
    from stream_dedup.cli.plan import show_plan

    code = show_plan(documents=documents, threshold=threshold, width=width, memory=memory, recall=recall, as_json=as_json)
    raise typer.Exit(code)


@bench_app.command("path")
def bench_path(
    documents: Annotated[int, typer.Option("--documents", min=2000, help="How many; below 20,000 it is only a try.")] = 200_000,
    size_bytes: Annotated[int, typer.Option("--size", help="Bytes of text in each, about; 250 to 1,000,000.")] = 1000,
    duplicate_share: Annotated[float, typer.Option("--duplicates", help="Share of near or exact copies, 0 to below 1.")] = 0.3,
    languages: Annotated[str, typer.Option("--languages", metavar="EN,..", help="Languages that take turns.")] = "en",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements of each variant; medians are shown.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated documents.")] = 1,
    brokers: OwnBrokerOption = None,
    latency: Annotated[
        bool, typer.Option(help="Then measure latency too, at 10 %, 50 % and all of the full throughput.")
    ] = True,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Measure other programs copying, too: without transactions, Quix Streams, Faust; needs `make peers`.",
        ),
    ] = False,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that share the partitions, in each variant.")] = 1,
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Partitions of the documents and outputs.")] = 4,
    index_entries: Annotated[
        int, typer.Option("--index-entries", min=0, help="Representatives that the index holds before the first document.")
    ] = 0,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", metavar="DIR", help="Run the roles once more under py-spy and keep the stacks there."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw ratios and latencies there as bars.")
    ] = None,
    target: FiguresOption = None,
) -> None:
    """Measure the whole path with the plans wide and classic beside a plain exactly-once copy of the same documents.

    Ratios are what can be compared; figures per second are the machine's as much as the filter's.
    """
    from stream_dedup.bench.path_report import Options
    from stream_dedup.cli.bench import show_path

    options = Options(
        documents=documents,
        size_bytes=size_bytes,
        duplicate_share=duplicate_share,
        languages=tuple(code.strip() for code in languages.split(",")),
        rounds=rounds,
        seed=seed,
        broker=brokers,
        with_latency=latency,
        with_peers=peers,
        workers=workers,
        partitions=partitions,
        profile=profile,
        index_entries=index_entries,
    )
    raise typer.Exit(show_path(options, plot=plot, target=target))


@bench_app.command("scaling")
def bench_scaling(
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME[=N,..]",
            help="workers, partitions, entries (of the index) or size, with its usual values or these; may be repeated.  "
            "[default: all four]",
        ),
    ] = None,
    documents: Annotated[
        int, typer.Option("--documents", min=2000, help="How many at each point; fewer of more than 2 kB.")
    ] = 200_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements of each point; medians are shown.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated documents.")] = 1,
    brokers: OwnBrokerOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the curves there as bars.")] = None,
    target: FiguresOption = None,
) -> None:
    """Measure the whole path along one axis at a time: more workers, partitions, entries of the index, larger documents.

    Each point is measured as by `bench path`, beside a plain copy under the same conditions. Takes an hour by default.
    """
    from stream_dedup.bench.path_report import Options
    from stream_dedup.cli.bench import show_scaling

    options = Options(documents=documents, rounds=rounds, seed=seed, broker=brokers, with_latency=False)
    raise typer.Exit(show_scaling(options, axes or [], plot=plot, target=target))


@bench_app.command("index")
def bench_index(
    documents: Annotated[int, typer.Option("--documents", min=2000, help="How many; below 1,000,000 it is only a try.")],
    plan: Annotated[str, typer.Option("--plan", help="Plan to judge with: wide, classic, or in numbers.")] = "wide",
    duplicates: Annotated[float, typer.Option("--duplicates", min=0, max=0.9, help="Share of planted copies.")] = 0.1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the prints.")] = 1,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Hold the measured process to it, as INDEX_MEMORY does.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Where the volumes go.  [default: the system's for such files]"),
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Measure other layouts and programs too; needs `make peers`.")] = False,
    target: FiguresOption = None,
) -> None:
    """Measure the index alone: judging, restarts, a kill, a snapshot, a rebuild, sizes; every planted copy is checked.

    The planted copies differ in as many bits as the plan finds for sure. Exit code 1 if one was not found.
    """
    from stream_dedup.bench.index import Options
    from stream_dedup.cli.bench import show_index
    from stream_dedup.cli.plan import read_size
    from stream_dedup.ground.plan import parse as parse_plan

    room = None if memory is None else read_size(memory)
    options = Options(documents, parse_plan(plan), duplicates, seed, peers, room, folder)
    raise typer.Exit(show_index(options, target=target))


@bench_app.command("quality")
def bench_quality(
    corpus: Annotated[Path, typer.Option("--corpus", metavar="DIR", help="Folder of NAME.jsonl and NAME.pairs.tsv files.")],
    presets: Annotated[list[str] | None, typer.Option("--preset", help="Recipes to measure.  [default: all]")] = None,
    plans: Annotated[list[str] | None, typer.Option("--plan", help="Plans to measure.  [default: all with a name]")] = None,
    keys: Annotated[int, typer.Option("--keys", min=1, help="Hash keys to measure with, the public one first.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the streams' order and of the template pages.")] = 1,
    peers: Annotated[bool, typer.Option("--peers", help="Measure other programs too; needs `make peers`.")] = False,
    target: FiguresOption = None,
) -> None:
    """Measure what recipes and plans find among real texts with known near-duplicates, and what they drop falsely."""
    from stream_dedup.bench.quality import Options, presets_named
    from stream_dedup.cli.bench import show_quality
    from stream_dedup.ground.plan import PLANS
    from stream_dedup.ground.plan import parse as parse_plan

    chosen = tuple(map(parse_plan, plans or PLANS))
    options = Options(corpus, presets_named(presets or []), chosen, keys, seed)
    raise typer.Exit(show_quality(options, with_peers=peers, target=target))


@bench_app.command("pages")
def bench_pages(
    pages: Annotated[int, typer.Option("--pages", min=9, help="Generated web pages, in nine languages.")] = 270,
    seed: Annotated[int, typer.Option("--seed", help="Chance that makes them.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Measure what the extractor of web pages keeps of text and of boilerplate, and its CPU; trafilatura too if it is here."""
    from stream_dedup.cli.bench import show_pages

    raise typer.Exit(show_pages(pages, seed, as_json=as_json))


@bench_app.command("fingerprint")
def bench_fingerprint(
    languages: Annotated[str, typer.Option("--languages", metavar="EN,..", help="Languages of the texts.")] = "en,zh,ja,ru",
    documents: Annotated[int, typer.Option("--documents", min=1, help="Texts in each language.")] = 300,
    size_bytes: Annotated[int, typer.Option("--size", help="Bytes of each, about; 250 to 1,000,000.")] = 4000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements of each program; medians are shown.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated texts.")] = 1,
    presets: Annotated[list[str] | None, typer.Option("--preset", help="Recipes to measure.  [default: all]")] = None,
    corpus: Annotated[
        Path | None, typer.Option("--corpus", metavar="DIR", help="Take texts of these sets instead of generated ones.")
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help="Measure other programs too; needs `make peers`.")] = False,
    target: FiguresOption = None,
) -> None:
    """Measure how fast texts become fingerprints, on one core, beside other programs on the same texts."""
    from stream_dedup.bench.fingerprint import Options
    from stream_dedup.bench.quality import presets_named
    from stream_dedup.cli.bench import show_fingerprint

    codes = tuple(code.strip() for code in languages.split(","))
    options = Options(codes, documents, size_bytes, rounds, seed, presets_named(presets or []), corpus)
    raise typer.Exit(show_fingerprint(options, with_peers=peers, target=target))


@app.command("version")
def version(as_json: JsonOption = False) -> None:
    """Print the version, and those of the libraries that matter in a report."""
    from stream_dedup.cli.version import show_version

    show_version(as_json=as_json)


def _teach() -> None:
    """Put an example at the end of each command's help."""
    for group, commands in (
        ("", app.registered_commands),
        *((str(one.name), one.typer_instance.registered_commands) for one in app.registered_groups if one.typer_instance),
    ):
        for command in commands:
            example = EXAMPLES.get(f"{group} {command.name}".strip())
            if example is not None:
                command.epilog = f"Example: {example}"


_teach()
