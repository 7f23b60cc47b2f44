"""Parts of speech by machine code: the same as jieba's own path, and quick for what its model has never seen."""

from __future__ import annotations

import random

import jieba.posseg
import pytest
from jieba.posseg.char_state_tab import P as STATES_OF
from jieba.posseg.viterbi import viterbi

from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.fingerprinting.variants.keywords import Tags
from tests.fingerprinting.cost import seconds
from tests.fingerprinting.texts import dice


def han(count: int, chance: random.Random) -> str:
    """Random Han characters, of which the model has seen one in three."""
    return "".join(chr(chance.randrange(0x4E00, 0x9FA6)) for _ in range(count))


@pytest.mark.parametrize("known_share", [0.0, 0.5, 0.9, 1.0])
def test_the_path_is_jiebas(known_share: float) -> None:
    """State by state, whether the model has seen the characters, some of them, or none."""
    chance = dice()
    known = sorted(STATES_OF)
    tags = Tags()
    for _ in range(60):
        run = "".join(
            chance.choice(known) if chance.random() < known_share else han(1, chance) for _ in range(chance.randrange(1, 14))
        )
        _, expected = viterbi(
            run, jieba.posseg.char_state_tab_P, jieba.posseg.start_P, jieba.posseg.trans_P, jieba.posseg.emit_P
        )

        assert list(tags.path(run)) == list(expected), run


def test_words_and_tags_are_jiebas() -> None:
    chance = dice()
    tokenizer, tags = jieba.posseg.dt, Tags()
    for _ in range(30):
        run = han(chance.randrange(2, 12), chance)

        assert list(tags.words(run)) == [(one.word, one.flag) for one in tokenizer._POSTokenizer__cut(run)]


def test_textrank_of_han_that_nobody_has_seen_is_no_trap() -> None:
    """It takes a few times as long as other keywords do, of the same text; jieba's own code takes some 360 times as long."""
    text = han(2000, random.Random(1))
    ranked, by_frequency = Fingerprinter(Recipe("textrank")), Fingerprinter(Recipe("keywords"))

    assert seconds(ranked, text) < 20 * max(seconds(by_frequency, text), 0.005)
