"""Texts -> fingerprints: what counts as the same text is decided in this room. Pure: no Kafka, no
store, no settings.

What can be asked for is `grammar` (one small language of recipes) and `languages` (what a user adds
to a recipe). In the order a text travels: `normalise` (which texts are the same), `forms` (which
form the features see), `characters` (what each code point is), `tokens` (words; reads jieba's
data), `spellings` (letters that readers take for one), `features` (features that can be read),
`hashes`, `simhash` (features to bits, all at once), `sketch` (words to a second print, for
similarity), `recipe` (all of it, for a batch, under one name), `sites` (keyed hashes of sites and
titles), `canary` (texts that notice a changed library), `key` (the secret). `variants` holds what
only some recipes and some texts need.
"""

from stream_dedup.fingerprinting.grammar import PRESETS, RecipeMethod
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
