"""Writes tests/golden/formats/N: records, answers and a log of the newest format, as this version
of the program writes them.

    python -m tests.log.golden

Run it once for a format, before the first release that writes it. From then on its files are
frozen: every later version must read them, and write them again byte for byte (`test_formats`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from stream_dedup.domain.plan import Plan
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.log import answers, records
from tests.index.logs import RandomLog, append_time
from tests.log.test_answers import ANSWER, REJECTED
from tests.log.test_records import make_batch

FOLDER = Path(__file__).parent.parent / "golden" / "formats"
SKETCHES = Plan(
    width=128,
    blocks=4,
    radius=0,
    threshold=28,
    bands=16,
    similarity=65,
    asked=64,
    unsure=70,
    same_site=85,
    other_title=97,
)
BITS = Plan(128, 8, 1, 21, key_blocks=2, by_length=((5, 24),), ratio=75)
LOGS = {
    "log": RandomLog(2, SKETCHES, plan_changes=True, windows=True, orders=False),
    "log-orders": RandomLog(7, Plan(128, 8, 1, 21, ratio=75)),
}
ORDERS = {
    "declare": {
        "recipe": "words:128:jieba-0.42.1:1f3a9c",
        "group": "stream-dedup",
        "plan": SKETCHES.to_fields(),
        "floor": 3,
        "mode": 0,
        "better": "longest",
        "width": 128,
        "sketch_bytes": 120,
        "count_copies": True,
        "log_ids": "digest",
        "window": {"length_ms": 2_592_000_000, "refresh": False},
    },
    "plan": {"plan": BITS.to_fields(), "window": None, "better": "newest"},
    "retract": {
        "topic": "documents",
        "topic_id": bytes(range(16)).hex(),
        "positions": [[3, 8812, 42]],
    },
    "forget": {"ids": [b"https://a.example/".hex()]},
    "begun": {
        "log": bytes(16).hex(),
        "topic": "documents",
        "topic_id": bytes(range(16)).hex(),
        "partitions": [0, 3],
    },
    "opened": {"log": bytes(16).hex()},
    "reading": {
        "log": bytes(16).hex(),
        "settings": {"value_format": "json", "text_field": "text"},
        "changes": False,
    },
}


def records_of(form: int) -> dict[str, bytes]:
    """Return one record of each kind, and one order of each type."""
    return {
        "batch": records.encode_batch(make_batch(), form),
        "batch without sketches": records.encode_batch(make_batch(1, size=0), form),
        "seed": records.encode_seed(make_batch(2), form),
        "release": records.encode_release(records.Release(make_batch(1), 8812), form),
    } | {
        kind: records.encode_control(records.Control(kind, fields))
        for kind, fields in ORDERS.items()
    }


def answers_of(form: int) -> dict[str, bytes]:
    """Return one record of verdicts of each kind; each answer is the first."""
    return {
        "answer": answers.encode(ANSWER, answers.CHAIN_START, form)[0],
        "rejected": answers.encode(REJECTED, answers.CHAIN_START, form)[0],
        "announce": answers.encode_announce(answers.Announce(99), form),
    }


def index_answers(log: Sequence[tuple[int, bytes | None]]) -> dict[int, bytes]:
    """Return the answers to (append time, record) of a whole log, by log offset."""
    return dict(
        LogIndex(MemoryStore()).apply([(offset, *entry) for offset, entry in enumerate(log)])
    )


def _write(path: Path, found: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(path)


def main() -> None:
    form = max(records.FORMATS)
    folder = FOLDER / str(form)
    _write(folder / "records.json", {name: raw.hex() for name, raw in records_of(form).items()})
    _write(folder / "answers.json", {name: raw.hex() for name, raw in answers_of(form).items()})
    for name, source in LOGS.items():
        log = [(append_time(offset), raw) for offset, raw in enumerate(source.records(40))]
        written = [[append_ms, None if raw is None else raw.hex()] for append_ms, raw in log]
        _write(
            folder / f"{name}.json",
            {
                "log": written,
                "answers": {
                    log_offset: raw.hex() for log_offset, raw in index_answers(log).items()
                },
            },
        )


if __name__ == "__main__":
    main()
