"""Sample sources of a running system, with hostile texts; the docs' screenshots show them too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from stream_dedup.console.recent_decisions import Recent
from stream_dedup.console.sources import ConsoleSources
from stream_dedup.console.values import (
    DeadLetters,
    Decision,
    DocumentGroup,
    FoundDocument,
    FoundDocuments,
    GroupMember,
    HostEvent,
    HostPair,
    HostPairs,
    IndexPlans,
    LetterKind,
    ListedLetter,
    OpenedRecord,
    Remark,
)
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.plan import PLANS

HOUR_MS = 1_764_000_000_000
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[31m\u202egnp\x00"
KEPT = (
    "The harbour council voted on Tuesday to close the old northern pier to traffic from the first "
    "of May, after engineers "
    "found that eleven of its forty wooden piles had rotted below the water line. Repairs are "
    "expected to take two years and "
    "cost about nine million. Fishermen who moor there will be offered places in the southern "
    "basin, the council said. "
    "北の桟橋は五月に閉鎖される。"
)
COPY = (
    KEPT.replace("on Tuesday", "on Tuesday evening")
    .replace("eleven", "twelve")
    .replace("閉鎖される", "閉じられる")
)
TITLE = "Northern pier to close in May"
REASONS = ("new", "new", "near", "new", "exact", "unchanged", "new", "revised", "near", "new")
EVENTS = (
    "mirror.example",
    HostEvent("about 60 pages were dropped as copies of one page", 60, "documents-0@1"),
)


def letter(place: int, **overrides: object) -> ListedLetter:
    """Return the dead letter with index `place`."""
    fields: dict[str, object] = {
        "position": f"dlq.documents-0@{place}",
        "source_position": f"documents-0@{7 * place}",
        "stage": "decode",
        "error_class": "JSONDecodeError",
        "error_message": "The value is no JSON: Expecting ',' delimiter at character 3,021.",
        "size": 4_000 + place,
        "time_ms": HOUR_MS - place * 60_000,
        "is_sent_back": False,
        "is_cut": False,
    }
    return ListedLetter(**(fields | overrides))  # type: ignore[arg-type]


REDRIVE = "stream-dedup dlq redrive --stage"
KINDS = (
    LetterKind("decode", "JSONDecodeError", 6, 5, f"{REDRIVE} decode --class JSONDecodeError"),
    LetterKind("fetch", "GivenUp", 2, 1, f"{REDRIVE} fetch --class GivenUp"),
)
LETTERS = DeadLetters(
    8, True, KINDS, tuple(letter(place, is_sent_back=place == 3) for place in range(6))
)


def decision(place: int, reason: str | None = None, **overrides: object) -> Decision:
    """Return the decision with index `place` in the sample."""
    reason = reason or REASONS[place % len(REASONS)]
    is_duplicate = reason not in ("new", "too-short")
    topic = "duplicates" if is_duplicate else "unique"
    host = ("news.example", "www.harbour.example", "mirror.example")[place % 3]
    fields: dict[str, object] = {
        "output_position": f"{topic}-{place % 3}@{place}",
        "topic": topic,
        "partition": place % 3,
        "offset": place,
        "id": f"https://{host}/articles/{place}",
        "source_position": f"documents-0@{place}",
        "host": host,
        "verdict": "duplicate" if is_duplicate else "unique",
        "reason": reason,
        "time_ms": HOUR_MS - (500 - place) * 6_000,
        "size": 3_000 + 37 * (place % 50),
        "fingerprint": f"{0x0123_4567_89AB_CDEF_0123_4567_89AB_CDEF ^ (place % 2 * 0x1_0001_0300):032x}",
        "recipe": "words.1:abc",
        "log": f"{place // 10}/{place % 10}",
        "headers": (("crawl", "2026-11"), ("dedup.reason", reason)),
        "title": TITLE,
        "latency_ms": 30 + place % 40,
    }
    if is_duplicate:
        fields |= {
            "distance": place % 22,
            "copies": place // 7 + 1,
            "better": "longest" if place % 20 == 8 else "",
            "similarity": 1.0 if reason in ("exact", "unchanged") else 0.7 + (place % 29) / 100,
            "kept_position": f"documents-0@{place % 7}",
            "kept_id": f"https://news.example/articles/{place % 7}",
        }
    return Decision(**(fields | overrides))  # type: ignore[arg-type]


def open_record(position: str) -> OpenedRecord:
    """Return the record at a position; retention removed offsets from 900,000 on."""
    topic, _, offset = position.partition("-")[0], *position.rpartition("@")[1:]
    if topic not in ("documents", "unique", "duplicates"):
        raise InputError(f"{position} lies in no topic that is opened here.")
    if int(offset) >= 900_000:
        return OpenedRecord(
            position,
            "",
            "",
            f"{topic}-0 holds offsets 0 to 899999; {offset} is not kept any more (retention), or "
            "never was.",
        )
    output_decision = None if topic == "documents" else decision(int(offset))
    return OpenedRecord(
        position,
        output_decision.id if output_decision else f"https://news.example/articles/{offset}",
        COPY if output_decision else KEPT,
        "",
        output_decision,
        title=TITLE,
    )


def find(clue: str, limit: int, *, offset: int = 0, **_: object) -> FoundDocuments:
    """Return two documents for any query except `nothing`."""
    if clue == "nothing":
        return FoundDocuments()
    snippet, base_url = (
        ((KEPT[:60], False), (KEPT[60:140], True), (KEPT[140:200], False)),
        "https://news.example/articles",
    )
    documents = tuple(
        FoundDocument(
            output_position=f"unique-0@{number}",
            id=f"{base_url}/{number}",
            share=1 - number / 10,
            snippet=snippet,
            verdict="unique",
            time_ms=HOUR_MS,
            group_position="documents-0@1",
            host="news.example",
        )
        for number in range(2)[offset : offset + limit]
    )
    return FoundDocuments(documents, 2, True, 1)


def group(named: str = "documents-0@1", **overrides: object) -> DocumentGroup | None:
    """Return the group of a kept page with three copies on two other hosts; None for an unknown
    name.
    """
    if named == "https://nobody.example/\0" or named.endswith("777"):
        return None
    members = tuple(
        GroupMember(
            output_position=f"duplicates-2@{place}",
            id=f"https://{host}/{place}",
            host=host,
            time_ms=HOUR_MS - place * 60_000,
            reason=reason,
            similarity=1.0 if reason == "exact" else 0.9,
            size=3_000 + place,
            title=TITLE,
            first_ms=HOUR_MS - place * 60_000,
            newest_ms=HOUR_MS - place * 60_000,
        )
        for place, host, reason in (
            (8, "mirror.example", "near"),
            (11, "agency.example", "exact"),
            (14, "mirror.example", "near"),
        )
    )
    fields: dict[str, object] = {
        "position": "documents-0@1",
        "id": "https://news.example/articles/1",
        "copies": 3,
        "bytes_wasted": 9_033,
        "newest_ms": members[0].time_ms,
        "members": members,
        "oldest_ms": members[-1].time_ms,
        "counted": 3,
        "host": "news.example",
        "earliest": members[-1],
        "member_count": 3,
    }
    return DocumentGroup(**(fields | overrides))  # type: ignore[arg-type]


def groups(_: str, limit: int, offset: int = 0) -> list[DocumentGroup]:
    """Return one page of 120 groups."""
    candidates = (group(position=f"documents-1@{place}", copies=place + 1) for place in range(120))
    return [candidate for candidate in candidates if candidate][offset : offset + limit]


def pairs(_: str) -> HostPairs:
    """Return one pair of hosts, of which one copied the other."""
    copied = HostPair(
        "b.example", "a.example", 1_234, 1, HOUR_MS, "duplicates-0@1", "", is_older_than_kept=True
    )
    return HostPairs((copied,), HOUR_MS)


SEARCH = {
    "find": find,
    "group": group,
    "groups": groups,
    "host_pairs": pairs,
    "released_position": lambda _: "",
}


def sources(
    count: int = 500,
    *,
    redact_decision: Callable[[Decision], Decision | None] = lambda entry: entry,
    **overrides: object,
) -> ConsoleSources:
    """Return the sources of a working system; keywords replace sources or parts of the search."""
    search = {name: overrides.pop(name, call) for name, call in SEARCH.items()}
    recent = Recent(now_ms=lambda: HOUR_MS, redact_decision=redact_decision)
    recent.add(decision(place) for place in range(count))
    fields: dict[str, object] = {
        "recent": recent,
        "read_record": open_record,
        "search": SimpleNamespace(**search),
        "lag": lambda: {0: 12, 1: 0, 2: 30},
        "plans": lambda: IndexPlans(PLANS["bands"]),
        "remarks": lambda: [
            Remark(
                "warning",
                "Dead letters that were not sent back: 6 (stage decode, fetch).",
                "dead-letters",
            ),
            Remark(
                "warning",
                f"{EVENTS[0]}: {EVENTS[1].text}",
                f"decisions?host={EVENTS[0]}",
                60,
                EVENTS[0],
            ),
        ],
        "dead_letters": lambda: LETTERS,
        "host_events": lambda: {EVENTS[0]: (EVENTS[1],), "silent.example": (EVENTS[1],)},
    }
    return ConsoleSources(**(fields | overrides))  # type: ignore[arg-type]
