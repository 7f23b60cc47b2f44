"""Texts that are stored elsewhere: the fetcher returns them, or says that one is missing or
away."""

from __future__ import annotations

import gzip
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dedup.domain.addresses import TextAddress, parse_prefixes
from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import ConfigurationError, TextAwayError
from stream_dedup.domain.extras import install_command
from stream_dedup.inputs import stores
from stream_dedup.inputs.claim_checks import Fetched, FetchLimits, TextFetcher
from stream_dedup.inputs.compressed import unpack
from tests.inputs.store_server import Pages, Reply, serving
from tests.tiers import few
from tests.waiting import wait_until

KB = 1 << 10
LIMITS = FetchLimits(at_once=8, text_bytes=100 * KB, attempt_seconds=5.0)
BOMB = gzip.compress(bytes(200 << 20), 9)


def fetcher(prefixes: str, fetch_limits: FetchLimits = LIMITS) -> TextFetcher:
    return TextFetcher(parse_prefixes(prefixes), fetch_limits)


def address_of(text_fetcher: TextFetcher, written: str) -> TextAddress:
    found = text_fetcher.check(written)
    assert isinstance(found, TextAddress), found
    return found


def fetch(text_fetcher: TextFetcher, written: str) -> Fetched:
    return text_fetcher.fetch_one(address_of(text_fetcher, written))


def letter(found: Fetched) -> tuple[str, str]:
    assert isinstance(found, DeadLetter), found
    assert found.stage == "fetch"
    assert found.can_vary
    return found.error_class, found.message


def fetch_all(
    text_fetcher: TextFetcher, written: list[str], stretch_bytes: int = 64 * KB
) -> list[Fetched]:
    """Return all texts; call `fetch` as often as needed."""
    addresses = [address_of(text_fetcher, address) for address in written]
    found: list[Fetched] = []
    while len(found) < len(addresses):
        found += text_fetcher.fetch(addresses, len(found), stretch_bytes, 2 * stretch_bytes)
    return found


# -- texts that exist


GZIP, ZSTD = gzip.compress, zstandard.compress
PACKED: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "as it is": ("/one.html", b"the text", {}),
    "gzip": ("/plain", GZIP(b"the text"), {}),
    "gzip by name": ("/named.gz", GZIP(b"the ") + GZIP(b"text"), {}),
    "gzip as encoding": ("/encoded", GZIP(b"the text"), {"Content-Encoding": "gzip"}),
    "gzip as both": ("/both.gz", GZIP(b"the text"), {"Content-Encoding": "gzip"}),
    "zstd": ("/plain", ZSTD(b"the text"), {}),
    "zstd by name": ("/named.zst", ZSTD(b"the ") + ZSTD(b"text"), {}),
    "gzip by a name in capitals": ("/NAMED.GZ", GZIP(b"the text"), {}),
}


@pytest.mark.parametrize("how", PACKED)
def test_what_is_packed_is_unpacked(pages: Pages, how: str) -> None:
    name, packed, headers = PACKED[how]
    pages.by_path[name] = Reply(packed, headers=headers)
    assert fetch(fetcher(pages.url), pages.url + name) == b"the text"


def test_many_texts_are_fetched_concurrently_and_returned_in_order(pages: Pages) -> None:
    pages.delay_seconds = 0.05
    for number in range(40):
        pages.by_path[f"/{number}"] = Reply(b"text %d" % number)
    found = fetch_all(fetcher(pages.url), [f"{pages.url}/{number}" for number in range(40)])
    assert found == [b"text %d" % number for number in range(40)]
    assert pages.at_once_max == LIMITS.at_once


def test_a_text_requested_again_much_later_is_read_again(pages: Pages) -> None:
    for number in range(8):
        pages.by_path[f"/{number}"] = Reply(b"%d" % number * 50 * KB)
    asked = [0, *range(8), 0, 1]
    found = fetch_all(fetcher(pages.url), [f"{pages.url}/{number}" for number in asked])
    shown = [text[:1] for text in found if isinstance(text, bytes)]
    assert shown == [b"%d" % number for number in asked]


