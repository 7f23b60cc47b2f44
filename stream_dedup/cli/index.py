"""`index stats`, `checkpoint`, `restore` and `verify`: inspect, copy and verify an index's volume."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from stream_dedup.cli.options import JsonOption, VolumeArgument, VolumeOption, command
from stream_dedup.domain.errors import (
    ConfigurationError,
    InputError,
)
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.terminal import console, note, print_json, print_table, progress
from stream_dedup.index import contents, report, snapshot
from stream_dedup.index.digest import StateDigest, compute_digest, state_digest
from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import Snapshot
from stream_dedup.index.storage.place import volume_in
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.indexer.snapshots import SNAPSHOTS_KEPT
from stream_dedup.inputs.addressed import sentences
from stream_dedup.kafka import Admin, Bounds, read_log, topic_bounds
from stream_dedup.settings.settings import Settings
from stream_dedup.settings.units import parse_duration

PlaceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PLACE",
        help="Folder or address of snapshots.  [default: SNAPSHOTS]",
        show_default=False,
    ),
]


@command(
    "index stats", example="stream-dedup index stats --hottest 20 --no-digest", asks_kafka=False
)
def index_stats_command(
    settings: Settings,
    volume: VolumeArgument = None,
    hottest: Annotated[
        int, typer.Option("--hottest", min=0, help="Number of fullest buckets to show.")
    ] = 10,
    digest: Annotated[
        bool,
        typer.Option("--digest/--no-digest", help="Compute the state digest."),
    ] = True,
    as_json: JsonOption = False,
) -> int:
    """Print figures of an index: entries, bytes, buckets, offsets, recipe, plan, state digest."""
    directory = volume_in(volume or settings.index_dir)
    with closing(RocksStore(directory, read_only=True)) as store:
        index = LogIndex(store)
        found = report.stats(index, hottest) | report.digest_field(
            state_digest(store) if digest else None
        )
    if as_json:
        print_json({"volume": str(directory), **found})
    else:
        _print_stats(directory, found)
    return 0


@command(
    "index checkpoint",
    example="stream-dedup index checkpoint s3://backup/crawl --volume /data/index",
    asks_kafka=False,
)
def index_checkpoint_command(
    settings: Settings,
    place: PlaceArgument = None,
    volume: VolumeOption = None,
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="Time limit for a running index.")
    ] = "1h",
    as_json: JsonOption = False,
) -> int:
    """Copy an index's volume to a folder or a store; a running index does it itself."""
    try:
        seconds = parse_duration(wait).total_seconds()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--wait") from error
    started = time.monotonic()
    directory, where = volume_in(volume or settings.index_dir), _place(settings, place)
    with progress(f"copying {directory} to {where}", None) as advance:
        if snapshot.is_running(directory):
            copy = snapshot.ask(directory, where, seconds)
        else:
            copy = snapshot.take(
                directory,
                where,
                keep=SNAPSHOTS_KEPT,
                advance=lambda size: advance(0, size),
            )
    _print_snapshot(copy, where, time.monotonic() - started, as_json=as_json)
    return 0


