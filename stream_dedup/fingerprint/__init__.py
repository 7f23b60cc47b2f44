"""Texts -> fingerprints: what counts as the same text is decided in this room. Pure: no Kafka, no store, no settings.

In the order a text travels: `normalise` (which texts are the same; `variants`: one Han for two), `characters` (what each
code point is), `tokens` (words; the only user of jieba), `segmenter` (words by ICU, if asked for), `simhash` (features to
bits), `recipe` (all of it, for a batch, under one name), `languages` (what a user adds to a recipe), `canary` (texts that
notice a changed library), `key` (the secret).
"""

from stream_dedup.fingerprint.key import PUBLIC_DEMO_KEY, load_key
from stream_dedup.fingerprint.languages import Languages, load_languages
from stream_dedup.fingerprint.recipe import (
    Fingerprinter,
    Prints,
    Recipe,
    explain_features,
    format_print,
    format_prints,
    hamming,
)

__all__ = [
    "PUBLIC_DEMO_KEY",
    "Fingerprinter",
    "Languages",
    "Prints",
    "Recipe",
    "explain_features",
    "format_print",
    "format_prints",
    "hamming",
    "load_key",
    "load_languages",
]