def test_texts_are_read_from_memory_and_disk(tmp_path: Path) -> None:
    system = fsspec.filesystem("memory")
    system.pipe_file("/fetched/a.gz", gzip.compress(b"from memory"))
    (tmp_path / "a").write_bytes(b"from disk")
    text_fetcher = fetcher(f"memory://fetched,file://{tmp_path}")
    found = fetch_all(text_fetcher, ["memory://fetched/a.gz", f"file://{tmp_path}/a"])
    assert found == [b"from memory", b"from disk"]


# -- missing for good


def moved(address: str) -> Reply:
    return Reply(status=302, headers={"Location": address})


@pytest.mark.parametrize(
    ("reply", "kind", "message_part"),
    [
        (Reply(status=404), "NotFound", "does not exist"),
        (Reply(status=410), "Refused", "410"),
        (Reply(bytes(101 * KB)), "TooLarge", "more than 102400 bytes"),
        (Reply(BOMB), "TooLarge", "more than 102400 bytes"),
        (Reply(BOMB[:80_000]), "TooLarge", "after it is unpacked"),
        (Reply(zstandard.compress(bytes(200 << 20))), "TooLarge", "after it is unpacked"),
        (Reply(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), "NotText", "not text"),
        (Reply(b"%PDF-1.7 and so on"), "NotText", "not text"),
        (Reply(gzip.compress(b"text")[:-4]), "Damaged", "cannot be unpacked"),
        (Reply(zstandard.compress(b"text")[:-4]), "Damaged", "cannot be unpacked"),
        (Reply(b"x", headers={"Content-Encoding": "br"}), "NotText", "compressed with br"),
        (moved("http://127.0.0.2:1/a"), "Redirected", "another host"),
        (moved("http://me:secret@127.0.0.1/"), "Redirected", "another host"),
        (moved("/secret"), "Redirected", "is not allowed"),
        (moved("/a/x/../../secret"), "Redirected", "is not allowed"),
        (moved("file:///etc/passwd"), "Redirected", "is not allowed"),
        (Reply(status=301, headers={"Location": "/a/b"}), "Redirected", "more than 5 times"),
        (Reply(status=301), "Redirected", "more than 5 times"),
    ],
)
def test_a_text_missing_for_good_is_a_dead_letter_with_the_address(
    pages: Pages, reply: Reply, kind: str, message_part: str
) -> None:
    pages.by_path["/a/b"] = reply
    pages.by_path["/secret"] = Reply(b"secret")
    found, message = letter(fetch(fetcher(pages.url + "/a"), pages.url + "/a/b"))
    assert found == kind
    assert message_part in message
    assert f"{pages.url}/a/b" in message
    assert "secret@" not in message


def test_a_redirect_is_followed_only_on_the_same_host(
    pages: Pages,
) -> None:
    with serving() as others:
        others.by_path["/a"] = Reply(b"secret")
        pages.by_path["/a"] = Reply(status=307, headers={"Location": others.url + "/a"})
        pages.by_path |= {
            "/old": Reply(status=302, headers={"Location": "/new"}),
            "/new": Reply(b"moved"),
        }
        text_fetcher = fetcher(f"{pages.url},{others.url}")
        assert letter(fetch(text_fetcher, pages.url + "/a"))[0] == "Redirected"
        assert fetch(text_fetcher, pages.url + "/old") == b"moved"
        assert others.asked == []


def test_an_endless_text_is_too_large(pages: Pages) -> None:
    pages.by_path["/a"] = Reply(worse=pages.endless)
    assert letter(fetch(fetcher(pages.url), pages.url + "/a"))[0] == "TooLarge"


