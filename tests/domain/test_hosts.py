"""Which host an address has, and which site a document."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.domain.hosts import (
    HOST_CHARACTERS_MAX,
    HostNames,
    host_of,
    named_host,
    named_site,
    shown_host,
    site_of,
)


@pytest.mark.parametrize(
    ("address", "host", "shown"),
    [
        ("https://Example.ORG/page", "example.org", "example.org"),
        ("https://www.Example.org/page", "example.org", "example.org"),
        ("https://www.gov.example/", "gov.example", "gov.example"),
        ("https://www.example/", "www.example", "www.example"),
        ("https://wwww.example.org/", "wwww.example.org", "wwww.example.org"),
        ("http://user:secret@example.org:8080/x", "example.org", "example.org"),
        ("http://user:p@ss@example.org/x", "example.org", "example.org"),
        ("https://example.org:/x", "example.org", "example.org"),
        ("https://example.org.?q=1", "example.org", "example.org"),
        ("https://example.org#top", "example.org", "example.org"),
        ("https://example.org\\@other.example/", "example.org", "example.org"),
        ("ftp://files.example.org", "files.example.org", "files.example.org"),
        ("https://my_site.example", "my_site.example", "my_site.example"),
        ("https://192.0.2.7/a/b", "192.0.2.7", "192.0.2.7"),
        ("https://[2001:DB8:0:0::1]:443/", "[2001:db8::1]", "[2001:db8::1]"),
        ("https://[fe80::1%25eth0]/", "[fe80::1]", "[fe80::1]"),
        ("https://bücher.example/", "xn--bcher-kva.example", "bücher.example"),
        ("https://BÜCHER.example/", "xn--bcher-kva.example", "bücher.example"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", "bücher.example"),
        ("https://b%C3%BCcher.example/", "xn--bcher-kva.example", "bücher.example"),
        ("https://www。bücher。example/", "xn--bcher-kva.example", "bücher.example"),
        ("https://www.हिन्दी.भारत/पृष्ठ", "xn--j2bd4cyah0f.xn--h2brj9c", "हिन्दी.भारत"),
        ("https://বাংলা.ভারত:80", "xn--54b7fta0cc.xn--45brj9c", "বাংলা.ভারত"),
        ("http://தமிழ்.இந்தியா./", "xn--rlcus7b3d.xn--xkc2dl3a5ee0h", "தமிழ்.இந்தியா"),
        ("https://ไทย.ไทย?q", "xn--o3cw4h.xn--o3cw4h", "ไทย.ไทย"),
        ("https://💩.example/", "xn--ls8h.example", "💩.example"),
        ("https://xn--zzzzzzzzz99999999/", "xn--zzzzzzzzz99999999", "xn--zzzzzzzzz99999999"),
    ],
)
def test_a_host_has_one_spelling(address: str, host: str, shown: str) -> None:
    """The host of an absolute address, in ASCII for machines and in letters for people; asked
    again, it is the same."""
    names = HostNames()

    assert host_of(address.encode()) == host
    assert shown_host(host) == shown
    assert [names.of(address.encode()) for _ in range(2)] == [shown, shown]


@pytest.mark.parametrize(
    "address",
    [
        b"",
        b"example.org/page",
        b"org.example:https/page",
        b"urn:text:1234",
        b"//example.org/page",
        b"a b://example.org/",
        b"https:/example.org/",
        b"https:///page",
        b"https://:80/",
        b"https://two words/",
        b"https://<script>/",
        b"https://a..example/",
        b"https://.example.org/",
        b"https://a%2fb.example/",
        b"https://[::1/",
        b"https://[::g]/",
        b"https://a:b:c@[/",
        "https://℀.example/".encode(),
        b"https://\xff\xfe.example/",
        b"https://" + b"a" * (HOST_CHARACTERS_MAX + 1),
        b"https://" + b"a." * 2_000_000,
        "https://{}.example/".format("क" * 200_000).encode(),
    ],
    ids=lambda address: repr(address[:30]),
)
def test_an_address_without_a_valid_host_has_none(address: bytes) -> None:
    assert host_of(address) == HostNames().of(address) == ""


def test_bytes_that_are_not_utf8_behind_the_host_do_not_matter() -> None:
    assert host_of(b"https://example.org/caf\xe9") == "example.org"


@pytest.mark.parametrize(
    ("value", "host"),
    [
        (b"Example.org:80", "example.org"),
        (b" www.example.org. ", "example.org"),
        (b"https://a.example/x", "a.example"),
        ("ไทย.ไทย".encode(), "xn--o3cw4h.xn--o3cw4h"),
        (b"[::1]:8080", "[::1]"),
        (b"two words", ""),
        (b"", ""),
    ],
)
def test_a_header_holds_a_name_or_an_address(value: bytes, host: str) -> None:
    assert named_host(value) == host


@pytest.mark.parametrize(
    ("identifier", "site"),
    [
        (b"https://shop.example/1", "shop.example"),
        (b"HTTP://WWW.shop.example/1", "shop.example"),
        (b"ftp://shop.example/1", ""),
        (b"s3://crawl/pages/1", ""),
        (b"doc-7", ""),
    ],
)
def test_only_web_addresses_have_a_site(identifier: bytes, site: str) -> None:
    assert site_of(identifier) == site


@pytest.mark.parametrize(
    ("value", "site"),
    [
        ("WWW.Shop.example:443", "shop.example"),
        ("https://shop.example/a", "shop.example"),
        ("ไทย.ไทย", "xn--o3cw4h.xn--o3cw4h"),
        (" Windows cmdlets ", "Windows cmdlets"),
        ("news/politics", "news/politics"),
        ("\ud800", "\ud800"),
        ("  ", ""),
    ],
)
def test_a_field_names_a_host_or_any_other_site(value: str, site: str) -> None:
    """A host has its one spelling in a field, too; any other name counts as it is."""
    assert named_site(value) == site


def test_ids_that_are_not_addresses_take_no_memory() -> None:
    """Of ten thousand ids of ten kilobytes none is cached, and hosts are."""
    hosts = HostNames()

    assert {hosts.of(b"%010d" % number * 1000) for number in range(10_000)} == {""}
    assert hosts.of(b"https://example.org/page") == "example.org"

    assert sum(map(len, hosts._known)) < 1000


@given(
    st.binary(max_size=300)
    | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.text(alphabet="htps:/\\ \n\t@.[]?#%www0-ü\u200dक्").map(str.encode)
)
def test_any_bytes_have_a_short_and_printable_host(identifier: bytes) -> None:
    """Whatever an id is, its host is short, can be shown, and is found again by what is shown and
    by the cache."""
    for found in (host_of(identifier), host_of(b"https://" + identifier), named_host(identifier)):
        assert len(found) <= HOST_CHARACTERS_MAX
        assert found.isascii()
        assert shown_host(found).isprintable()
        assert not set(shown_host(found)) & set(" <>\"'/&()")
        assert not found or named_host(shown_host(found).encode()) == found
    for address in (identifier, b"https://" + identifier):
        assert HostNames().of(address) == shown_host(host_of(address))
