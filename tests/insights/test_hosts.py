"""Which host a document belongs to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.insights.hosts import HOST_CHARACTERS_MAX, HostNames


@pytest.mark.parametrize(
    ("identifier", "host"),
    [
        ("https://Example.ORG/page", "example.org"),
        ("http://user:secret@example.org:8080/x", "example.org"),
        ("https://example.org.?q=1", "example.org"),
        ("https://example.org#top", "example.org"),
        ("ftp://files.example.org", "files.example.org"),
        ("https://bücher.example/", "bücher.example"),
        ("https://[2001:db8::1]:443/", "[2001:db8::1]"),
        ("https://192.0.2.7/a/b", "192.0.2.7"),
        ("", ""),
        ("example.org/page", ""),
        ("org.example:https/page", ""),
        ("//example.org/page", ""),
        ("a b://example.org/", ""),
        ("https:///page", ""),
        ("https://two words/", ""),
        ("https://<script>/", ""),
        ("https://" + "a" * (HOST_CHARACTERS_MAX + 1), ""),
    ],
)
def test_the_host_of_an_id(identifier: str, host: str) -> None:
    """The host of an absolute URL, in one spelling; what could be no host has none. Asked again, it
    is the same."""
    names = HostNames()

    assert names.of(identifier.encode()) == host
    assert names.of(identifier.encode()) == host


@pytest.mark.parametrize(
    ("value", "host"),
    [(b"Example.org:80", "example.org"), (b"https://a.example/x", "a.example"), (b"", "")],
)
def test_a_header_holds_a_name_or_a_url(value: bytes, host: str) -> None:
    assert HostNames().named(value) == host


def test_ids_that_are_no_urls_take_no_memory() -> None:
    """Of ten thousand ids of ten kilobytes none is remembered, and hosts are."""
    hosts = HostNames()

    assert {hosts.of(b"%010d" % number * 1000) for number in range(10_000)} == {""}
    assert hosts.of(b"https://example.org/page") == "example.org"

    assert sum(map(len, hosts._known)) < 1000


@given(st.binary(max_size=300))
def test_no_bytes_break_it(identifier: bytes) -> None:
    """Whatever an id is, its host is short and can be shown."""
    for found in (
        HostNames().of(identifier),
        HostNames().of(b"https://" + identifier),
        HostNames().named(identifier),
    ):
        assert len(found) <= HOST_CHARACTERS_MAX
        assert found.isprintable()
        assert not set(found) & set(" <>\"'/&()")
