"""A question to a running role over HTTP, from a command or a page."""

from __future__ import annotations

import http.client
import urllib.parse
from collections.abc import Mapping

# What `ask` raises where nobody answers, or not in HTTP.
NO_ANSWER = (OSError, http.client.HTTPException, ValueError)


def ask(
    base: str, path: str, seconds: float, bytes_max: int, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Return status and body, of at most `bytes_max`, of what `base` (`http://HOST:PORT`, maybe with a path) answers.

    It is asked by GET, and by POST where there is a body.

    Raises:
        OSError, http.client.HTTPException, ValueError: nobody answers within so many seconds, or not in HTTP.
    """
    parts = urllib.parse.urlsplit(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    try:
        connection.request("GET" if body is None else "POST", parts.path.rstrip("/") + path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read(bytes_max)
    finally:
        connection.close()


def reason_of(error: Exception) -> str:
    """Return why there was no answer, in a few words."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
