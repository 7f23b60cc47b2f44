"""Texts -> fingerprints: what counts as the same text is decided in this room. Pure: no Kafka, no store, no settings.

What can be asked for is `grammar` (one small language of recipes) and `languages` (what a user adds to a recipe). In the
order a text travels: `normalise` (which texts are the same; `variants`: one Han for two), `forms` (which form the features
see), `characters` (what each code point is), `tokens` (words; reads jieba's data), `segmenter` (words by ICU, if asked
for), `keywords` (as jieba's own code finds them), `features` (features that can be read), `hashes`, `simhash` (features to
bits, all at once), `projection` (vectors to bits), `recipe` (all of it, for a batch, under one name), `canary` (texts that
notice a changed library), `key` (the secret).
"""

import sys
from importlib import import_module
from types import ModuleType

from stream_dedup.fingerprinting.grammar import PRESETS, Method
from stream_dedup.fingerprinting.key import PUBLIC_DEMO_KEY, load_key
from stream_dedup.fingerprinting.languages import Languages, load_languages
from stream_dedup.fingerprinting.recipe import (
    Content,
    Fingerprinter,
    Prints,
    Recipe,
    explain_features,
    format_print,
    format_prints,
    hamming,
    number_of,
    width_of,
)
from stream_dedup.fingerprinting.variants.vectors import Vector, as_vector

__all__ = [
    "PRESETS",
    "PUBLIC_DEMO_KEY",
    "Content",
    "Fingerprinter",
    "Languages",
    "Method",
    "Prints",
    "Recipe",
    "Vector",
    "as_vector",
    "explain_features",
    "format_print",
    "format_prints",
    "hamming",
    "load_key",
    "load_languages",
    "number_of",
    "width_of",
]


class _Room(ModuleType):
    """This module, which can be called: `stream_dedup.fingerprint(text)` is a public name, and the room has that name too."""

    def __call__(self, text: str, recipe: Recipe | None = None) -> object:
        """See `stream_dedup.local.api.fingerprint`."""
        return import_module("stream_dedup.local.api").fingerprint(text, recipe)


sys.modules[__name__].__class__ = _Room
