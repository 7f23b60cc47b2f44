"""Compute the form of a text that its features are taken from: the stage *normalise* of the
grammar.

Invariants: with any steps surrogates become U+FFFD and runs of combining marks are cut first, so
every form is valid UTF-8 and takes linear time; the form after `nfkc case space` equals that of
`normalise`, bit for bit. Only that form is digested, so the rule for `exact` copies is the same
under every recipe.

`raw`: no step. `nfkc`: compatibility composition; `case`: full case folding; `space`: every stretch
of white space becomes one space, none at the ends; `punctuation`: every stretch of separators
(white space, punctuation, symbols, control characters) becomes one space, none at the ends;
`spelling`: variants of a letter become that letter (`spellings`). The steps are applied in this
order.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting import characters, spellings
from stream_dedup.fingerprinting.characters import (
    IGNORED,
    KIND_BITS,
    SEPARATOR,
    SPACE,
    Batch,
    code_point_at,
)
from stream_dedup.fingerprinting.normalise import fold_assigned, fold_fully, limit_marks
from stream_dedup.fingerprinting.variants import han as variants
from stream_dedup.kernels.compiled import kernel

FULL: Final = ("nfkc", "case", "space")


@kernel
def _drop_separators(data: Any, offsets: Any, kinds: Any, out: Any, ends: Any) -> None:
    """Write each text with one space for every stretch of separators; write the end of each result
    to `ends` (n + 1,).
    """
    end = np.int64(0)
    for text in range(len(offsets) - 1):
        begin = end
        place = offsets[text]
        pending: Any = False
        while place < offsets[text + 1]:
            code_point, length = code_point_at(data, place)
            kind = kinds[code_point] & KIND_BITS
            if kind in (SEPARATOR, SPACE, IGNORED):
                pending = end > begin
            else:
                if pending:
                    out[end] = 0x20
                    end += 1
                    pending = False
                for byte in range(length):
                    out[end] = data[place + byte]
                    end += 1
            place += length
        ends[text + 1] = end


def drop_separators(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Batch:
    """Apply the step `punctuation` to a batch of UTF-8."""
    out = np.empty(len(data) + 1, np.uint8)
    ends = np.zeros(len(offsets), np.int64)
    _drop_separators(data, offsets, characters.table(), out, ends)
    return out, ends


def _form(text: str, steps: Sequence[str], *, fold_han: bool) -> str:
    text = limit_marks(text)
    if "nfkc" in steps and "case" in steps:
        text = fold_assigned(text, fold_fully)
    elif "nfkc" in steps:
        text = fold_assigned(text, lambda part: unicodedata.normalize("NFKC", part))
    elif "case" in steps:
        text = fold_assigned(text, str.casefold)
    text = text.translate(variants.table()) if fold_han else text
    return " ".join(text.split()) if "space" in steps else text


def form_batch(
    texts: Sequence[str], steps: Sequence[str], normalised: Batch, *, fold_han: bool = False
) -> Batch:
    """Return the form of each text of a batch.

    `normalised` is the result of `normalise_batch` for the same texts; `fold_han`: traditional Han
    becomes simplified, as the last step.
    """
    text_steps = tuple(step for step in steps if step not in {"punctuation", "spelling"})
    if text_steps == FULL:
        data, offsets = normalised
    else:
        encoded = [_form(text, text_steps, fold_han=fold_han).encode() for text in texts]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
        data = np.frombuffer(bytearray(b"".join(encoded)), np.uint8)
    if "punctuation" in steps:
        data, offsets = drop_separators(data, offsets)
    return spellings.fold_batch(data, offsets) if "spelling" in steps else (data, offsets)
