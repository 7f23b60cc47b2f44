"""The console of a deployment, put together from its settings: what a role, or the demo, mounts at
`/`.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from stream_dedup.console.app import ConsolePages
from stream_dedup.console.attention import Attention
from stream_dedup.console.nouns import CrowdWitness, Decision
from stream_dedup.console.outputs import OutputRecords, OutputsFollower, waiting
from stream_dedup.console.recent import Recent
from stream_dedup.console.sources import ConsoleSources, TextAnswers
from stream_dedup.ground import plan as plans
from stream_dedup.ground.document import LogPlace
from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.ground.sketch import apart_in_words, beyond_crowd
from stream_dedup.log.headers import place_of
from stream_dedup.log.records import Batch
from stream_dedup.service import asking
from stream_dedup.settings.settings import Settings

_ANSWER_SECONDS: Final = 2.0
_ANSWER_BYTES_MAX: Final = 4_000_000
# What a sentence is about may be the last in the order of bits of all within reach; of a large site
# 201 were.
_CROWD_LISTED: Final = 1_000
_NOWHERE: Final = LogPlace(1 << 63, 0)


def sources_of(
    settings: Settings, stop: threading.Event, engine: TextAnswers | None = None
) -> ConsoleSources:
    """Return what Kafka, the index and the full-text engine tell, if there is one; nothing is
    waited for.

    The newest decisions are read until `stop` is set.
    """
    records = OutputRecords(settings)
    attention = Attention(settings, records.kafka)
    recent = Recent() if engine is None else Recent(as_shown=engine.as_shown)
    follower = OutputsFollower(settings, records, recent, stop)
    index = None if settings.console_index is None else index_at(settings.console_index)
    sources = ConsoleSources(
        recent=recent,
        away=records.silence,
        trouble=follower.trouble,
        opened=records.opened
        if engine is None
        else lambda at: engine.unless_forgotten(records.opened(at)),
        lag=lambda: records.kafka.ask(partial(waiting, settings)),
        remarks=attention.remarks,
        letters=attention.letters,
        events=attention.events,
        unwatched=attention.unwatched,
        index=index,
        threshold=None if index is None else threshold_in(index),
        witness=None
        if settings.console_index is None
        else witness_at(settings.console_index, records.judged),
    )
    if engine is not None:
        sources = replace(sources, find=engine.find, group=engine.group, groups=engine.groups)
    follower.start()
    return sources


def pages_of(settings: Settings, sources: ConsoleSources) -> ConsolePages:
    """Return the pages over some sources; their `routes` go to the role's `HttpServer`."""
    return ConsolePages(sources, settings.console_prefix, settings.console_token_file)


def index_at(base: str) -> Callable[[], dict[str, Any]]:
    """Return what asks the index at `http://HOST:PORT` for its figures."""
    return lambda: _asked(base, "/v1/stats", "entries")


def _asked(base: str, path: str, has: str) -> dict[str, Any]:
    """Return what the index at `base` answers, which has such a field."""
    try:
        status, body = asking.ask(base, path, _ANSWER_SECONDS, _ANSWER_BYTES_MAX)
        fields = json.loads(body)
    except asking.NO_ANSWER as error:
        why = asking.reason_of(error)
        raise StreamDedupError(
            f"Nothing that is an index answers at {base} ({why}); see CONSOLE_INDEX."
        ) from error
    if status != http.client.OK or not isinstance(fields, dict) or has not in fields:
        said = fields.get("detail", status) if isinstance(fields, dict) else status
        raise StreamDedupError(f"The index at {base} answers: {said}")
    return fields


def witness_at(
    base: str, judged: Callable[[Decision], tuple[Batch, int] | None]
) -> Callable[[Decision], CrowdWitness | None]:
    """Return what asks the index at `base` for the crowd of a decision's document, by what the log
    holds of it.
    """

    def witness(one: Decision) -> CrowdWitness | None:
        found = judged(one)
        if found is None:
            return None
        batch, row = found
        limbs, digest, sketch = (
            batch.prints[row].tolist(),
            batch.text_digest[row].tobytes(),
            batch.sketches[row].tobytes(),
        )
        features, scope = int(batch.features[row]), int(batch.scope[row])
        path = asking.similar_path(
            batch.recipe, limbs, digest, features, scope, sketch, limit=_CROWD_LISTED
        )
        return witness_in(_asked(base, path, "apart"), one)

    return witness


def witness_in(answer: Mapping[str, Any], one: Decision) -> CrowdWitness | None:
    """Return what an index's answer says of a decision, None where it says nothing of a crowd."""
    rows = [*answer["found"], *answer["apart"]] if one.is_duplicate else answer["apart"]
    if one.is_duplicate:
        rows = [row for row in rows if row["position"] == one.of_position]
    else:
        rows = [
            row
            for row in rows
            if (place_of(row["log"]) or _NOWHERE) < (place_of(one.log) or _NOWHERE)
        ]
    rows = [row for row in rows if row.get("crowd") is not None and row["similarity"] is not None]
    if not rows:
        return None
    row, asked = (
        max(rows, key=lambda row: row["similarity"]),
        plans.parse(answer["plan"]).crowd / 100,
    )
    name, similarity, others, share = (
        row["id"] or row["position"],
        row["similarity"],
        row["others"],
        row["crowd"],
    )
    beside = f"And {beyond_crowd(others)}, {share:.2f} is in both; a"
    if not one.is_duplicate:
        beside = f"Kept beside others like it: {apart_in_words(name, similarity, others, share)} A"
    said = f"{beside} copy has {asked:.2f} of it."
    return CrowdWitness(row["id"], row["position"], similarity, others, share, asked, said)


def threshold_in(stats: Callable[[], Mapping[str, Any]]) -> Callable[[], float | None]:
    """Return what tells the similarity that the plan in force asks for, by the index's figures;
    None if it asks for none.
    """

    def threshold() -> float | None:
        plan = stats().get("plan")
        similarity = plans.parse(plan).similarity if isinstance(plan, str) else 0
        return similarity / 100 if similarity else None

    return threshold
