"""Problem details (RFC 9457): the body of every HTTP error of a role.

    {"type": "about:blank", "title": "Conflict", "status": 409, "detail": "The plan blocks
    compares no sketches .."}

Invariants: `type` is always `about:blank`, so `title` is the phrase of the status; programs read
the status, and `detail` is for people; the bytes are ASCII, because a lone surrogate cannot be
encoded as UTF-8.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

PROBLEM_TYPE: Final = "application/problem+json"


def problem(status: int, detail: str, **more: object) -> dict[str, object]:
    """Return the members of a problem; `more` are further members for programs."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **more,
    }


def problem_bytes(status: int, detail: str, **more: object) -> bytes:
    """Return a problem as the bytes of a response of type `PROBLEM_TYPE`."""
    return json.dumps(problem(status, detail, **more)).encode()
