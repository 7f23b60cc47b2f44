"""Peers as child processes: their lines, and what happens when they fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.peers import Peers
from stream_dedup.ground.errors import StreamDedupError

FAKE = Path(__file__).with_name("fake_peer.py")


def fake(mode: str = "good", seconds: float = 60.0) -> Peers:
    return Peers([sys.executable, str(FAKE), mode], seconds)


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
