"""Request the documents that are similar to a text, and the plan, from a running index."""

from __future__ import annotations

from typing import Any

from stream_dedup.domain.errors import InputError
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.plan import parse as parse_plan
from stream_dedup.domain.sketch import as_text
from stream_dedup.domain.terminal import note
from stream_dedup.files.similar import LookUp
from stream_dedup.serving import http_client
from stream_dedup.serving.ports import addresses
from stream_dedup.settings.settings import Settings


def ask_index(look_up: LookUp, settings: Settings, url: str | None) -> dict[str, Any]:
    """Return the answer of the index at `url`, or on this machine, to a look-up.

    Raises:
        InputError: no index answers, or the index refuses the request.
        ConfigurationError: the index has another recipe.
        StreamDedupError: the index cannot answer now.
    """
    threshold = {} if look_up.similarity is None else {"similarity": as_text(look_up.similarity)}
    path = http_client.similar_path(
        look_up.recipe.id,
        look_up.limbs,
        look_up.query.digest,
        look_up.features,
        look_up.scope,
        look_up.query.sketch,
        look_up.query.origin,
        limit=look_up.limit,
        **threshold,
    )
    remedy = (
        "Name a running index with --index http://HOST:PORT, or read a volume with --volume DIR."
    )
    return http_client.ask_role("index", _bases(settings, url), path, remedy)[1]


def plan_in_force(settings: Settings, url: str | None) -> Plan:
    """Return the plan that the index at `url`, or on this machine, uses.

    Without a running index on this machine, print a note and return the plan of the settings.

    Raises:
        InputError: no index answers at `url`.
        StreamDedupError: the index cannot answer now.
    """
    try:
        stats = http_client.ask_role("index", _bases(settings, url), "/v1/stats", "")[1]
    except InputError:
        if url is not None:
            raise
        note(
            "No index answers on this machine, so the thresholds come from your settings and can "
            "differ from the filter's. To use the filter's, name its index with --index "
            "http://HOST:PORT."
        )
        return settings.judging_plan
    if not isinstance(stats.get("plan"), str):
        note("The index has no plan yet, so the thresholds come from your settings.")
        return settings.judging_plan
    return parse_plan(stats["plan"])


def _bases(settings: Settings, url: str | None) -> list[str]:
    return [url] if url is not None else addresses(settings)