@command("index restore", example="stream-dedup index restore s3://backup/crawl /data/index")
def index_restore_command(
    settings: Settings,
    place: PlaceArgument = None,
    volume: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Empty directory.  [default: index in STATE_DIR]",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            metavar="NAME",
            help="Name of the snapshot.  [default: the newest]",
            show_default=False,
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="Do not compare the snapshot with Kafka; the index does at its start.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Restore an index volume from a snapshot."""
    started = time.monotonic()
    directory, where = volume_in(volume or settings.index_dir), _place(settings, place)
    log = None if offline else _log_name(settings)
    with progress(f"restoring {where}", None) as advance:
        copy = snapshot.restore(
            where, directory, name=name, log=log, advance=lambda size: advance(0, size)
        )
    _print_snapshot(copy, str(directory), time.monotonic() - started, as_json=as_json)
    return 0


@command("index verify", example="stream-dedup index verify --snapshots s3://backup/crawl")
def index_verify_command(
    settings: Settings,
    volume: VolumeArgument = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            "--snapshots",
            metavar="PLACE",
            help="Start with the newest snapshot.",
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option("--work", metavar="DIR", help="Temporary folder.  [default: TMPDIR]"),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Judge the log again and compare the state digests. Exits with 1 if they differ."""
    directory = volume_in(volume or settings.index_dir)
    name = _log_name(settings)
    with (
        closing(RocksStore(directory, read_only=True)) as store,
        contents.raise_volume_errors(),
    ):
        state = contents.read(store)
        stored = compute_digest(state)
    if state.log is not None and state.log != name:
        raise ConfigurationError(
            f"The volume {directory} is of the log {state.log!r}, and the log of this cluster is "
            f"{name!r}; verify the volume against its own cluster."
        )
    with tempfile.TemporaryDirectory(prefix="stream-dedup-verify-", dir=work) as folder:
        computed = _fold(settings, Path(folder) / "fold", snapshots, state.meta.applied, name)
    is_same = stored == computed
    if as_json:
        print_json(
            {
                "volume": str(directory),
                "log_offset": stored.log_offset,
                "same": is_same,
                "state_digest": stored.digest,
                "log_gives": computed.digest,
            }
        )
    elif is_same:
        console().print(
            f"{directory} agrees with the log up to offset {stored.log_offset:,}: state digest "
            f"{stored.digest}."
        )
    else:
        note(
            f"{directory} does not agree with the log up to offset {stored.log_offset:,}: its state "
            f"digest is {stored.digest}, that of the log is {computed.digest}. Keep a copy for a "
            "report; then give the index an empty directory, or restore a snapshot that verifies."
        )
    return 0 if is_same else 1


def _place(settings: Settings, argument: str | None) -> str:
    place = argument or settings.snapshots
    if place is None:
        raise ConfigurationError(
            "No place for snapshots is set. Name a folder or an address, or set "
            "STREAM_DEDUP_SNAPSHOTS."
        )
    with sentences(place):
        return place


def _print_snapshot(copy: Snapshot, where: str, seconds: float, *, as_json: bool) -> None:
    manifest = copy.manifest
    if copy.remark:
        note(copy.remark)
    if as_json:
        fields = asdict(manifest)
        del fields["files"]
        fields_of_snapshot = {
            "place": where,
            "name": copy.name,
            **fields,
            "bytes": manifest.bytes,
            "sent_bytes": copy.sent_bytes,
        }
        print_json({**fields_of_snapshot, "seconds": round(seconds, 3)})
        return
    plan = "none yet" if manifest.plan is None else Plan.from_fields(manifest.plan).name
    rows = [
        ["place", where],
        ["name", copy.name],
        ["log", str(manifest.log)],
        ["applied up to", f"log offset {manifest.applied:,}"],
        ["recipe, plan", f"{manifest.recipe or 'none yet'}, {plan}"],
        ["state digest", manifest.state_digest],
        ["files", f"{len(manifest.files)}, {manifest.bytes:,} bytes, in {seconds:.1f} s"],
        ["taken", f"{manifest.taken} by version {manifest.program}"],
    ]
    print_table(["", "snapshot"], rows)


def _log_name(settings: Settings) -> str:
    """Return the name of this cluster's log for `LogIndex.bind`.

    Raises:
        ConfigurationError: the log does not exist.
    """
    names = settings.topic_names
    admin = Admin(settings)
    found = admin.topic_ids([names.fingerprints])
    if names.fingerprints not in found:
        raise ConfigurationError(
            f"The topic {names.fingerprints} does not exist on {settings.kafka_bootstrap_servers}; "
            "set STREAM_DEDUP_TOPIC_PREFIX to that of the roles."
        )
    return f"{admin.cluster_id()}/{found[names.fingerprints][0].hex()}"


def _print_stats(volume: Path, found: dict[str, Any]) -> None:
    entries, buckets, digest = found["entries"], found["buckets"], found["state_digest"]
    live = entries["live"]
    per_entry = (
        f", {found['bytes']['disk'] / live:,.0f} and {found['bytes']['memory'] / live:,.0f} a "
        "representative"
        if live
        else ""
    )
    parts = [
        f"{entries[name]:,} {name.replace('_', ' ')}"
        for name in ("with_neighbours", "digest_only", "removed")
    ]
    rows = [
        ["volume", str(volume)],
        ["log", str(found["log"] or "none yet")],
        ["applied, answered", f"up to log offset {found['applied']:,}, {found['answered']:,}"],
        ["recipe, plan", f"{found['recipe'] or 'none yet'}, {found['plan_name'] or 'none yet'}"],
        ["group, mode", f"{found['group'] or 'none yet'}, {found['mode'] or 'none yet'}"],
        ["representatives", f"{live:,} ({', '.join(parts)})"],
        ["verdicts kept", f"{found['kept_verdicts']:,}"],
        [
            "log records",
            (
                f"{found['rejected_records']:,} rejected, {found['ignored_control_records']:,} ignored"
            ),
        ],
        [
            "bytes",
            (
                f"{found['bytes']['disk']:,} on disk, {found['bytes']['memory']:,} in "
                f"memory{per_entry}"
            ),
        ],
        ["buckets", f"{buckets['used']:,} used of {buckets['all']:,}"],
        [
            "full blocks",
            (
                f"{buckets['full_blocks']:,}, of which the plan compares only the first and the last "
                "representatives"
            ),
        ],
        ["chain", found["chain"]],
    ]
    if digest is not None:
        rows.append(["state digest", f"{digest['digest']} at log offset {digest['log_offset']:,}"])
    print_table(["", "index"], rows)
    if buckets["sizes"]:
        console().print()
        print_table(
            ["entries", "buckets"],
            [[f"up to {size['up_to']:,}", f"{size['buckets']:,}"] for size in buckets["sizes"]],
        )
    if buckets["hottest"]:
        console().print()
        print_table(
            ["hottest: table", "key", "entries"],
            [[str(key["table"]), key["key"], f"{key['entries']:,}"] for key in buckets["hottest"]],
        )


def _fold(settings: Settings, folder: Path, base: str | None, end: int, name: str) -> StateDigest:
    """Judge the log below offset `end` in a new volume, from the newest snapshot at `base` if that
    is not None; return the state digest.

    Raises:
        InputError: the snapshot is later than `end`.
        ConfigurationError: records of the log were removed.
    """
    if base is not None:
        manifest = snapshot.restore(base, folder, log=name).manifest
        if manifest.applied > end:
            raise InputError(
                f"The snapshot {base} is of log offset {manifest.applied}, and the volume has "
                f"applied the log up to {end} only. Name earlier snapshots."
            )
    fingerprints = settings.topic_names.fingerprints
    with closing(LogIndex(RocksStore(folder))) as index:
        index.bind(name)
        bounds = topic_bounds(settings, fingerprints, 1)[0]
        if bounds.low > index.applied or bounds.end < end:
            raise ConfigurationError(
                f"The log {fingerprints} contains offsets {bounds.low} to {bounds.end}, and "
                f"{index.applied} to {end} are needed: records of it were removed. Restore the "
                "topic, or start at a later offset with --snapshots."
            )
        with progress("judging the log again", None) as advance:
            for group in read_log(settings, Bounds(index.applied, end), advance):
                index.apply(group)
                index.answered(index.applied)
        index.flush()
        return index.state_digest()
