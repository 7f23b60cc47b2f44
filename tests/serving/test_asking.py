"""Requests to the first of several addresses where a role answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stream_dedup.domain.errors import ConfigurationError, InputError, StreamDedupError
from stream_dedup.domain.problem_details import PROBLEM_TYPE, problem, problem_bytes
from stream_dedup.serving.http_client import ask_role
from tests.serving.serving import serving

NOBODY = "http://127.0.0.1:9"

Serve = Callable[[int, bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that serves a response at `/v1/own` and returns its address."""
    with ExitStack() as opened:

        def serve_response(status: int, body: bytes) -> str:
            async def answer(_: Request) -> Response:
                return Response(body, status, None, PROBLEM_TYPE)

            return (
                f"http://127.0.0.1:{opened.enter_context(serving([Route('/v1/own', answer)])).port}"
            )

        yield serve_response


def ask(*bases: str, path: str = "/v1/own") -> tuple[str, object]:
    return ask_role("index", bases, path, "Start one.")


def test_a_server_without_the_path_is_skipped(serve: Serve) -> None:
    other = serve(404, problem_bytes(404, "elsewhere", paths=["/livez"]))
    stranger = serve(404, b'{"error": "none"}')
    page, right = serve(200, b"<html>"), serve(200, b'{"found": 1}')

    found = ask(NOBODY, other, stranger, page, right, serve(200, b'{"found": 2}'))
    assert found == (right, {"found": 1})


def test_a_missing_role_is_reported_with_the_addresses(serve: Serve) -> None:
    other = serve(200, b"{}")

    with pytest.raises(InputError) as raised:
        ask(NOBODY, other, path="/v1/similar")

    assert str(raised.value) == (
        f"No index answers at {NOBODY} (Connection refused) or {other} (another role answers "
        "there). Start one."
    )
    with pytest.raises(
        InputError, match=r"^'ftp://x' is not the URL of an index; write it as http://HOST:PORT\.$"
    ):
        ask("ftp://x")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InputError),
        (401, InputError),
        (404, InputError),
        (409, ConfigurationError),
        (500, StreamDedupError),
        (503, StreamDedupError),
    ],
)
def test_a_refusal_ends_the_search_for_a_role(
    serve: Serve, status: int, error: type[Exception]
) -> None:
    """A refusal as a problem is the role's own, whatever its status; who set it up otherwise must
    act."""
    refusing = serve(status, problem_bytes(status, "It is so."))

    with pytest.raises(StreamDedupError) as raised:
        ask(refusing, serve(200, b'{"found": 1}'))

    expected = (error, f"The index at {refusing} answers: It is so.")
    assert (type(raised.value), str(raised.value)) == expected


def test_a_problem_follows_the_rfc() -> None:
    """The title is the status's own phrase; half of a surrogate pair, which has no UTF-8, is sent
    as any other text."""
    expected = {"type": "about:blank", "title": "Conflict", "status": 409, "detail": "No."}
    assert problem(409, "No.") == expected
    assert json.loads(problem_bytes(404, "\ud800", paths=["/a"]))["detail"] == "\ud800"
