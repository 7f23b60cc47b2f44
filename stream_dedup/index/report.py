"""Reports of an index for `/v1/stats` and `/v1/similar`, as values for JSON.

Invariant: ids are text here, with characters that are not UTF-8 replaced; 64-bit numbers that
JavaScript would round are written in hexadecimal digits.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from typing import Any

from stream_dedup.domain.plan import Plan
from stream_dedup.domain.sketch import per_cent
from stream_dedup.index.index import LogIndex
from stream_dedup.index.look_up import Entry, Query, Similar
from stream_dedup.index.snapshot import Snapshot
from stream_dedup.log.records import FORMATS


def stats(index: LogIndex) -> dict[str, Any]:
    """Return the report of an index."""
    figures = index.statistics()
    declared, plan = index.declared, index.plan
    live = figures["entries"] - figures["removed"]
    return {
        "log": index.log,
        "applied": figures["applied"],
        "answered": figures["answered"],
        "unanswered": figures["unanswered"],
        "recipe": None if declared is None else declared.recipe,
        "plan": None if plan is None else plan.id,
        "past_plans": list(index.past_plans),
        "format": index.format,
        "formats": sorted(FORMATS),
        "plan_name": None if plan is None else plan.name,
        "floor": None if declared is None else declared.floor,
        "group": None if declared is None else declared.group,
        "mode": None if declared is None else declared.mode.name.lower(),
        "entries": {
            "live": live,
            "with_neighbours": figures["representatives_full"],
            "digest_only": figures["representatives_digest_only"],
            "removed": figures["removed"],
        },
        "kept_verdicts": figures["kept_verdicts"],
        "rejected_records": figures["rejected"],
        "rejected_at": figures["rejected_at"] if figures["rejected"] else None,
        "ignored_control_records": figures["ignored_control_records"],
        "bytes": {"disk": figures["bytes_on_disk"], "memory": figures["bytes_in_memory"]},
        "chain": index.chain.hex(),
    }


def similar(index: LogIndex, result: Similar, query: Query) -> dict[str, Any]:
    """Return the result of a look-up. For each entry it says whether the text would be a copy, and
    why.
    """
    declared = index.declared
    return {
        "applied": result.applied,
        "recipe": None if declared is None else declared.recipe,
        "plan": result.plan.id,
        "floor": None if declared is None else declared.floor,
        "by_digest_only": result.by_digest_only,
        "total": result.total,
        "found": [_entry(distance, entry, result.plan, query) for distance, entry in result.found],
    }


def _entry(distance: int, entry: Entry, plan: Plan, query: Query) -> dict[str, Any]:
    is_copy, reason = query.compare(plan, entry)
    similarity = per_cent(query.sketch, entry.sketch) if query.sketch and entry.sketch else None
    return {
        "id": entry.id.decode("utf-8", "replace"),
        "position": str(entry.position),
        "topic_id": entry.position.topic_id.hex(),
        "distance": distance,
        "similarity": None if similarity is None else similarity / 100,
        "is_copy": is_copy,
        "explanation": reason,
        "time": rfc3339(entry.time_ms),
        "log": str(entry.decided),
        "fingerprint": f"{entry.print:032x}",
        "text_digest": entry.text_digest.hex(),
        "scope": f"{entry.scope:016x}",
        "features": entry.features,
    }


def rfc3339(time_ms: int) -> str | None:
    """Return a time in milliseconds since 1970 as RFC 3339 in UTC; None if it is out of range."""
    try:
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def snapshot_fields(snapshot: Snapshot, place: str) -> dict[str, Any]:
    """Return a snapshot in `place` as fields, without its list of files."""
    manifest = snapshot.manifest
    fields = asdict(manifest)
    del fields["files"]
    sizes = {"bytes": manifest.bytes, "sent_bytes": snapshot.sent_bytes}
    return {"place": place, "name": snapshot.name, **fields, **sizes}


def snapshot_rows(snapshot: Snapshot, place: str, seconds: float) -> list[list[str]]:
    """Return a snapshot in `place`, taken in `seconds`, as the rows (name, text) of a table."""
    manifest = snapshot.manifest
    plan = "none yet" if manifest.plan is None else Plan.from_fields(manifest.plan).name
    return [
        ["place", place],
        ["name", snapshot.name],
        ["log", str(manifest.log)],
        ["applied up to", f"log offset {manifest.applied:,}"],
        ["recipe, plan", f"{manifest.recipe or 'none yet'}, {plan}"],
        ["state digest", manifest.state_digest],
        ["files", f"{len(manifest.files)}, {manifest.bytes:,} bytes, in {seconds:.1f} s"],
        ["taken", f"{manifest.taken} by version {manifest.program}"],
    ]
