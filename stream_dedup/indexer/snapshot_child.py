"""The process that takes, looks for or fetches a snapshot beside a running index; started by
`snapshots`.

Its one argument is the job, as JSON; what came of it is JSON on standard output. Input that ends,
ends it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from stream_dedup.domain.errors import StoreError, StreamDedupError
from stream_dedup.index import snapshot
from stream_dedup.inputs.storage import storage_at


def carry_out(job: dict[str, Any]) -> dict[str, Any]:
    """Do one job; return what came of it."""
    told: list[str] = []
    is_new = False
    if job["do"] == "restore" and (why := _refusal(job["place"])):
        return {"failed": why, "is_refused": True}
    try:
        if job["do"] == "restore":
            found = snapshot.restore_any(job["place"], Path(job["volume"]), job["log"], told.append)
        elif job["do"] == "look":
            found = snapshot.newest(job["place"], job["log"])
        else:
            begun = time.time()
            every = 0.0 if job.get("is_wanted") else job["every_seconds"]
            found = snapshot.take(
                Path(job["volume"]),
                job["place"],
                by=job["by"],
                keep=job["keep"],
                every_seconds=every,
            )
            is_new = found.manifest.taken_at >= int(begun)
    except StreamDedupError as error:
        return {"failed": str(error)}
    if found is None:
        return {"told": told}
    if found.remark:
        told.append(found.remark)
    of = found.manifest
    due_at = snapshot.due_at(found, job.get("by", ""), job.get("every_seconds", 0.0))
    figures = {"applied": of.applied, "bytes": of.bytes, "sent_bytes": found.sent_bytes}
    return {
        "told": told,
        "name": found.name,
        "taken_at": of.taken_at,
        "due_at": due_at,
        "is_new": is_new,
        **figures,
    }


def _refusal(place: str) -> str:
    """Return why a place of snapshots lets nobody in, such as credentials that are missing; nothing
    if it does, or is away.
    """
    try:
        storage_at(place).folders()
    except StoreError as error:
        cause = error.__cause__
        name = type(cause).__name__
        if isinstance(cause, PermissionError | ImportError) or _REFUSED.search(name):
            return str(error)
    return ""


# botocore's NoCredentialsError and PartialCredentialsError, google's DefaultCredentialsError,
# azure's ClientAuthenticationError and CredentialUnavailableError: no two have a base in common.
_REFUSED = re.compile("Credential|Authentication")


def main(job: str) -> None:
    """Do a job, as JSON, with little priority, and say what came of it; end when the parent
    does.
    """

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    os.nice(10)
    print(json.dumps(carry_out(json.loads(job))))


if __name__ == "__main__":
    main(sys.argv[1])
