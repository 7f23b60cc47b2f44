"""Who may read the console: everybody who reaches the port, or those who have the token of a file.

Invariants: the token is compared in constant time and never logged or shown; the file is read anew
when it changes, so that a token is replaced without a restart; a file that cannot be read, or is
empty, lets nobody in.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from pathlib import Path


class TokenGuard:
    """Lets in requests with the token: `Authorization: Bearer TOKEN`, or as the password of Basic,
    which browsers ask for.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._read: tuple[tuple[int, int], bytes] | None = None

    def refuses(self, authorization: str) -> str:
        """Return why a request is not let in; nothing if it is."""
        if self._path is None:
            return ""
        try:
            state = self._path.stat()
            stamp = state.st_mtime_ns, state.st_size
            if self._read is None or self._read[0] != stamp:
                self._read = stamp, self._path.read_bytes().strip()
        except OSError as error:
            return f"The console's token cannot be read ({error.strerror}), so nobody is let in; see CONSOLE_TOKEN_FILE."
        token = self._read[1]
        if not token:
            return "The file of the console's token is empty, so nobody is let in; see CONSOLE_TOKEN_FILE."
        if hmac.compare_digest(_given(authorization), token):
            return ""
        return "The console asks for its token: as the password (any user name), or as Authorization: Bearer TOKEN."


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
