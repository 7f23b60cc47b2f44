"""The process that takes or restores a snapshot next to a running index; `snapshots` starts
it.

Its argument is the job as JSON; it writes the result as JSON to standard output. It exits when its
standard input is closed.
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


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Carry out a job and return its result; after a failure, `failed` contains the reason."""
    warnings: list[str] = []
    is_new = False
    if job["do"] == "restore" and (refusal := _find_refusal(job["place"])):
        return {"failed": refusal, "is_refused": True}
    try:
        if job["do"] == "restore":
            stored = snapshot.restore_any(
                job["place"], Path(job["volume"]), job["log"], warnings.append
            )
        else:
            started_seconds = time.time()
            every_seconds = 0.0 if job.get("is_wanted") else job["every_seconds"]
            stored = snapshot.take(
                Path(job["volume"]),
                job["place"],
                owner=job["by"],
                keep=job["keep"],
                every_seconds=every_seconds,
            )
            is_new = stored.manifest.taken_at >= int(started_seconds)
    except StreamDedupError as error:
        return {"failed": str(error)}
    if stored is None:
        return {"warnings": warnings}
    if stored.remark:
        warnings.append(stored.remark)
    manifest = stored.manifest
    due_at = snapshot.due_at(stored, job.get("by", ""), job.get("every_seconds", 0.0))
    figures = {
        "applied": manifest.applied,
        "bytes": manifest.bytes,
        "sent_bytes": stored.sent_bytes,
    }
    return {
        "warnings": warnings,
        "name": stored.name,
        "taken_at": manifest.taken_at,
        "due_at": due_at,
        "is_new": is_new,
        **figures,
    }


def _find_refusal(place: str) -> str:
    """Return the error of a store that refuses access, for example without credentials; "" if it
    grants access or is unavailable.
    """
    try:
        storage_at(place).folders()
    except StoreError as error:
        cause = error.__cause__
        name = type(cause).__name__
        if isinstance(cause, PermissionError | ImportError) or _CREDENTIAL_ERROR.search(name):
            return str(error)
    return ""


# botocore's NoCredentialsError and PartialCredentialsError, google's DefaultCredentialsError,
# azure's ClientAuthenticationError and CredentialUnavailableError have no common base class.
_CREDENTIAL_ERROR = re.compile("Credential|Authentication")


def main(job: str) -> None:
    """Carry out a job, given as JSON, with low priority and print its result; exit with the
    parent.
    """

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    os.nice(10)
    print(json.dumps(run_job(json.loads(job))))


if __name__ == "__main__":
    main(sys.argv[1])
