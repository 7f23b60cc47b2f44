"""Build the recipe from the settings."""

from __future__ import annotations

from stream_dedup.fingerprinting import Recipe, load_key, load_languages
from stream_dedup.settings.settings import Settings


def recipe_of(settings: Settings) -> Recipe:
    """Return the recipe of the settings, with its key and language rules.

    Raises:
        ConfigurationError: the key file or a language file cannot be used.
    """
    languages = load_languages(
        settings.user_dictionary, settings.stop_words, fold_han=settings.languages == "same-han"
    )
    return Recipe(
        settings.recipe,
        key=load_key(settings.key_file),
        languages=languages,
        floor=settings.floor,
    )
