"""What any role answers over HTTP where it cannot answer: the problem of RFC 9457, with a sentence.

    {"type": "about:blank", "title": "Conflict", "status": 409, "detail": "The print was made under
    the recipe .."}

Invariants: `type` says that the status is all the kind there is, so `title` is the status's own
phrase; programs go by the status, and `detail` is for people; the bytes are ASCII, because half of
a surrogate pair has no UTF-8.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

PROBLEM_TYPE: Final = "application/problem+json"


def problem(status: int, detail: str, **more: object) -> dict[str, object]:
    """Return the members of a problem; `more`: further ones, which are told programs too."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **more,
    }


def problem_bytes(status: int, detail: str, **more: object) -> bytes:
    """Return a problem as it is sent, under `PROBLEM_TYPE`."""
    return json.dumps(problem(status, detail, **more)).encode()
