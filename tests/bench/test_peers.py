"""Peers as child processes: their lines, and what happens when they fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.peers import Peers, peers_command
from stream_dedup.ground.errors import InputError, StreamDedupError

FAKE = Path(__file__).with_name("fake_peer.py")


def fake(mode: str = "good", seconds: float = 60.0) -> Peers:
    return Peers([sys.executable, str(FAKE), mode], seconds)


def test_what_a_peer_has_is_known_after_the_start() -> None:
    """Versions, methods, and what could not be loaded with the reason come with the first line."""
    with fake() as peers:
        assert peers.versions == {"fake": "1.0"}
        assert [method.name for method in peers.methods] == ["first letter"]
        assert "No module named" in peers.missing["absent"]


def test_pairs_are_of_two_texts_the_smaller_place_first() -> None:
    """However a peer orders its pairs, they come as (smaller, larger), and none of a text with itself."""
    with fake() as peers:
        near = peers.near_pairs(peers.methods[0], ["a1", "b", "a2\nü", "a3"], ["en"] * 4)

    assert near == {(0, 2), (0, 3), (2, 3)}


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("failing", "no such thing"),
        ("babbling", "no answer: 'what"),
        ("ending", "ended without an answer"),
        ("silent", "within 1 s"),
    ],
)
def test_a_peer_that_fails_is_a_sentence(mode: str, said: str) -> None:
    """A peer's error, a line that is no answer, an end and a silence are errors that say so; the child is gone afterwards."""
    with fake(mode, 1.0 if mode == "silent" else 60.0) as peers, pytest.raises(StreamDedupError, match=said):
        peers.near_pairs(peers.methods[0], ["a", "b"], ["en", "en"])

    assert peers._child.poll() is not None


def test_without_the_environment_the_remedy_is_named(tmp_path: Path) -> None:
    """`--peers` before `make peers` says what to run."""
    with pytest.raises(InputError, match="make peers"):
        peers_command(tmp_path)
