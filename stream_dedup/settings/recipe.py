"""The recipe that the settings name: settings -> Recipe."""

from __future__ import annotations

from stream_dedup.fingerprinting import Recipe, load_key, load_languages
from stream_dedup.settings.settings import Settings


def recipe_of(settings: Settings) -> Recipe:
    """Return the recipe that the settings name, with its key and what they say about languages.

    Raises ConfigurationError for a file that cannot be used, and for a segmenter that is not
    installed.
    """
    languages = load_languages(
        settings.user_dictionary, settings.stop_words, settings.segmenter, settings.han_variants
    )
    return Recipe(
        settings.recipe,
        key=load_key(settings.key_file),
        languages=languages,
        floor=settings.floor,
    )
