"""The recipe: a key of one's own, the dictionary as it was, and the prints of the canary texts."""

from __future__ import annotations

from collections.abc import Iterator

from stream_dedup.checks.finding import CheckFinding, ok, refused, warning
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings


def check_recipe(settings: Settings) -> tuple[Recipe | None, list[CheckFinding]]:
    """Return the recipe, if it can be had, and what there is to say about it. Takes a second: the dictionary is read."""
    try:
        recipe = recipe_of(settings)
    except ConfigurationError as error:
        return None, [refused("recipe", str(error))]
    return recipe, [*check_key(recipe), *_prints(recipe)]


def check_key(recipe: Recipe) -> Iterator[CheckFinding]:
    """Return whether the key is one's own."""
    if recipe.uses_demo_key:
        yield warning(
            "key",
            "The feature hash uses the public demonstration key, so anyone can craft colliding documents. Set "
            "STREAM_DEDUP_KEY_FILE before the log is begun.",
        )
    else:
        yield ok("key", "The feature hash has a key of its own.")


def _prints(recipe: Recipe) -> Iterator[CheckFinding]:
    try:
        Fingerprinter(recipe)  # reads the dictionary, and compares the canary texts' prints
    except ConfigurationError as error:
        yield refused("prints", str(error))
    else:
        yield ok("prints", f"The dictionary and the canary texts' prints are those of the recipe {recipe.id}.")
