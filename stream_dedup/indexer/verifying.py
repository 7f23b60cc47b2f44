"""Judge a log again and compare the result with an index's volume, for `index verify`."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.domain.terminal import progress
from stream_dedup.index import contents, snapshot
from stream_dedup.index.digest import StateDigest, compute_digest
from stream_dedup.index.index import LogIndex, name_log
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.kafka import Admin, Bounds, read_log, topic_bounds
from stream_dedup.settings.settings import Settings


def log_name(settings: Settings) -> str:
    """Return the name of this cluster's log for `LogIndex.bind`.

    Raises:
        ConfigurationError: the log does not exist.
    """
    names = settings.topic_names
    admin = Admin(settings)
    topic_ids = admin.topic_ids([names.fingerprints])
    if names.fingerprints not in topic_ids:
        raise ConfigurationError(
            f"The topic {names.fingerprints} does not exist on {settings.kafka_bootstrap_servers}; "
            "set STREAM_DEDUP_TOPIC_PREFIX to that of the roles."
        )
    return name_log(admin.cluster_id(), topic_ids[names.fingerprints].topic_id)


def compare_with_log(
    settings: Settings, volume: Path, snapshots: str | None, work: Path | None
) -> tuple[StateDigest, StateDigest]:
    """Return two state digests: of the volume, and of the log judged again in the folder `work`.

    The log is judged from its beginning, or from the newest snapshot at `snapshots`.

    Raises:
        ConfigurationError: the volume is of another log, or records of the log were removed.
        InputError: the snapshot is later than the volume.
    """
    name = log_name(settings)
    with (
        closing(RocksStore(volume, read_only=True)) as store,
        contents.raise_volume_errors(),
    ):
        state = contents.read(store)
        stored = compute_digest(state)
    if state.log is not None and state.log != name:
        raise ConfigurationError(
            f"The volume {volume} belongs to the log {state.log}, but the log of this cluster is "
            f"{name}; verify the volume against its own cluster."
        )
    with tempfile.TemporaryDirectory(prefix="stream-dedup-verify-", dir=work) as folder:
        return stored, _judge_log(
            settings, Path(folder) / "fold", snapshots, state.meta.applied, name
        )


def _judge_log(
    settings: Settings, folder: Path, place: str | None, end: int, name: str
) -> StateDigest:
    """Judge the log below offset `end` in a new volume, from the newest snapshot at `place` if that
    is not None; return the state digest.

    Raises:
        InputError: the snapshot is later than `end`.
        ConfigurationError: records of the log were removed.
    """
    if place is not None:
        manifest = snapshot.restore(place, folder, log=name).manifest
        if manifest.applied > end:
            raise InputError(
                f"The snapshot {place} was taken at log offset {manifest.applied:,}, but the "
                f"volume has applied the log only up to {end:,}. Name a place with earlier "
                "snapshots."
            )
    fingerprints = settings.topic_names.fingerprints
    with closing(LogIndex(RocksStore(folder))) as index:
        index.bind(name)
        bounds = topic_bounds(settings, fingerprints, 1)[0]
        if bounds.low > index.applied or bounds.end < end:
            raise ConfigurationError(
                f"The log {fingerprints} contains offsets {bounds.low} to {bounds.end}, but "
                f"verifying needs {index.applied} to {end}: records were removed. Restore the "
                "topic, or start at a later offset with --snapshots."
            )
        with progress("judging the log again", None) as advance:
            for group in read_log(settings, Bounds(index.applied, end), advance):
                index.apply(group)
                index.mark_delivered(index.applied)
        index.flush()
        return index.state_digest()
