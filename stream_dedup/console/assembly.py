"""Build the console of a deployment from its settings; a role, or the demo, mounts it at `/`."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from stream_dedup.console.access import TokenGuard
from stream_dedup.console.app import ApiAnswers, ConsolePages
from stream_dedup.console.attention import Attention
from stream_dedup.console.outputs import OutputRecords, OutputsFollower
from stream_dedup.console.recent_decisions import Recent
from stream_dedup.console.sources import ConsoleSources, TextAnswers
from stream_dedup.console.values import PlansInForce
from stream_dedup.domain import plan as plans
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.serving import http_client
from stream_dedup.settings.settings import Settings

_ANSWER_SECONDS: Final = 2.0
_ANSWER_BYTES_MAX: Final = 4_000_000


def sources_of(
    settings: Settings, stop: threading.Event, engine: TextAnswers | None = None
) -> ConsoleSources:
    """Return the sources of the pages in Kafka, the index and the full-text engine, if there is
    one. It does not wait for any of them.

    A thread reads the newest decisions until `stop` is set.
    """
    records = OutputRecords(settings)
    attention = Attention(settings, records.kafka, id_of=records.id_of)
    recent = Recent() if engine is None else Recent(as_shown=engine.as_shown)
    follower = OutputsFollower(settings, records, recent, stop)
    index = settings.console_index
    if engine is not None:
        recent.mark(
            "The search started."
        )  # Kafka does not show when a search of another process starts
    follower.start()
    return ConsoleSources(
        recent=recent,
        away=records.silence,
        trouble=follower.trouble,
        opened=records.opened
        if engine is None
        else lambda at: engine.unless_forgotten(records.opened(at)),
        lag=attention.waiting,
        remarks=attention.remarks,
        letters=attention.letters,
        events=attention.events,
        unwatched=attention.unwatched,
        plans=None if index is None else partial(plans_at, index),
        search=engine,
    )


def pages_of(
    settings: Settings,
    sources: ConsoleSources,
    api: ApiAnswers = MappingProxyType({}),
) -> ConsolePages:
    """Return the pages over the sources, and further answers; their `routes` belong into the role's
    `HttpServer`.

    Raises:
        ConfigurationError: the token's file cannot be read, or is empty.
    """
    TokenGuard(settings.console_token_file).token()
    return ConsolePages(sources, settings.console_prefix, settings.console_token_file, api)


def plans_at(base: str) -> PlansInForce | None:
    """Return the plans of the index at `http://HOST:PORT`; None before the first."""
    try:
        status, body = http_client.ask(base, "/v1/stats", _ANSWER_SECONDS, _ANSWER_BYTES_MAX)
        fields = json.loads(body)
    except http_client.NO_ANSWER as error:
        why = http_client.reason_of(error)
        raise StreamDedupError(f"No index answers at {base} ({why}); see CONSOLE_INDEX.") from error
    if status != http.client.OK or not isinstance(fields, dict) or "plan" not in fields:
        reason = fields.get("detail", status) if isinstance(fields, dict) else status
        raise StreamDedupError(f"The index at {base} answers: {reason}")
    return plans_in(fields)


def plans_in(stats: Mapping[str, Any]) -> PlansInForce | None:
    """Return the present plan and the past ones by the figures of the index; None before the first."""
    if not isinstance(stats.get("plan"), str):
        return None
    past = tuple((end, time_ms, plans.parse(plan)) for end, time_ms, plan in stats["past_plans"])
    return PlansInForce(plans.parse(stats["plan"]), past, stats["started_ms"])
