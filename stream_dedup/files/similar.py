"""Look up the kept documents that are similar to a text.

This process computes the fingerprint with the recipe and key of the settings. An index receives only
the fingerprint.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_dedup.domain.errors import ConfigurationError, FormatError, InputError, StoreError
from stream_dedup.domain.printable import counted
from stream_dedup.files.offline import LIBRARY_LOG
from stream_dedup.fingerprinting import (
    Content,
    Fingerprinter,
    Recipe,
    SiteHasher,
    as_vector,
    number_of,
)
from stream_dedup.index import report
from stream_dedup.index.index import LogIndex
from stream_dedup.index.look_up import Query
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.inputs.decoder import DecodedDocument
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

_COLUMNS = ("similarity", "distance", "id", "position", "time", "log")


@dataclass(frozen=True, slots=True)
class LookUp:
    """A look-up of a text. `number`: its fingerprint as a number; `limit`: the maximum number of
    results; `similarity`: the minimum similarity in per cent, None for that of the index's plan.
    """

    recipe: Recipe
    number: int
    features: int
    scope: int
    query: Query
    limit: int
    similarity: int | None

    @classmethod
    def from_document(
        cls, settings: Settings, document: DecodedDocument, limit: int, similarity: int | None
    ) -> LookUp:
        """Return the look-up of a document, by the recipe of the settings.

        Raises:
            InputError: the text is empty after normalisation; or the recipe expects vectors, and the
            text is not one.
        """
        recipe, content = recipe_of(settings), document.text
        if recipe.method.takes_vectors and isinstance(content, str):
            content = _parse_vector(content)
        prints = Fingerprinter(recipe).fingerprint([content])
        if prints.empty[0]:
            raise InputError(
                "The text is empty after normalisation (only white space or marks), so no document "
                "is similar to it."
            )
        origin = SiteHasher(recipe).origin_of(document.site, document.title, document.id)
        digest, sketch = prints.digests[0].tobytes(), prints.sketches[0].tobytes()
        query = Query(digest, sketch, origin, document.site)
        number, features = number_of(prints.prints[0]), int(prints.features[0])
        return cls(recipe, number, features, document.scope, query, limit, similarity)

    @property
    def limbs(self) -> list[int]:
        """The fingerprint's limbs of 64 bits, low limb first."""
        return [(self.number >> 64 * place) & (2**64 - 1) for place in range(self.recipe.limbs)]

    def read_volume(self, volume: Path) -> dict[str, Any]:
        """Return the similar documents in a volume, also while an index runs on it.

        Raises:
            ConfigurationError: the volume has another recipe.
            StoreError: the volume cannot be read.
        """
        if volume.is_dir() and not (volume / "CURRENT").exists():
            raise StoreError(
                f"{volume} contains no index; name the folder of `check --index`, or the volume of an index."
            )
        with closing(RocksStore(volume, read_only=True)) as store:
            index = LogIndex(store)
            declared = index.declared
            if declared is not None and declared.recipe != self.recipe.id:
                raise ConfigurationError(
                    f"The volume {volume} contains fingerprints of the recipe {declared.recipe!r}, "
                    f"which cannot be compared with those of {self.recipe.id!r}. Set the recipe and "
                    "the key that the workers use."
                )
            found = index.similar(
                self.limbs,
                self.query.digest,
                self.features,
                self.scope,
                self.limit,
                self.query.sketch,
                self.similarity,
            )
            answer = report.similar(index, found, self.query)
            if index.log == LIBRARY_LOG:  # documents of `check --index` are not from a topic
                for document in answer["found"]:
                    document.update({"position": None, "topic_id": None, "time": None, "log": None})
            return answer


def describe_answer(look_up: LookUp, answer: dict[str, Any], shown: int) -> list[str]:
    """Return sentences: how many documents were found, why the nearest is similar, and whether the text
    is too short.
    """
    total, is_short = answer["total"], answer["by_digest_only"]
    kind = "with an equal text" if is_short else "similar to the text"
    shown_part = f", {shown} of them shown (--limit)" if total > shown else ""
    sentences = [f"{counted(total, 'document')} {kind}{shown_part}."]
    if shown and (explanation := answer["found"][0].get("explanation")):
        sentences.append(f"The nearest: {explanation}")
    if is_short:
        sentences.append(
            f"The text has {counted(look_up.features, 'feature')} (such as words). Below "
            f"{answer['floor']} features a fingerprint is unreliable, so only documents with exactly "
            "this text are found. Use a longer text."
        )
    return sentences


def to_table(answer: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return (columns, rows) of the documents of an answer.

    Raises:
        FormatError: the answer is not that of an index of this version.
    """
    try:
        answer["total"], answer["floor"], answer["by_digest_only"]
        rows = [
            [
                "" if document["similarity"] is None else f"{document['similarity']:.2f}",
                str(document["distance"]),
                document["id"],
                document["position"] or "",
                document["time"] or "",
                document.get("log") or "",
            ]
            for document in answer["found"]
        ]
    except (KeyError, TypeError) as error:
        raise FormatError(
            f"The answer has no field {error}, so the index has another version than this "
            "command. Use the same version of both (see /v1/stats of the index)."
        ) from error
    has_positions = any(document["position"] for document in answer["found"])
    count = len(_COLUMNS) if has_positions else _COLUMNS.index("position")
    return list(_COLUMNS[:count]), [row[:count] for row in rows]


def _parse_vector(text: str) -> Content:
    try:
        return as_vector(json.loads(text))
    except ValueError as error:
        raise InputError(
            "The recipe expects vectors, but the text is not one: enter a list of numbers as JSON, "
            "such as [0.1, -2, 3]."
        ) from error
