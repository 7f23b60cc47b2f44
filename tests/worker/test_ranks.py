"""The ranks of hosts: what a file says, and that they reach the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stream_dedup.checks.declaration import check_declaration, check_reading, reading_of
from stream_dedup.checks.finding import CheckState
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.ground.plan import PLANS
from stream_dedup.inputs.decoder import Decoder
from stream_dedup.log import records
from stream_dedup.log.records import document_of
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings
from stream_dedup.worker.prepare import Preparer
from stream_dedup.worker.ranks import HostRanks

LIST = (
    "# of today\n1,Example.org\n\n7,news.example.com.\n900,co.uk\n3,EXAMPLE.com\n12,example.org\n"
)


def ranks(tmp_path: Path, text: str = LIST) -> HostRanks:
    path = tmp_path / "ranks.csv"
    path.write_text(text)
    found = HostRanks.read(path)
    assert found is not None
    return found


def test_a_host_has_its_own_rank_or_that_of_the_nearest_domain_above_it(tmp_path: Path) -> None:
    """In any case of letters, with a port; of a name that stands twice the higher; what is no URL
    has none."""
    asked = {
        b"https://example.org/a": 1,
        b"http://NEWS.example.com:8080/": 7,
        b"https://sport.news.example.com/": 7,
        b"https://www.example.com/x": 3,
        b"https://shop.co.uk/": 900,
        b"https://other.net/": 0,
        b"https://org/": 0,
        b"page-17": 0,
        b"": 0,
    }

    assert ranks(tmp_path).of(list(asked)).tolist() == list(asked.values())


def test_hosts_alone_are_ranked_in_their_order(tmp_path: Path) -> None:
    found = ranks(tmp_path, "first.org\n\nthird.org\n")

    assert found.of([b"https://third.org/", b"https://first.org/"]).tolist() == [3, 1]


@pytest.mark.parametrize(
    "line",
    [
        "0,example.org",
        "x,example.org",
        "4294967296,example.org",
        "1,",
        "1,two words",
        "-1,example.org",
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    """With its number, and with what it must be."""
    with pytest.raises(
        ConfigurationError, match=r"Line 2 of the file of ranks .*must be RANK,HOST"
    ):
        ranks(tmp_path, f"1,example.org\n{line}\n")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        HostRanks.read(tmp_path)


def test_ranks_stand_in_the_log_also_where_ids_do_not(tmp_path: Path) -> None:
    """A batch has them in the order of its documents, and one document of it keeps its own; without
    any there is no column."""
    values = [
        json.dumps({"url": f"https://{host}/", "text": f"a text of {host} that is long enough"})
        for host in ("example.org", "other.net", "www.example.com")
    ]
    messages = [
        Message("documents", 0, at, b"key", value.encode(), 1, [])
        for at, value in enumerate(values)
    ]
    sources = {("documents", 0): records.Source("documents", bytes(16), 0, 0, 0)}
    decoder = Decoder(load_settings({"value_format": "json", "id_field": "url"}, environ={}))

    def batch(found: list[Message]) -> records.Batch:
        preparer = Preparer(
            decoder,
            Fingerprinter(Recipe()),
            bytes(16),
            1 << 20,
            digests_ids=True,
            ranks=ranks(tmp_path),
            record_documents=2,
        )
        record = records.decode(preparer.prepare(found, sources, b"").parts[-1].raw)
        assert isinstance(record, records.Batch)
        return record

    first, last = batch(messages[:2]), batch(messages)

    assert [first.rank(0), first.rank(1), last.rank(0)] == [1, 0, 3]
    assert [document_of(first, place).rank(0) for place in range(2)] == [1, 0]
    assert batch(messages[1:2]).ranks is None


def test_workers_with_another_file_are_refused_and_the_rule_needs_one(tmp_path: Path) -> None:
    """What counts is what the file says, not where it lies."""
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    for path, text in ((one, LIST), (same, LIST), (other, "example.org")):
        path.write_text(text)
    first = Settings(host_ranks=one, better="authority")

    assert check_reading(Settings(host_ranks=same), reading_of(first)).state is CheckState.OK
    for wrong in (Settings(host_ranks=other), Settings()):
        assert check_reading(wrong, reading_of(first)).state is CheckState.REFUSED
    assert "host_ranks" not in reading_of(Settings())  # as logs say that are older than the setting
    declared = {
        "recipe": Recipe().id,
        "group": "stream-dedup",
        "plan": PLANS["bands"].to_fields(),
        "better": "authority",
    }
    assert [one.state for one in check_declaration(first, Recipe(), declared)] == [CheckState.OK]
    (finding,) = check_declaration(Settings(better="authority"), Recipe(), declared)
    assert finding.state is CheckState.REFUSED
    assert "STREAM_DEDUP_HOST_RANKS" in finding.sentence
