"""Answers on `verdicts` are chained, and read whole or refused; `test_formats` compares their
bytes."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import zlib
from dataclasses import replace

import pytest

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import LogPlace, Position, Reason, Representative, Verdict
from stream_dedup.domain.errors import FormatError, OtherFormatError
from stream_dedup.log import answers
from stream_dedup.log.record_frame import framed
from stream_dedup.log.schema import Judgement

KEPT = Representative(
    Position("documents", bytes(range(16)), 3, 8812), "id-é".encode(), 1_790_000_000_000
)
ANSWER = answers.LogAnswer(
    17,
    bytes(range(16)),
    42,
    (
        Judgement(Reason.NEW, LogPlace(17, 0)),
        Judgement(Reason.NEAR, LogPlace(17, 1), 2, KEPT, 61, 17, BetterRule.NEWEST),
        Judgement(Reason.STALE, LogPlace(17, 2)),
        Judgement(Reason.UNCHANGED, LogPlace(3, 999), 0, KEPT, copies=2**32 - 1),
        Judgement(Reason.RETRACTED, LogPlace(17, 4)),
        Judgement(Reason.TOO_SHORT, LogPlace(17, 5)),
    ),
)
REJECTED = answers.Rejected(18, bytes(16), 7, "The recipe is another.")


@pytest.mark.parametrize("answer", [ANSWER, REJECTED])
def test_an_answer_is_decoded_as_it_was_encoded(
    answer: answers.LogAnswer | answers.Rejected,
) -> None:
    raw, chain = answers.encode(answer, b"12345678")

    decoded = answers.decode(raw)

    assert not isinstance(decoded, answers.Announce)
    assert chain == decoded.chain
    assert {
        name: getattr(answer, name) for name in answer.__dataclass_fields__ if name != "chain"
    } == {name: getattr(decoded, name) for name in decoded.__dataclass_fields__ if name != "chain"}


def test_only_the_head_of_an_answer_to_another_worker_is_read() -> None:
    """A worker decodes in full only answers to its own requests; a truncated answer is refused."""
    raw, chain = answers.encode(ANSWER, b"12345678")
    broken = bytearray(raw[:-4])
    broken[6 + 32 + 4] = 250  # an unknown reason
    broken += zlib.crc32(broken).to_bytes(4, "little")

    assert answers.decode(raw, nonce=ANSWER.nonce) == answers.decode(raw)
    assert answers.decode(bytes(broken), nonce=bytes(16)) == answers.LogAnswer(
        17, ANSWER.nonce, 42, (), chain
    )
    with pytest.raises(OtherFormatError, match="a reason"):
        answers.decode(bytes(broken), nonce=ANSWER.nonce)
    with pytest.raises(FormatError, match="ends in the middle"):
        answers.decode(framed(answers.MAGIC, 1, answers.KIND_ANSWER, bytes(39)), nonce=ANSWER.nonce)


def plain_body(head: tuple[int, bytes, int], judgements: list[Judgement]) -> bytes:
    """Return the body of an answer, value by value as the grammar defines them."""
    named = [(judgement, judgement.of) for judgement in judgements if judgement.of is not None]
    table = list(dict.fromkeys(of.position[:3] for _, of in named))
    columns = [
        [judgement.reason for judgement in judgements],
        [judgement.distance for judgement in judgements],
        [judgement.similarity for judgement in judgements],
    ]
    parts = [struct.pack("<Q16sQI", *head, len(judgements)), *map(bytes, columns)]
    parts += [struct.pack("<Q", judgement.decided.offset) for judgement in judgements]
    parts += [struct.pack("<I", judgement.decided.place) for judgement in judgements]
    parts.append(struct.pack("<H", len(table)))
    parts += [
        bytes([len(topic.encode())]) + topic.encode() + id_ + struct.pack("<I", number)
        for topic, id_, number in table
    ]
    parts += [struct.pack("<I", judgement.copies) for judgement, _ in named] + [
        bytes([judgement.better]) for judgement, _ in named
    ]
    parts += [struct.pack("<H", table.index(of.position[:3])) for _, of in named]
    parts += [struct.pack("<q", of.position.offset) for _, of in named] + [
        struct.pack("<q", of.time_ms) for _, of in named
    ]
    return b"".join(
        parts + [struct.pack("<H", len(of.id)) for _, of in named] + [of.id for _, of in named]
    )


def test_an_answer_is_encoded_as_the_grammar_defines() -> None:
    """Random answers, one after another, have the bytes and the chain that the grammar defines."""
    seed = int(os.environ["TEST_SEED"])
    print("seed", seed)
    chance = random.Random(seed)
    partitions = [
        ("documents", bytes(16), 0),
        ("documents", bytes(16), 2**32 - 1),
        ("é", bytes(range(16)), 7),
    ]

    def judgement() -> Judgement:
        reason = chance.choice(list(Reason))
        decided = LogPlace(chance.randrange(2**63), chance.randrange(2**32))
        if reason.verdict is not Verdict.DUPLICATE:
            return Judgement(reason, decided)
        position = Position(
            *chance.choice(partitions[: chance.choice([1, 3])]), chance.randrange(-(2**63), 2**63)
        )
        of = Representative(
            position, chance.randbytes(chance.choice([0, 1, 40])), chance.randrange(-(2**63), 2**63)
        )
        copies, better = chance.randrange(2**32), chance.choice(list(BetterRule))
        return Judgement(
            reason, decided, chance.randrange(256), of, chance.randrange(256), copies, better
        )

    chain = answers.CHAIN_START
    for _ in range(500):
        head = chance.randrange(2**64), chance.randbytes(16), chance.randrange(2**64)
        judgements = [judgement() for _ in range(chance.choice([1, 2, 10]))]
        raw, encoded_chain = answers.encode(answers.LogAnswer(*head, judgements), chain)

        body = plain_body(head, judgements)
        chain = hashlib.blake2b(chain + body, digest_size=8).digest()
        assert encoded_chain == chain
        assert raw == framed(answers.MAGIC, 1, answers.KIND_ANSWER, body + chain)


def test_chains_differ_for_ever_after_one_difference() -> None:
    _, first_chain = answers.encode(REJECTED, answers.CHAIN_START)
    _, second_chain = answers.encode(ANSWER, answers.CHAIN_START)

    assert answers.encode(ANSWER, first_chain)[1] != answers.encode(ANSWER, second_chain)[1]


def test_the_wording_of_a_rejection_does_not_change_the_chain() -> None:
    """Replicas of two versions may word a rejection differently; they have not diverged."""
    reworded = replace(REJECTED, why="Another sentence.")

    (raw, chain), (other_raw, other_chain) = (
        answers.encode(rejected, answers.CHAIN_START) for rejected in (REJECTED, reworded)
    )

    assert chain == other_chain
    assert raw != other_raw
    _, later = answers.encode(replace(REJECTED, number=8), answers.CHAIN_START)
    assert later != chain
