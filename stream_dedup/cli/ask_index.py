"""Ask a running index for the documents that are similar to a text."""

from __future__ import annotations

from typing import Any

from stream_dedup.domain.sketch import as_text
from stream_dedup.files.similar import LookUp
from stream_dedup.serving import asking
from stream_dedup.serving.ports import addresses
from stream_dedup.settings.settings import Settings


def ask_index(look_up: LookUp, settings: Settings, url: str | None) -> dict[str, Any]:
    """Return the answer to a look-up of the index at `url`, or of the one on this machine.

    Raises:
        InputError: no index answers, or it refuses the request.
        ConfigurationError: the index has another recipe.
        StreamDedupError: it cannot answer now.
    """
    least = {} if look_up.similarity is None else {"similarity": as_text(look_up.similarity)}
    path = asking.similar_path(
        look_up.recipe.id,
        look_up.limbs,
        look_up.query.digest,
        look_up.features,
        look_up.scope,
        look_up.query.sketch,
        look_up.query.origin,
        limit=look_up.limit,
        **least,
    )
    remedy = "Name one with --index http://HOST:PORT, or read its volume with --volume DIR."
    bases = [url] if url is not None else addresses(settings)
    return asking.ask_role("index", bases, path, remedy)[1]
