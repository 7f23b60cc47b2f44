"""Texts -> fingerprints: what counts as the same text is decided in this room. Pure: no Kafka, no store, no settings.

In the order a text travels: `normalise` (which texts are the same), `characters` (what each code point is), `tokens`
(words; the only user of jieba), `simhash` (features to bits), `recipe` (all of it, for a batch, under one name), `canary`
(texts that notice a changed library), `key` (the secret).
"""

from stream_dedup.fingerprint.key import PUBLIC_DEMO_KEY, load_key
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
    "Prints",
    "Recipe",
    "explain_features",
    "format_print",
    "format_prints",
    "hamming",
    "load_key",
]
