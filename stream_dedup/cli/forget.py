"""`forget`: the representatives of an id taken down, by a control record that every index carries out."""

from __future__ import annotations

from stream_dedup.cli.orders import append, log_names
from stream_dedup.control import declaration
from stream_dedup.control.forget import Known, log_form
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.printable import printable
from stream_dedup.ground.terminal import note, print_json, print_table, progress
from stream_dedup.kafka import read_whole
from stream_dedup.log.records import Control, encode_control
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings


def forget(settings: Settings, identifier: str, *, dry_run: bool, as_json: bool) -> int:
    """Append the take-down of an id, unless it was forgotten and has not come again; return 0.

    Raises:
        ConfigurationError: the log is missing, empty, or another's.
        InputError: the id is empty, or the log has no document with it.
        BrokerError: Kafka failed.
    """
    if not identifier:
        raise InputError("An empty id is nobody's, so there is nothing to forget.")
    recipe = recipe_of(settings)
    names = log_names(settings)
    declaration.follow(settings, names, recipe, begins=False)
    known = Known(log_form(identifier.encode("utf-8", "surrogateescape"), settings.log_ids, recipe.key))
    with progress("looking for it in the log", None) as advance:
        for log_offset, record in read_whole(settings, names.fingerprints, advance):
            known.fold(log_offset, record)
    if not known.documents:
        raise InputError(
            f"The log {names.fingerprints} has no document with the id {printable(identifier)!r}; nothing was written. An "
            "id is the record's key, or what stands at STREAM_DEDUP_ID_FIELD, written exactly so."
        )
    written = None
    if known.since and not dry_run:
        written = append(settings, names, encode_control(Control("forget", {"ids": [known.id.hex()]})))
    last = known.forgotten_at[-1] if known.forgotten_at else None
    if as_json:
        print_json(
            {"id": identifier, "documents": known.documents, "since_forgotten": known.since, "forgotten_at": last,
             "log_offset": written}
        )  # fmt: skip
    else:
        print_table(
            ["id", "documents in the log", "since it was last forgotten"],
            [[identifier, str(known.documents), str(known.since)]],
        )
    if written is not None:
        note(f"Written at log offset {written}; each index forgets it when it comes there.")
    elif not known.since:
        note(f"Nothing was written: it was forgotten at log offset {last}, and has not come again.")
    else:
        note("Nothing was written (--dry-run).")
    if settings.log_ids == "plain":
        note("The log itself keeps the id, as it keeps all; a log begun with STREAM_DEDUP_LOG_IDS=digest has no ids in it.")
    return 0