def test_403_is_permanent_once_the_origin_has_served_a_text(pages: Pages) -> None:
    pages.by_path |= {"/a": Reply(b"text"), "/b": Reply(status=403)}
    text_fetcher = fetcher(pages.url)
    with pytest.raises(TextAwayError, match="check the credentials"):
        fetch(text_fetcher, pages.url + "/b")
    assert fetch(text_fetcher, pages.url + "/a") == b"text"
    assert letter(fetch(text_fetcher, pages.url + "/b"))[0] == "Forbidden"


def test_on_disk_no_path_leads_out_of_the_prefix(tmp_path: Path) -> None:
    pages, secret = tmp_path / "pages", tmp_path / "secret"
    pages.mkdir()
    secret.write_bytes(b"secret")
    (pages / "out").symlink_to(secret)
    (pages / "folder").mkdir()
    os.mkfifo(pages / "pipe")
    (pages / "large").write_bytes(bytes(101 * KB))
    (pages / "real").write_bytes(b"text")
    (pages / "in").symlink_to(pages / "real")
    text_fetcher = fetcher(f"file://{pages}")
    kinds = {
        name: letter(fetch(text_fetcher, f"file://{pages}/{name}"))[0]
        for name in ("out", "folder", "pipe", "large", "none")
    }
    assert kinds == {
        "out": "AddressRefused",
        "folder": "NotFound",
        "pipe": "NotFound",
        "large": "TooLarge",
        "none": "NotFound",
    }
    assert fetch(text_fetcher, f"file://{pages}/in") == b"text"


def test_an_address_outside_the_prefixes_is_refused_without_a_request(pages: Pages) -> None:
    found = fetcher(pages.url + "/a").check(pages.url + "/b")
    assert isinstance(found, DeadLetter)
    assert (found.stage, found.error_class, found.can_vary) == ("fetch", "AddressRefused", False)
    assert pages.asked == []


# -- temporarily unavailable

CODES = ("503", "429", "401")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        *zip(CODES, CODES, strict=True),
        ("half_closed", "is unavailable"),
        ("silent", "within 0.2 s"),
        ("slow", "within 0.2 s"),
    ],
)
def test_an_unavailable_text_is_tried_three_times_and_then_raised(
    pages: Pages, name: str, pattern: str
) -> None:
    worse: Any = getattr(pages, name, None)
    if name == "slow":
        pages.delay_seconds = 1.0
    reply = Reply(
        b"text" if name == "slow" else b"", int(name) if name.isdecimal() else 200, worse=worse
    )
    pages.by_path["/a?signature=secret"] = reply
    text_fetcher = fetcher(pages.url, LIMITS._replace(attempt_seconds=0.2))
    with pytest.raises(TextAwayError, match=pattern) as caught:
        fetch(text_fetcher, pages.url + "/a?signature=secret")
    assert str(caught.value).startswith(f"The text at {pages.url}/a?... ")
    assert "secret" not in str(caught.value)
    assert len(pages.asked) == 3


def test_a_refused_connection_is_unavailable(pages: Pages) -> None:
    text_fetcher = fetcher("http://127.0.0.1:1")
    with pytest.raises(TextAwayError, match="is unavailable"):
        fetch(text_fetcher, "http://127.0.0.1:1/a")


def test_a_text_is_returned_at_the_second_attempt(pages: Pages) -> None:
    replies = [Reply(b"text"), Reply(status=500)]
    pages.by_path["/a"] = replies.pop
    assert fetch(fetcher(pages.url), pages.url + "/a") == b"text"


def test_texts_before_an_unavailable_one_are_returned_and_later_ones_are_kept(pages: Pages) -> None:
    for number in range(6):
        pages.by_path[f"/{number}"] = Reply(b"text %d" % number)
    pages.by_path["/2"] = Reply(status=503)
    text_fetcher = fetcher(pages.url)
    addresses = [address_of(text_fetcher, f"{pages.url}/{number}") for number in range(6)]
    assert text_fetcher.fetch(addresses, 0, 64 * KB, 128 * KB) == [b"text 0", b"text 1"]
    for _ in range(3):
        with pytest.raises(TextAwayError, match="/2 "):
            text_fetcher.fetch(addresses[2:], 0, 64 * KB, 128 * KB)
    pages.by_path["/2"] = Reply(b"text 2")
    found = fetch_all(text_fetcher, [f"{pages.url}/{number}" for number in range(2, 6)])
    assert found == [b"text %d" % number for number in range(2, 6)]
    assert [pages.asked.count(f"/{number}") for number in (0, 1, 3, 4, 5)] == [1] * 5


