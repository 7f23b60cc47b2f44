"""Decide who may read the console: everyone who reaches the port, or those with the token of a
file.

Invariants: the token is compared in constant time and never logged or shown; the file is read for
each request, so a token is replaced without a restart; with a file that is empty or cannot be read,
nobody may read.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from pathlib import Path

from stream_dedup.domain.errors import ConfigurationError


class TokenGuard:
    """Accepts requests with the token: `Authorization: Bearer TOKEN`, or as the password of Basic,
    for which browsers ask.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def refuses(self, authorization: str) -> str:
        """Return why a request is refused; empty if it is accepted."""
        if self._path is None:
            return ""
        try:
            if hmac.compare_digest(_given(authorization), self.token()):
                return ""
        except ConfigurationError:  # its path is for the operator alone
            return "The console's token cannot be read, so all requests are refused; see CONSOLE_TOKEN_FILE."
        return "The console needs its token: as the password (any user name), or as Authorization: Bearer TOKEN."

    def token(self) -> bytes:
        """Return the token; empty if none is needed.

        Raises:
            ConfigurationError: the file cannot be read, or is empty.
        """
        if self._path is None:
            return b""
        try:
            token = self._path.read_bytes().strip()
        except OSError as error:
            raise ConfigurationError(
                f"The console's token cannot be read from {self._path} ({error.strerror}), so all "
                "requests are refused; see CONSOLE_TOKEN_FILE."
            ) from error
        if not token:
            raise ConfigurationError(
                f"The file of the console's token, {self._path}, is empty, so all requests are "
                "refused; see CONSOLE_TOKEN_FILE."
            )
        return token


def _given(authorization: str) -> bytes:
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip().encode("utf-8", "replace")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""
