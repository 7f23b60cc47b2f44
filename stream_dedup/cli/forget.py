"""`forget`: the representatives of an id taken down, by a control record that every index carries out."""

from __future__ import annotations

from typing import Annotated

import typer

from stream_dedup.cli.options import DryRunOption, JsonOption, Settings, command
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.printable import printable
from stream_dedup.ground.terminal import note, print_json, print_table, progress


@command("forget", example="stream-dedup forget https://example.org/page --dry-run")
def forget_command(
    settings: Settings,
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The document's id: the record's key, or its id field.")],
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Take down what is kept of an id: its representatives and the id leave every index, its documents the search.

    What left already is not recalled; what stays, where and until when, is printed.
    """
    from stream_dedup.cli.orders import append, log_names
    from stream_dedup.control import declaration
    from stream_dedup.control.forget import KnownId, log_form, remains
    from stream_dedup.kafka import Admin, read_whole
    from stream_dedup.log.records import Control, encode_control
    from stream_dedup.settings.recipe import recipe_of

    if not identifier:
        raise InputError("An empty id is nobody's, so there is nothing to forget.")
    recipe = recipe_of(settings)
    names = log_names(settings)
    declaration.follow(settings, names, recipe, begins=False)
    known = KnownId(log_form(identifier.encode("utf-8", "surrogateescape"), settings.log_ids, recipe.key))
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
    kept = {
        name: topic.config
        for name, topic in Admin(settings)
        .describe([names.documents, *names.outputs, names.fingerprints, names.verdicts])
        .items()
    }
    stays = remains(names, kept, settings.log_ids)
    last = known.forgotten_at[-1] if known.forgotten_at else None
    if as_json:
        print_json(
            {
                "id": identifier,
                "documents": known.documents,
                "since_forgotten": known.since,
                "forgotten_at": last,
                "log_offset": written,
                "stays": [one._asdict() for one in stays],
            }
        )
    else:
        print_table(
            ["id", "documents in the log", "since it was last forgotten"],
            [[identifier, str(known.documents), str(known.since)]],
        )
        print_table(["what stays", "of it", "until"], [list(one) for one in stays])
    if written is not None:
        note(f"Written at log offset {written}; each index, and the search, forgets it when it comes there.")
    elif not known.since:
        note(f"Nothing was written: it was forgotten at log offset {last}, and has not come again.")
    else:
        note("Nothing was written (--dry-run).")
    if settings.log_ids == "plain":
        note("A log that is begun with STREAM_DEDUP_LOG_IDS=digest has no ids in it; this one has, and keeps them.")
    return 0
