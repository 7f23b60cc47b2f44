"""Decide who may read the console: everyone who can reach the port, or only clients with the token.

Invariants: the token is compared in constant time, and never logged or shown; its file is read for
each request, so that the token can be replaced without a restart; if the file is empty or cannot be
read, all requests are refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from pathlib import Path

from stream_dedup.domain.errors import ConfigurationError


class TokenGuard:
    """Accepts requests that contain the token: as `Authorization: Bearer TOKEN`, or as the password
    of Basic authentication, which browsers prompt for. Without a token file all are accepted.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def refusal(self, authorization: str) -> str:
        """Return the reason why a request is refused; empty if it is accepted."""
        if self._path is None:
            return ""
        try:
            if hmac.compare_digest(_token_in(authorization), self.token()):
                return ""
        except ConfigurationError:  # clients must not see the path in its message
            return "The console's token cannot be read, so all requests are refused; see CONSOLE_TOKEN_FILE."
        return "The console needs its token: as the password (any user name), or as Authorization: Bearer TOKEN."

    def token(self) -> bytes:
        """Return the token; empty without a token file.

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


def _token_in(authorization: str) -> bytes:
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip().encode("utf-8", "replace")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""
