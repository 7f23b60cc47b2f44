"""Code, schemas, users and pages agree on topics and headers."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest
import yaml
from jsonschema import Draft202012Validator

from stream_dedup.domain import topics
from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import (
    DeadLetter,
    LogPlace,
    Position,
    Reason,
    Representative,
    Stage,
)
from stream_dedup.log import headers
from stream_dedup.log.schema import Judgement
from tests.deploy.tools import ROOT

SCHEMAS = ROOT / "topics" / "schemas"
HEADERS: dict[str, Any] = json.loads((SCHEMAS / "headers.schema.json").read_text())
SIGNALS: dict[str, Any] = json.loads((SCHEMAS / "host-signals.schema.json").read_text())
PAGE = (ROOT / "docs" / "reference" / "headers.md").read_text()
USERS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in (ROOT / "topics" / "users").glob("*.yaml")
}

OUTPUTS = ("unique", "duplicates", "dlq.documents")
CONSTANTS = {
    value
    for name, value in vars(headers).items()
    if name.isupper()
    and not name.startswith("_")
    and isinstance(value, str)
    and value not in {headers.OWN_PREFIX, headers.PRIOR_PREFIX}
}
ON_OUTPUTS = CONSTANTS - {headers.BYPASS}
PLACE = Position("documents", bytes(16), 9, 0)


def is_valid(found: headers.Headers, schema: dict[str, Any] = HEADERS) -> bool:
    texts = {name: None if value is None else value.decode() for name, value in found}
    return Draft202012Validator(schema).is_valid(texts)


def make_verdict_headers(reason: Reason) -> headers.Headers:
    kept = Representative(PLACE, b"https://a.example/1", 1_740_808_800_000)
    is_copy = reason.verdict is not None and reason.verdict.value == "duplicate"
    fields = {"distance": 9, "similarity": 70, "copies": 17, "better": BetterRule.NEWEST}
    judged = Judgement(reason, LogPlace(8812, 17), of=kept if is_copy else None, **fields)
    return headers.of_verdict(PLACE, "words:128:a:b", b"0" * 32, judged)


def make_dead_letter_headers() -> headers.Headers:
    return headers.of_dead_letter(
        DeadLetter("decode", "JSONDecodeError", "It is no JSON."), PLACE, "stream-dedup", 1
    )


def test_each_header_of_the_code_is_in_schema_and_page() -> None:
    """Schema and page list exactly the headers of the code."""
    in_schema = {name for topic in OUTPUTS for name in HEADERS["$defs"][topic]["properties"]}
    in_page = set(re.findall(r"^\| `((?:dedup|__dlq)\.[^`]+)` \|", PAGE, re.MULTILINE))

    assert in_schema == ON_OUTPUTS
    assert in_page - {"dedup.reason"} == CONSTANTS - {"dedup.reason"}


def test_each_reason_of_the_code_is_in_schema_and_page() -> None:
    in_code = {
        reason.label: reason.verdict.value for reason in Reason if reason.verdict is not None
    }
    in_schema = {
        label: verdict
        for verdict, name in (("unique", "unique-reason"), ("duplicate", "duplicate-reason"))
        for label in HEADERS["$defs"][name]["enum"]
    }
    in_page = dict(re.findall(r"^\| `([a-z-]+)` \| (unique|duplicate) \|", PAGE, re.MULTILINE))

    assert in_schema == in_page == in_code


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.verdict is not None])
def test_the_headers_of_a_verdict_are_valid(reason: Reason) -> None:
    """Headers are valid as the code writes them; a missing or forged header is not."""
    written = make_verdict_headers(reason)

    assert is_valid(written)
    came: headers.Headers = [("content-type", b"text/html"), ("dedup.verdict", b"forged")]
    assert is_valid([*headers.escape_source_headers(came), *written])
    assert not is_valid([*written, ("dedup.of.nothing", b"1")])
    assert not is_valid(
        [(name, b"other" if name == headers.VERDICT else value) for name, value in written]
    )
    assert not is_valid([header for header in written if header[0] != headers.REASON])


def test_the_headers_of_a_dead_letter_are_valid() -> None:
    """Headers as the code writes them are valid, also if a value was cut; other stages are not."""
    found = set(HEADERS["$defs"]["dlq.documents"]["properties"]["dedup.error.stage"]["enum"])
    assert found == set(get_args(Stage))
    assert is_valid(make_dead_letter_headers())
    assert is_valid([*make_dead_letter_headers(), (headers.ERROR_TRUNCATED, b"5242880")])
    assert is_valid(
        [
            *make_dead_letter_headers(),
            (headers.ERROR_KEY_TRUNCATED, b"5242880"),
            (headers.ERROR_HEADERS_DROPPED, b"1"),
        ]
    )
    assert is_valid(
        [*make_dead_letter_headers(), (headers.ERROR_HEADERS_UNREADABLE, rb"r\xe9f\xe9rent")]
    )
    assert not is_valid([*make_dead_letter_headers(), (headers.ERROR_HEADERS_DROPPED, b"one")])
    assert not is_valid([*make_dead_letter_headers(), (headers.VERDICT, b"unique")])
    assert not is_valid(
        [
            (name, b"parse" if name == headers.ERROR_STAGE else value)
            for name, value in make_dead_letter_headers()
        ]
    )


def test_a_host_signal() -> None:
    signal = {
        "host": "a.example",
        "documents": 1200,
        "duplicate_ratio": 0.38,
        "unchanged_ratio": 0.2,
        "bytes_wasted": 5_000_000,
        "last_change": None,
        "window_seconds": 3600,
        "updated": "2025-03-01T06:00:00Z",
    }
    Draft202012Validator.check_schema(SIGNALS)
    Draft202012Validator.check_schema(HEADERS)
    check = Draft202012Validator(SIGNALS)

    assert check.is_valid(signal)
    assert not check.is_valid(signal | {"duplicate_ratio": 1.2})
    found = {"duplicate_ratio", "unchanged_ratio", "bytes_wasted", "last_change"}
    assert found <= set(SIGNALS["required"])
    assert not check.is_valid(
        {name: value for name, value in signal.items() if name != "last_change"}
    )


def acls(user: str) -> dict[tuple[str, str], set[str]]:
    return {
        (acl["resource"]["type"], acl["resource"]["name"]): set(acl["operations"])
        for acl in USERS[user]["spec"]["authorization"]["acls"]
    }


def test_users_name_topics_that_exist() -> None:
    known = set(topics.ALL)
    written = set()
    for user in USERS:
        found = {name for kind, name in acls(user) if kind == "topic"}
        assert found <= known, user
        written |= {
            name
            for (kind, name), operations in acls(user).items()
            if kind == "topic" and "Write" in operations
        }
    assert known == written


def test_nobody_can_harm_the_log() -> None:
    for user in USERS:
        assert not any(
            {"Delete", "All", "ClusterAction"} & operations for operations in acls(user).values()
        ), user
        assert "Alter" not in acls(user).get(("topic", "fingerprints"), set()), user
    found = [user for user in USERS if "Write" in acls(user).get(("topic", "fingerprints"), set())]
    assert found == ["worker"]
    found = [user for user in USERS if "Write" in acls(user).get(("topic", "verdicts"), set())]
    assert found == ["index"]
    assert acls("crawler")["topic", "documents"] == {"Write", "Describe"}