def test_an_unavailable_store_is_not_asked_for_every_text(pages: Pages) -> None:
    text_fetcher = fetcher(pages.url)
    for number in range(100):
        pages.by_path[f"/{number}"] = Reply(status=503)
    with pytest.raises(TextAwayError):
        text_fetcher.fetch(
            [address_of(text_fetcher, f"{pages.url}/{number}") for number in range(100)],
            0,
            64 * KB,
            128 * KB,
        )
    wait_until(lambda: not text_fetcher._running)
    assert len(set(pages.asked)) <= 2 * LIMITS.at_once


def test_a_hurried_fetch_does_not_wait_and_unrequested_texts_are_given_up(
    pages: Pages,
) -> None:
    pages.by_path |= {"/a": Reply(worse=pages.silent), "/b": Reply(b"text")}
    text_fetcher = fetcher(pages.url, LIMITS._replace(attempt_seconds=60.0))
    began = time.monotonic()
    with pytest.raises(TextAwayError, match="is not fetched yet"):
        text_fetcher.fetch(
            [address_of(text_fetcher, pages.url + "/a")],
            0,
            64 * KB,
            128 * KB,
            lambda: bool(pages.asked),
        )
    assert time.monotonic() - began < 10
    assert fetch(text_fetcher, pages.url + "/b") == b"text"
    wait_until(lambda: not text_fetcher._running)
    assert (text_fetcher._found, text_fetcher._reserved_bytes) == ({}, 0)


# -- unavailable for too long


class Rounds:
    """A fetcher whose clock moves by hand, asked for one text again and again."""

    def __init__(self, pages: Pages, patience_seconds: float = 600.0, seconds: float = 5.0) -> None:
        self.now = 0.0
        fetch_limits = LIMITS._replace(patience_seconds=patience_seconds, attempt_seconds=seconds)
        self.text_fetcher = TextFetcher([pages.url], fetch_limits, lambda: self.now)
        self.url = pages.url

    def ask(self, path: str, rounds: int) -> tuple[int, Fetched | None]:
        """Return the number of rounds until there is a text or a letter, and that; each takes 30
        s."""
        for number in range(1, rounds + 1):
            try:
                return number, fetch(self.text_fetcher, self.url + path)
            except TextAwayError:
                wait_until(lambda: self.text_fetcher._probed is None)
                self.now += 30.0
        return rounds, None


@pytest.mark.parametrize("how", few(["401", "429", "503", "silent"]))
def test_a_text_unavailable_while_its_store_serves_others_is_given_up(
    pages: Pages, how: str
) -> None:
    worse = pages.silent if how == "silent" else None
    pages.by_path |= {
        "/a": Reply(b"text"),
        "/b?secret": Reply(status=200 if worse else int(how), worse=worse),
    }
    rounds = Rounds(pages, seconds=0.1 if worse else 5.0)
    assert rounds.ask("/a", 1) == (1, b"text")
    asked, found = rounds.ask("/b?secret", 100)
    assert found is not None
    kind, message = letter(found)
    assert kind == "GivenUp"
    assert f"/b?... {'was not read within' if worse else 'is '}" in message
    assert f" s, while {pages.url} returned other texts; redrive it later." in message
    assert "secret" not in message
    assert 20 <= asked <= 23
    assert 5 <= pages.asked.count("/a") <= 23, "what was given is asked for again now and then"
    assert rounds.ask("/a", 1) == (1, b"text")


