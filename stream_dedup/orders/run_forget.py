"""Carry out `forget`: remove the representatives of an id by a control record that every index
applies, and list the remaining data of the id.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from stream_dedup.domain.errors import InputError
from stream_dedup.domain.printable import printable
from stream_dedup.domain.terminal import progress
from stream_dedup.domain.topics import TopicNames
from stream_dedup.kafka import Admin, read_whole_log
from stream_dedup.log.records import Control, encode_control
from stream_dedup.orders import declaration
from stream_dedup.orders.common import append, check_log_topics
from stream_dedup.orders.forget import KnownId, id_in_log
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings
from stream_dedup.settings.units import format_duration

# RocksDB rewrites every file that is older than this (its option `ttl`).
_ROCKSDB_DAYS: Final = 30


class RemainingData(NamedTuple):
    """Remaining data of a forgotten id: where, which data, until when."""

    where: str
    what: str
    until: str


class Forgotten(NamedTuple):
    """The result of `forget` for an id.

    `documents`: the number of its documents in the log.
    `since`: the number of those after the log offset `forgotten_at`.
    `forgotten_at`: the log offset at which it was last forgotten; None if never.
    `log_offset`: the log offset of the new `forget`; None if none was written.
    `remaining`: the remaining data.
    """

    documents: int
    since: int
    forgotten_at: int | None
    log_offset: int | None
    remaining: list[RemainingData]


def forget(settings: Settings, identifier: str, *, dry_run: bool) -> Forgotten:
    """Remove the representatives of an id.

    Raises:
        InputError: the log has no document with the id; nothing was written.
        ConfigurationError: a topic is missing, or the log belongs to another filter.
        BrokerError: Kafka failed; run the command again.
    """
    if not identifier:
        raise InputError("The id is empty; give the id of a document.")
    recipe = recipe_of(settings)
    names = check_log_topics(settings)
    declaration.read_or_declare(settings, names, recipe, begins=False)
    known = KnownId(
        id_in_log(identifier.encode("utf-8", "surrogateescape"), settings.log_ids, recipe.key)
    )
    with progress("searching the log for the id", None) as advance:
        for log_offset, record in read_whole_log(settings, names.fingerprints, advance):
            known.fold(log_offset, record)
    if not known.documents:
        raise InputError(
            f"The log {names.fingerprints} contains no document with the id "
            f"{printable(identifier)!r}; nothing was written. An id is the whole key of the "
            "record, or the whole value of STREAM_DEDUP_ID_FIELD."
        )
    log_offset_written = None
    if known.since and not dry_run:
        log_offset_written = append(
            settings, names, encode_control(Control("forget", {"ids": [known.id.hex()]}))
        )
    configs = {
        name: topic.config
        for name, topic in Admin(settings)
        .describe([names.documents, *names.outputs, names.fingerprints, names.verdicts])
        .items()
    }
    last_offset = known.forgotten_at[-1] if known.forgotten_at else None
    remaining = list_remaining_data(names, configs, settings.log_ids)
    return Forgotten(known.documents, known.since, last_offset, log_offset_written, remaining)


def list_remaining_data(
    names: TopicNames, config: Mapping[str, Mapping[str, str]], log_ids: str
) -> list[RemainingData]:
    """Return what remains after `forget`; `config` contains the settings of existing topics, by
    name.
    """
    whole_records = "its records, whole"
    id_form = "the id" if log_ids == "plain" else "a keyed digest of the id"
    topics = [
        (names.documents, whole_records),
        *((name, whole_records) for name in names.outputs),
        (names.fingerprints, f"{id_form}, and fingerprints, which contain no words"),
        (names.verdicts, f"{id_form}, if it was a kept document's"),
    ]
    stored = [
        RemainingData(name, what, _kept_until(config[name]))
        for name, what in topics
        if name in config
    ]
    return [
        *stored,
        RemainingData(
            "the index's volume",
            "old bytes, which are no longer read",
            f"RocksDB removes them, within {_ROCKSDB_DAYS} days",
        ),
        RemainingData(
            "snapshots of the index",
            f"{id_form}, with its fingerprint",
            "their deletion; later snapshots do not contain it",
        ),
        RemainingData(
            "the search's volume",
            "old bytes, which are no longer read",
            "the engine merges their files, or you delete the volume, which the search fills again "
            "without them",
        ),
    ]


def _kept_until(config: Mapping[str, str]) -> str:
    if "compact" in config.get("cleanup.policy", ""):
        return "another record of its key replaces it"
    retention_ms = int(config.get("retention.ms", "-1"))
    retention_bytes = int(config.get("retention.bytes", "-1"))
    times = (
        [f"{format_duration(timedelta(milliseconds=retention_ms))} after its time"]
        if retention_ms >= 0
        else []
    )
    sizes = (
        [f"{retention_bytes / 1e9:.1f} GB came after it in its partition"]
        if retention_bytes >= 0
        else []
    )
    return ", or ".join([*times, *sizes]) or "forever"
