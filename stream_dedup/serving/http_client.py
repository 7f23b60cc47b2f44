"""HTTP requests to running roles, from commands and pages."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from stream_dedup.domain.errors import ConfigurationError, InputError, StreamDedupError
from stream_dedup.domain.relations import UNKNOWN, Origin

# The exceptions of `ask` without a valid answer.
NO_ANSWER = (OSError, http.client.HTTPException, ValueError)

_ANSWER_SECONDS: Final = 30.0
_ANSWER_BYTES_MAX: Final = 16 << 20


def ask(
    base: str,
    path: str,
    seconds: float,
    bytes_max: int,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Return status and body (at most `bytes_max`) of a request to `base` (`http://HOST:PORT`,
    optionally with a path): a GET, or a POST if there is a body.

    Raises:
        OSError, http.client.HTTPException, ValueError: no valid answer within `seconds`.
    """
    parts = urllib.parse.urlsplit(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    try:
        connection.request(
            "GET" if body is None else "POST",
            parts.path.rstrip("/") + path,
            body,
            dict(headers or {}),
        )
        answer = connection.getresponse()
        return answer.status, answer.read(bytes_max)
    finally:
        connection.close()


def similar_path(
    recipe: str,
    limbs: Sequence[int],
    digest: bytes,
    features: int,
    scope: int,
    sketch: bytes,
    origin: Origin = UNKNOWN,
    **more: object,
) -> str:
    """Return the path of an index's look-up of a fingerprint; `limbs` are its 64-bit limbs, the low
    one first.
    """
    query = {
        "recipe": recipe,
        "print": "".join(f"{limb:016x}" for limb in reversed(limbs)),
        "digest": digest.hex(),
        **({"sketch": sketch.hex()} if sketch else {}),
        "features": features,
        "scope": f"{scope:x}",
        **{name: f"{number:x}" for name, number in origin._asdict().items() if number},
    }
    return f"/v1/similar?{urllib.parse.urlencode(query | more)}"


def reason_of(error: Exception) -> str:
    """Return the reason of a missing answer in a few words."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def ask_role(
    role: str,
    bases: Iterable[str],
    path: str,
    remedy: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Return the first address where the role answers, and its JSON object.

    Raises:
        InputError: no address answers (with `remedy` in the message), an address is invalid, or the
        role refuses the request.
        ConfigurationError: the role's configuration does not fit the request (409).
        StreamDedupError: the role cannot answer now.
    """
    tried = []
    for base in bases:
        parts = urllib.parse.urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                f"{base!r} is not the URL of {_with_article(role)}; write it as http://HOST:PORT."
            )
        try:
            status, raw = ask(base, path, _ANSWER_SECONDS, _ANSWER_BYTES_MAX, body, headers)
            fields = json.loads(raw)
        except NO_ANSWER as error:
            tried.append(f"{base} ({reason_of(error)})")
            continue
        if status == HTTPStatus.OK and isinstance(fields, dict):
            return base, fields
        # A role that has the path reports a problem; a 404 of another role lists its own paths.
        if not isinstance(fields, dict) or "detail" not in fields or "paths" in fields:
            tried.append(f"{base} (another role answers there)")
            continue
        sentence = f"The {role} at {base} answers: {fields['detail']}"
        if status == HTTPStatus.CONFLICT:
            raise ConfigurationError(sentence)
        raise InputError(sentence) if 400 <= status < 500 else StreamDedupError(sentence)
    raise InputError(f"No {role} answers at {' or '.join(tried)}. {remedy}")


def _with_article(role: str) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"