@pytest.mark.thorough
def test_nothing_is_given_up_while_its_store_serves_no_text(pages: Pages) -> None:
    """Neither a long outage counts nor being the first text requested after it."""
    pages.by_path |= {"/a": Reply(b"text"), "/b": Reply(status=503)}
    rounds = Rounds(pages)
    assert rounds.ask("/b", 50) == (50, None), "it has never answered"
    assert rounds.ask("/a", 1) == (1, b"text")
    pages.instead = Reply(status=503)
    assert rounds.ask("/b", 200) == (200, None)
    pages.instead = None
    assert rounds.ask("/b", 15) == (15, None)
    assert letter(rounds.ask("/b", 10)[1] or b"")[0] == "GivenUp"


def test_a_text_that_takes_longer_than_the_patience_is_given_up_at_once(pages: Pages) -> None:
    """Three attempts may take longer than the patience, while other texts arrive."""
    pages.by_path |= {"/a": Reply(b"text"), "/b": Reply(worse=pages.silent)}
    text_fetcher = fetcher(pages.url, LIMITS._replace(attempt_seconds=0.2, patience_seconds=0.3))
    addresses = [
        address_of(text_fetcher, pages.url + "/b"),
        address_of(text_fetcher, pages.url + "/a"),
    ]
    until_seconds = time.monotonic() + 20
    given_up, text = text_fetcher.fetch(
        addresses, 0, 64 * KB, 128 * KB, lambda: time.monotonic() > until_seconds
    )
    assert letter(given_up)[0] == "GivenUp"
    assert text == b"text"


# -- bounds


def test_reserved_memory_is_bounded_and_every_text_is_returned(pages: Pages) -> None:
    sizes = [(number * 7919) % (90 * KB) for number in range(60)]
    for number, size in enumerate(sizes):
        headers = {} if number % 2 else {"Transfer-Encoding": "chunked"}
        body = (
            b"%x\r\n" % size + b"x" * size + b"\r\n0\r\n\r\n" if headers and size else b"x" * size
        )
        if headers and not size:
            body = b"0\r\n\r\n"
        pages.by_path[f"/{number}"] = Reply(
            body, headers={"Content-Length": "", **headers} if headers else {}
        )
    text_fetcher = fetcher(pages.url)
    seen: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.0005):
            seen.append(text_fetcher._reserved_bytes)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            found = fetch_all(
                text_fetcher,
                [f"{pages.url}/{number}" for number in range(60)],
                stretch_bytes=100 * KB,
            )
        finally:
            stop.set()
        watching.result()
    assert [len(text) for text in found if isinstance(text, bytes)] == sizes
    assert max(seen) <= 2 * 100 * KB + LIMITS.text_bytes
    assert text_fetcher._reserved_bytes == 0


@given(st.binary(max_size=3000), st.integers(0, 3000), st.sampled_from([".gz", ".zst"]))
@settings(max_examples=100, deadline=None)
def test_unpacking_returns_all_or_none_above_the_limit(
    raw: bytes, size_max: int, suffix: str
) -> None:
    packed = gzip.compress(raw) if suffix == ".gz" else zstandard.compress(raw)
    assert unpack(suffix, packed, size_max) == (raw if len(raw) <= size_max else None)


def test_a_zstd_frame_that_asks_for_much_memory_is_refused(pages: Pages) -> None:
    large = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=large).compressobj()
    pages.by_path["/a"] = Reply(packer.compress(b"text") + packer.flush())
    assert letter(fetch(fetcher(pages.url), pages.url + "/a"))[0] == "Damaged"


def test_a_missing_library_is_reported_with_the_install_command() -> None:
    with pytest.raises(ConfigurationError, match=re.escape(install_command("gs"))):
        fetcher("gs://crawl")


def test_a_library_s_error_is_reported_without_the_secret_of_an_address() -> None:
    address = address_of(
        fetcher("https://store.example"), "https://store.example/a?signature=secret"
    )
    for mention in (address.url, "url='https://store.example/%61?signature=secret'"):
        text = stores._printable_reason(address, ValueError(f"it failed: {mention}"), "")
        assert "secret" not in text
