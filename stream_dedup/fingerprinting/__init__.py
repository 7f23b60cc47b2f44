"""Compute fingerprints of texts; this package decides which texts are equal. All functions are
pure: no Kafka, no store, no settings.

`domain.presets` lists the methods of recipes; `languages` contains a user's additions to a recipe.
In the order of processing: `normalise` (equal texts), `characters` (kinds of code points), `tokens`
(words; reads jieba's data), `spellings` (variants of letters), `features` (readable features),
`hashes`, `simhash` (features to bits), `prints` (a batch in one kernel), `sketch` (words to a second
fingerprint, for similarity), `recipe` (all of it, for a batch, under one name), `sites` (keyed
hashes of sites and titles), `canary` (texts that detect a changed library), `key` (the secret).
`variants` contains code that only some recipes need.
"""

from stream_dedup.domain.presets import PRESETS, RecipeMethod
from stream_dedup.fingerprinting.key import PUBLIC_DEMO_KEY, load_key
from stream_dedup.fingerprinting.languages import Languages, load_languages
from stream_dedup.fingerprinting.recipe import (
    Content,
    Fingerprinter,
    Prints,
    Recipe,
    as_recipe,
    explain_features,
    format_prints,
    number_of,
    width_of,
)
from stream_dedup.fingerprinting.sites import SiteHasher
from stream_dedup.fingerprinting.variants.vectors import Vector, as_vector

__all__ = [
    "PRESETS",
    "PUBLIC_DEMO_KEY",
    "Content",
    "Fingerprinter",
    "Languages",
    "Prints",
    "Recipe",
    "RecipeMethod",
    "SiteHasher",
    "Vector",
    "as_recipe",
    "as_vector",
    "explain_features",
    "format_prints",
    "load_key",
    "load_languages",
    "number_of",
    "width_of",
]
