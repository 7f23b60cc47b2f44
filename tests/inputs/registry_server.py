"""A small server with the documented HTTP API of a schema registry, and helpers to decode
records."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from stream_dedup.domain.document import DeadLetter, Message
from stream_dedup.inputs.decoder import DecodedDocument, Decoder


class SchemaServer:
    """A registry of schemas by id. `status`, when set, is the reply to every request; `refused`
    maps paths to the status of their reply."""

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.versions: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.status: int | None = None
        self.refused: dict[str, int] = {}
        self.login: str | None = None
        schema_server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                schema_server.asked.append(self.path.split("?")[0])
                self._send(
                    *schema_server.answer(
                        self.path.split("?")[0], self.headers.get("Authorization")
                    )
                )

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._send(200, schema_server.take(self.path.split("?")[0], asked))

            def _send(self, status: int, body: dict[str, Any]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.server.server_port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path: str, login: str | None) -> tuple[int, dict[str, Any]]:
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "told to"}
        if path in self.refused:
            return self.refused[path], {
                "error_code": self.refused[path],
                "message": "there can be none",
            }
        if (
            self.login is not None
            and login != "Basic " + base64.b64encode(self.login.encode()).decode()
        ):
            return 401, {"error_code": 401, "message": "Unauthorized"}
        kind, number = path.rsplit("/", 1)
        if kind == "/schemas/ids" and int(number) in self.schemas:
            return 200, self.schemas[int(number)]
        subject = unquote(kind.removeprefix("/subjects/").removesuffix("/versions"))
        if number.isdecimal() and 1 <= int(number) <= len(self.versions.get(subject, [])):
            found = self.versions[subject][int(number) - 1]
            return 200, {
                "subject": subject,
                "version": int(number),
                "id": found,
                **self.schemas[found],
            }
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def take(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Register a schema if it is new; return its id and version."""
        subject = unquote(path.removeprefix("/subjects/").removesuffix("/versions"))
        known = [
            number
            for number in self.versions.get(subject, [])
            if self.schemas[number]["schema"] == asked["schema"]
        ]
        if not known:
            known = [1_000 + len(self.schemas)]
            self.has(
                known[0],
                asked["schema"],
                subject,
                **{key: asked[key] for key in asked if key != "schema"},
            )
        return {
            "subject": subject,
            "id": known[0],
            "version": self.versions[subject].index(known[0]) + 1,
            **asked,
        }

    def has(self, number: int, schema: Any, subject: str = "", **others: Any) -> None:
        """Add a schema under an id, and as the next version of a subject."""
        self.schemas[number] = {
            "schema": schema if isinstance(schema, str) else json.dumps(schema),
            **others,
        }
        self.versions.setdefault(subject, []).append(number)


@contextmanager
def serving(certificate: tuple[Path, Path] | None = None) -> Iterator[SchemaServer]:
    """Serve schemas until the block ends; by TLS with a certificate and its key."""
    schema_server = SchemaServer(certificate)
    try:
        yield schema_server
    finally:
        schema_server.server.shutdown()
        schema_server.server.server_close()


def decode_document(decoder: Decoder, value: bytes) -> DecodedDocument:
    found = decoder.decode(message(value))
    assert isinstance(found, DecodedDocument), found
    return found


def decode_dead_letter(decoder: Decoder, value: bytes) -> DeadLetter:
    found = decoder.decode(message(value))
    assert isinstance(found, DeadLetter), found
    return found


def message(value: bytes) -> Message:
    return Message("documents", 0, 0, b"key", value, 1, [])
