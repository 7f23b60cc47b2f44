"""Whether this worker reads documents as the others of its log do: what decides a document's text, its id, scope and rank.

Two workers that differ there give one page two texts, and an exact copy of it is none any more, without an error anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from stream_dedup.checks.finding import CheckFinding, ok, refused
from stream_dedup.settings.settings import Settings

_FIELDS = ("value_format", "text_field", "text_is", "text_encoding", "id_field", "scope_field")


def reading_of(settings: Settings) -> dict[str, str | None]:
    """Return the settings that decide what a document's text, id, scope and rank are; of the file of ranks, its digest."""
    found = {name: getattr(settings, name) for name in _FIELDS}
    if settings.value_format == "raw":
        found["text_field"] = None
    # What is not set is left out: older logs do not name it.
    if settings.value_format in ("avro", "protobuf") and settings.reader_schema is not None:
        found["reader_schema"] = str(settings.reader_schema)
    if settings.text_at is not None:
        found["text_at"] = settings.text_at
    if settings.host_ranks is not None:  # likewise; by what it says, wherever it lies
        found["host_ranks"] = hashlib.blake2b(Path(settings.host_ranks).read_bytes(), digest_size=8).hexdigest()
    return found


def check_reading(settings: Settings, in_force: Mapping[str, str | None] | None) -> CheckFinding:
    """Return whether the settings read documents as is in force for the log; None: nobody has said it yet."""
    own = reading_of(settings)
    if in_force is None or in_force == own:
        return ok("reading", "Documents are read as the log's first worker read them.")
    differing = [name for name in dict.fromkeys([*own, *in_force]) if own.get(name) != in_force.get(name)]
    return refused(
        "reading",
        f"Documents of this log are read with {reading_text({name: in_force.get(name) for name in differing})}, and the "
        f"settings say {reading_text({name: own.get(name) for name in differing})}: one page would have two texts or ids, and "
        "its copies would not be found. Set them as they were; or change them for all, with the new settings: stream-dedup "
        "declare --reading, and restart every worker.",
    )


def reading_text(reading: Mapping[str, str | None]) -> str:
    """Return them as one writes them; one that is not set has nothing behind its `=`."""
    return ", ".join(f"STREAM_DEDUP_{name.upper()}={value or ''}" for name, value in reading.items())
