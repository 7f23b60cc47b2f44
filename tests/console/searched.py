"""Sources with a real full-text engine: articles in two languages with their copies, and a hostile
page. Also for pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from stream_dedup.console.recent_decisions import Recent
from stream_dedup.console.sources import ConsoleSources
from stream_dedup.console.values import Decision, OpenedRecord
from stream_dedup.fingerprinting import Languages
from stream_dedup.search.facts import EngineCheckpoint, TextFacts
from stream_dedup.search.finding import Finder
from stream_dedup.search.query import words_of
from stream_dedup.search.texts import TextIndex
from tests.console.sample import COPY, EVIL, HOUR_MS, KEPT, TITLE, decision, sources

# Two sentences as an editor would paste them; one word is not in the article.
SENTENCES = (
    "Repairs are expected to take three years and cost about nine million. Fishermen who moor "
    "there will be offered places in "
    "the southern basin, the council said."
)
JAPANESE = "北の桟橋は五月に閉鎖される。漁船は南の港に移る。修理には二年かかると市議会は述べた。"
# Only Latin script, because other fonts may be missing where screenshots are taken.
ARTICLE, EDITED = (text.partition("北")[0].strip() for text in (KEPT, COPY))
KEPT_AT = "documents-0@3"
GROUP = f"group?document={KEPT_AT}"
# (place in the sample, reason, host and path, text)
_ARTICLES = (
    (3, "new", "www.harbour-gazette.example/2025/11/24/northern-pier-to-close", ARTICLE),
    (8, "near", "mirror.example/news/harbour/northern-pier-to-close-from-may", EDITED),
    (11, "exact", "agency-reprints.example/a/4711", ARTICLE),
    (
        14,
        "revised",
        "www.harbour-gazette.example/2025/11/24/northern-pier-to-close",
        ARTICLE.replace("two years", "three years"),
    ),
    (17, "near", "city-blog.example/pier", "What the council said, in full. " + EDITED),
    (21, "new", "asahi.example/minato/1", JAPANESE),
    (24, "near", "mainichi.example/minato/2", JAPANESE.replace("五月", "六月")),
    (27, "new", "evil.example/", f"{EVIL} a page of nine harmless looking words {EVIL}"),
    (
        30,
        "new",
        "other.example/rain",
        "It rained on the southern basin, and nobody from the council was there to see it rain.",
    ),
)


def _decision(place: int, reason: str, path: str) -> Decision:
    kept_places = {3: (), 21: ()}.get(place, (21,) if place == 24 else (3,))
    article_decision = decision(
        place,
        reason,
        id=f"https://{path}",
        host=path.partition("/")[0],
        source_position=f"documents-0@{place}",
    )
    if not article_decision.is_duplicate:
        return article_decision
    kept = next(article for article in _ARTICLES if article[0] == kept_places[0])
    return replace(
        article_decision,
        kept_position=f"documents-0@{kept[0]}",
        kept_id=f"https://{kept[2]}",
        similarity={"exact": 1.0, "revised": 0.96}.get(reason, 0.87),
        better="longest" if place == 17 else "",
        copies=None,
    )


@contextmanager
def open_searchable_sources(folder: Path) -> Iterator[ConsoleSources]:
    """Fill a full-text engine in `folder` and yield sources that search it."""
    decisions = {place: _decision(place, reason, path) for place, reason, path, _ in _ARTICLES}
    texts = {decisions[place].output_position: text for place, _, _, text in _ARTICLES}
    texts |= {
        f"documents-0@{place}": text for place, reason, _, text in _ARTICLES if reason == "new"
    }
    engine = TextIndex(folder)
    for entry in decisions.values():
        facts = TextFacts(
            entry.output_position,
            entry.id,
            entry.time_ms,
            entry.size,
            entry.verdict,
            entry.reason,
            entry.similarity,
            entry.kept_position,
            entry.kept_id,
        )._replace(source_position=entry.source_position, better=entry.better, title=entry.title)
        engine.add_text(facts, words_of(texts[entry.output_position], Languages()))
    engine.commit(EngineCheckpoint({}, {}))

    def texts_at(places: Iterable[str]) -> Mapping[str, str]:
        return {place: texts[place] for place in places}

    def open_record(position: str) -> OpenedRecord:
        known = next(
            (entry for entry in decisions.values() if entry.output_position == position), None
        )
        return OpenedRecord(
            position, known.id if known else "", texts.get(position, ""), "", known, title=TITLE
        )

    finder = Finder(engine, Languages(), texts_at)
    recent = Recent(now_ms=lambda: HOUR_MS)
    recent.add(decisions.values())
    try:
        yield sources(
            recent=recent,
            read_record=open_record,
            search=finder,
        )
    finally:
        engine.close()
