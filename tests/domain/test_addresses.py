"""Which text addresses may be read, and what messages show of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.domain.addresses import (
    TextAddress,
    checked,
    has_credentials,
    parse_prefixes,
    shown,
)

PREFIXES = parse_prefixes(
    "s3://crawl/pages, https://store.example:8443/a/, gs://crawl, file:///srv/pages, "
    "abfs://box@acc.example/a"
)


@pytest.mark.parametrize(
    ("address", "origin", "path"),
    [
        ("s3://crawl/pages/2026/a.html.gz", "s3://crawl", "/pages/2026/a.html.gz"),
        ("s3://crawl/pages/with a space", "s3://crawl", "/pages/with a space"),
        ("s3://crawl/pages/a/..b/c..", "s3://crawl", "/pages/a/..b/c.."),
        ("S3://crawl/pages/Ünïcode", "s3://crawl", "/pages/Ünïcode"),
        ("https://STORE.example:8443/a/b?sign=1", "https://store.example:8443", "/a/b"),
        ("gs://crawl/x", "gs://crawl", "/x"),
        ("file:///srv/pages/why?not#here", "file://", "/srv/pages/why?not#here"),
        ("abfs://box@acc.example/a/b", "abfs://box@acc.example", "/a/b"),
    ],
)
def test_what_a_prefix_allows_is_read(address: str, origin: str, path: str) -> None:
    found = checked(address, PREFIXES)
    assert isinstance(found, TextAddress)
    assert (found.origin, found.path) == (origin, path)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("s3://crawl/pages-of-others/a", "none of the prefixes"),
        ("s3://crawl/Pages/a", "none of the prefixes"),
        ("s3://crawl2/pages/a", "none of the prefixes"),
        ("https://store.example/a/b", "none of the prefixes"),
        ("http://store.example:8443/a/b", "none of the prefixes"),
        ("https://store.example.evil.example:8443/a/b", "none of the prefixes"),
        ("gs://crawler/x", "none of the prefixes"),
        ("file:///etc/passwd", "none of the prefixes"),
        ("s3://crawl/pages/../secret", "contains . or .."),
        ("file:///srv/pages/../../etc/passwd", "contains . or .."),
        ("https://store.example:8443/a/%2e%2e/b", "contains . or .."),
        ("https://store.example:8443/a/..%2fb", "contains . or .."),
        ("https://store.example:8443/a/..;x/b", "contains . or .."),
        ("https://store.example:8443/a/..\\b", "backslash"),
        ("https://store.example:8443/a b", "%20"),
        ("https://me:secret@store.example:8443/a/b", "password"),
        ("https://me@store.example:8443/a/b", "password"),
        ("https://store.example:8443@evil.example/a/b", "password"),
        ("s3://KEY:secret@crawl/pages/a", "password"),
        ("https://störe.example/a", "ASCII"),
        ("https:///a/b", "ASCII"),
        ("s3:///pages", "names no bucket"),
        ("file://host/srv/pages/a", "file:///"),
        ("ftp://store.example/a", "'ftp'"),
        ("zip://a::https://store.example:8443/a/b", "'zip'"),
        ("/srv/pages/a", "not an address with a scheme"),
        ("", "not an address with a scheme"),
        ("s3://crawl/pages/a\n", "control character"),
        ("s3://crawl/pages/\udc80", "control character"),
        (" s3://crawl/pages/a", "space"),
        ("s3://crawl/pages/" + "a" * 5000, "longer than"),
    ],
)
def test_everything_else_is_refused_with_the_reason(address: str, why: str) -> None:
    found = checked(address, PREFIXES)
    assert isinstance(found, str)
    assert why in found
    assert "secret@" not in found


@pytest.mark.parametrize(
    ("why", "prefixes"),
    [
        (
            r"prefix|must begin",
            ["", " , ", "crawl/pages", "ftp://a/b", "https://a/..", "s3://a/b?c", "https://u:p@a"],
        ),
        (
            "cannot be a prefix: it names no bucket",
            ["s3://", "S3:///", "gs://crawl, s3a://", "abfs://", "s3:///pages"],
        ),
        ("cannot be a prefix: it names no folder", ["file:///", "memory://"]),
        ("cannot be a prefix: it names no host", ["https://"]),
    ],
)
def test_a_prefix_that_could_allow_nothing_or_too_much_is_refused(
    why: str, prefixes: list[str]
) -> None:
    """A scheme alone would allow all that the worker's credentials do, and on a disk every file."""
    for written in prefixes:
        with pytest.raises(ValueError, match=why):
            parse_prefixes(written)


@given(
    st.text(max_size=60),
    st.sampled_from(
        ["", "s3://crawl/pages/", "https://store.example:8443/a/", "file:///srv/pages/"]
    ),
)
def test_any_address_is_below_a_prefix_or_is_refused(rest: str, front: str) -> None:
    found = checked(front + rest, PREFIXES)
    if isinstance(found, TextAddress):
        assert any(found.url.startswith(f"{prefix}/") for prefix in PREFIXES)
        assert not {".", ".."} & set(found.path.split("/"))
    else:
        assert found.endswith(".")
        assert found.isprintable()


def test_a_shown_address_contains_no_secret() -> None:
    assert (
        shown("https://me:secret@store.example/a?X-Signature=secret")
        == "https://***@store.example/a?..."
    )
    assert shown("s3://crawl/pages/\x1b[2J") == "s3://crawl/pages/\\x1b[2J"
    assert len(shown("s3://crawl/" + "a" * 9000)) <= 300


@pytest.mark.parametrize(
    "address",
    [
        *("s3://KEY:SECRET@bucket/x", "s3://KEY:SEC/RET@bucket/x", "s3://KEY@bucket/x"),
        *("https://me:SECRET@store.example/a", "https://me:SEC/RET@store.example/a"),
        *("abfs://container:SECRET@account/x", "hf://me:SECRET@datasets/x", "S3://KEY:SECRET@b"),
    ],
)
def test_credentials_are_detected_and_never_shown(address: str) -> None:
    assert has_credentials(address)
    assert "SEC" not in shown(address)


@pytest.mark.parametrize(
    "address",
    [
        *("s3://bucket/a@b", "s3://bucket/a:b@c", "https://store.example:8080/@me", "abfs://c@a/x"),
        *("hf://datasets/me/crawl@main/x.parquet", "file:///srv/a@b", "a@b", "memory://x/y"),
    ],
)
def test_an_at_sign_elsewhere_is_no_credential(address: str) -> None:
    assert not has_credentials(address)
