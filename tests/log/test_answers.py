"""The bytes on `verdicts`: chained, whole or refused. That they are frozen: `test_formats`."""

from __future__ import annotations

import zlib

import pytest

from stream_dedup.ground.better import BetterRule
from stream_dedup.ground.document import LogPlace, Position, Reason, Representative
from stream_dedup.ground.errors import FormatError, OtherFormatError
from stream_dedup.log import answers
from stream_dedup.log.frame import framed

KEPT = Representative(Position("documents", bytes(range(16)), 3, 8812), "id-é".encode(), 1_790_000_000_000)
ANSWER = answers.LogAnswer(
    17,
    bytes(range(16)),
    42,
    (
        answers.Judgement(Reason.NEW, LogPlace(17, 0)),
        answers.Judgement(Reason.NEAR, LogPlace(17, 1), 2, KEPT, 61, 17, BetterRule.NEWEST),
        answers.Judgement(Reason.STALE, LogPlace(17, 2)),
        answers.Judgement(Reason.UNCHANGED, LogPlace(3, 999), 0, KEPT, copies=2**32 - 1),
        answers.Judgement(Reason.RETRACTED, LogPlace(17, 4)),
        answers.Judgement(Reason.TOO_SHORT, LogPlace(17, 5)),
    ),
)
REJECTED = answers.Rejected(18, bytes(16), 7, "The recipe is another.")


@pytest.mark.parametrize("answer", [ANSWER, REJECTED])
def test_there_and_back(answer: answers.LogAnswer | answers.Rejected) -> None:
    raw, chain = answers.encode(answer, b"12345678")

    decoded = answers.decode(raw)

    assert not isinstance(decoded, answers.Announce)
    assert chain == decoded.chain
    assert {name: getattr(answer, name) for name in answer.__dataclass_fields__ if name != "chain"} == {
        name: getattr(decoded, name) for name in decoded.__dataclass_fields__ if name != "chain"
    }


def test_of_an_answer_to_another_worker_only_the_head_is_read() -> None:
    """Replicas are compared by it; a worker decodes what it asked itself, and an answer that is cut is refused all the same."""
    raw, chain = answers.encode(ANSWER, b"12345678")
    broken = bytearray(raw[:-4])
    broken[6 + 32 + 4] = 250  # a reason that nobody knows
    broken += zlib.crc32(broken).to_bytes(4, "little")

    assert answers.decode(raw, nonce=ANSWER.nonce) == answers.decode(raw)
    assert answers.decode(bytes(broken), nonce=bytes(16)) == answers.LogAnswer(17, ANSWER.nonce, 42, (), chain)
    with pytest.raises(OtherFormatError, match="a reason"):
        answers.decode(bytes(broken), nonce=ANSWER.nonce)
    with pytest.raises(FormatError, match="ends in the middle"):
        answers.decode(framed(answers.MAGIC, 1, answers.KIND_ANSWER, bytes(39)), nonce=ANSWER.nonce)


def test_announce_there_and_back() -> None:
    assert answers.Announce(5) == answers.decode(answers.encode_announce(answers.Announce(5)))


def test_chains_differ_for_ever_after_one_difference() -> None:
    """Two replicas whose answers once differed have different chains for the same later answer."""
    _, one = answers.encode(REJECTED, answers.CHAIN_START)
    _, other = answers.encode(ANSWER, answers.CHAIN_START)

    assert answers.encode(ANSWER, one)[1] != answers.encode(ANSWER, other)[1]


def test_every_cut_and_every_flipped_byte_is_refused() -> None:
    """A damaged answer is a FormatError and nothing else."""
    raw, _ = answers.encode(ANSWER, answers.CHAIN_START)
    for size in range(len(raw)):
        with pytest.raises(FormatError):
            answers.decode(raw[:size])
    for place in range(len(raw)):
        broken = bytearray(raw)
        broken[place] ^= 0x41
        with pytest.raises(FormatError):
            answers.decode(bytes(broken))
