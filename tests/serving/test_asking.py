"""A question to whichever of some addresses has a role."""

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
    """Serve an answer at `/v1/own`, and return at which address."""
    with ExitStack() as opened:

        def served(status: int, body: bytes) -> str:
            async def own(_: Request) -> Response:
                return Response(body, status, None, PROBLEM_TYPE)

            return f"http://127.0.0.1:{opened.enter_context(serving([Route('/v1/own', own)])).port}"

        yield served


def asked(*bases: str, path: str = "/v1/own") -> tuple[str, object]:
    return ask_role("index", bases, path, "Start one.")


def test_who_has_not_the_path_is_passed_over(serve: Serve) -> None:
    other = serve(404, problem_bytes(404, "elsewhere", paths=["/livez"]))
    stranger = serve(404, b'{"error": "none"}')
    page, right = serve(200, b"<html>"), serve(200, b'{"found": 1}')

    found = asked(NOBODY, other, stranger, page, right, serve(200, b'{"found": 2}'))
    assert found == (right, {"found": 1})


def test_nobody_is_told_with_who_was_asked_and_what_to_do(serve: Serve) -> None:
    other = serve(200, b"{}")

    with pytest.raises(InputError) as raised:
        asked(NOBODY, other, path="/v1/similar")

    assert str(raised.value) == (
        f"No index answers at {NOBODY} (Connection refused) or {other} (another role answers "
        "there). Start one."
    )
    with pytest.raises(
        InputError, match=r"^'ftp://x' is not the URL of an index; write it as http://HOST:PORT\.$"
    ):
        asked("ftp://x")


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
def test_a_refusal_ends_the_walk_with_its_sentence(
    serve: Serve, status: int, error: type[Exception]
) -> None:
    """A refusal as a problem is the role's own, whatever its status; who set it up otherwise must
    act."""
    refusing = serve(status, problem_bytes(status, "It is so."))

    with pytest.raises(StreamDedupError) as raised:
        asked(refusing, serve(200, b'{"found": 1}'))

    expected = (error, f"The index at {refusing} answers: It is so.")
    assert (type(raised.value), str(raised.value)) == expected


def test_a_problem_is_that_of_the_rfc_whatever_it_says() -> None:
    """The title is the status's own phrase; half of a surrogate pair, which has no UTF-8, is sent
    as any other text."""
    expected = {"type": "about:blank", "title": "Conflict", "status": 409, "detail": "No."}
    assert problem(409, "No.") == expected
    assert json.loads(problem_bytes(404, "\ud800", paths=["/a"]))["detail"] == "\ud800"
