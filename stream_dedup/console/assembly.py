"""Build the console of a deployment from its settings. Roles and the demo serve it at `/`."""

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
from stream_dedup.console.sources import ConsoleSources, TextSearch
from stream_dedup.console.values import IndexPlans, PastPlan
from stream_dedup.domain import plan as plans
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.serving import http_client
from stream_dedup.settings.settings import Settings

_ANSWER_SECONDS: Final = 2.0
_ANSWER_BYTES_MAX: Final = 4_000_000


def sources_of(
    settings: Settings, stop: threading.Event, search: TextSearch | None = None
) -> ConsoleSources:
    """Return the sources of the pages: Kafka, the index, and `search`, if this process has one.

    This does not wait for any of them. A thread reads the newest decisions until `stop` is set.
    """
    records = OutputRecords(settings)
    attention = Attention(settings, records.kafka, id_of=records.id_of)
    recent = Recent() if search is None else Recent(redact_decision=search.redact_decision)
    follower = OutputsFollower(settings, records, recent, stop)
    index = settings.console_index
    if search is not None:
        # A search role in another process gets no mark: Kafka does not show when it starts.
        recent.add_mark("The search started.")
    follower.start()
    return ConsoleSources(
        recent=recent,
        kafka_problem=records.kafka_problem,
        decisions_problem=follower.problem,
        read_record=records.read_record
        if search is None
        else lambda position: search.redact_record(records.read_record(position)),
        lag=attention.lag,
        remarks=attention.remarks,
        dead_letters=attention.dead_letters,
        host_events=attention.host_events,
        insights_problem=attention.insights_problem,
        plans=None if index is None else partial(read_plans, index),
        search=search,
    )


def pages_of(
    settings: Settings,
    sources: ConsoleSources,
    api: ApiAnswers = MappingProxyType({}),
) -> ConsolePages:
    """Return the pages of the sources and of `api`. Pass their `routes` to the role's `HttpServer`.

    Raises:
        ConfigurationError: the token's file cannot be read, or is empty.
    """
    TokenGuard(settings.console_token_file).token()
    return ConsolePages(sources, settings.console_prefix, settings.console_token_file, api)


def read_plans(base: str) -> IndexPlans | None:
    """Return the plans of the index at `base` (`http://HOST:PORT`); None if it has none yet.

    Raises:
        StreamDedupError: the index does not answer, or answers with an error.
    """
    try:
        status, body = http_client.ask(base, "/v1/stats", _ANSWER_SECONDS, _ANSWER_BYTES_MAX)
        fields = json.loads(body)
    except http_client.NO_ANSWER as error:
        reason = http_client.reason_of(error)
        raise StreamDedupError(
            f"No index answers at {base} ({reason}); see CONSOLE_INDEX."
        ) from error
    if status != http.client.OK or not isinstance(fields, dict) or "plan" not in fields:
        detail = fields.get("detail", status) if isinstance(fields, dict) else status
        raise StreamDedupError(f"The index at {base} answers: {detail}")
    return parse_plans(fields)


def parse_plans(stats: Mapping[str, Any]) -> IndexPlans | None:
    """Return the current plan and the past ones from the response of `/v1/stats`; None without one."""
    if not isinstance(stats.get("plan"), str):
        return None
    past = tuple(
        PastPlan(end_offset, end_ms, plans.parse(plan))
        for end_offset, end_ms, plan in stats["past_plans"]
    )
    return IndexPlans(plans.parse(stats["plan"]), past, stats["started_ms"])
