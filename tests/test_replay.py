"""Judge recorded logs again, under their plan and others; logs of every format version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stream_dedup.audit.judgements import Fold
from stream_dedup.audit.replay import Alternative, Difference, compare
from stream_dedup.audit.scan import PlainScan
from stream_dedup.domain.errors import ConfigurationError, InputError
from stream_dedup.domain.plan import PLANS, parse
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.log import answers
from tests.index.logs import APPEND_MS, Doc, RandomLog, batch, control, declare, read

GOLDEN = sorted((Path(__file__).parent / "golden" / "formats").glob("*/log*.json"))
PRINT = 0x0123456789ABCDEF_FEDCBA9876543210


def find_difference(log: list[bytes | None], *texts: str, step_ms: int = 0) -> Difference:
    found = Difference(3)
    group = [(offset, APPEND_MS + step_ms * offset, raw) for offset, raw in enumerate(log)]
    recorded, other = LogIndex(MemoryStore()), LogIndex(MemoryStore())
    compare([group[:2], group[2:]], recorded, other, Alternative.parse(texts), found)
    return found


def test_another_plan_shows_what_would_change() -> None:
    """A near copy beyond classic's reach would be kept; the sample says which and of what."""
    docs = [
        Doc(0, 0, 1, b"a" * 16, PRINT),
        Doc(0, 1, 2, b"b" * 16, PRINT ^ 0x1F, id=b"two"),
        Doc(0, 2, 3, b"a" * 16, PRINT),
    ]
    log: list[bytes | None] = [declare(PLANS["blocks"]), batch(docs), batch(docs[1:])]

    found = find_difference(log, "plan=classic")

    assert (found.documents, dict(found.kinds)) == (3, {"duplicate to unique": 1})
    was = {"reason": "near", "distance": 5, "of_position": "documents-0@0", "of_id": ""}
    would_be = {"reason": "new", "distance": None, "of_position": None, "of_id": None}
    fields = {"change": "duplicate to unique", "log": "1/1", "position": "documents-0@1"}
    fields |= {"id": "two", "was": was | {"better": ""}, "would_be": would_be | {"better": ""}}
    assert found.samples[0].to_fields() == fields
    assert find_difference(log, "threshold=4").kinds == {"duplicate to unique": 1}
    assert find_difference(log, "plan=classic", "threshold=5", "radius=3").kinds == {}


def test_another_similarity_shows_what_would_change() -> None:
    """Two texts that share 64 of 80 values are near at 0.8, and kept at 0.81."""
    first = bytes([*range(80), *bytes(40)])
    other = bytes([*range(64), *range(100, 116), *[0x11] * 7, 1, *bytes(32)])
    docs = [
        Doc(0, 0, 1, b"a" * 16, PRINT, sketch=first),
        Doc(0, 1, 2, b"b" * 16, PRINT ^ 0x1F, sketch=other),
    ]
    log: list[bytes | None] = [declare(PLANS["bands"], sketch_bytes=120), batch(docs)]

    assert find_difference(log, "similarity=0.8").kinds == {}
    found = find_difference(log, "similarity=0.81")
    assert (found.documents, dict(found.kinds)) == (2, {"duplicate to unique": 1})
    assert find_difference(log, "plan=blocks", "threshold=4").kinds == {"duplicate to unique": 1}
    assert find_difference(log, "plan=blocks").kinds == {}


def test_another_window_shows_what_would_change() -> None:
    """An expired document would still be known, and the other way round."""
    docs = [Doc(0, number, number, b"a" * 16, PRINT) for number in range(2)]
    log: list[bytes | None] = [
        declare(PLANS["blocks"]),
        batch(docs[:1]),
        control("plan"),
        control("plan"),
        batch(docs[1:]),
    ]
    windowed = declare(PLANS["blocks"], window={"length_ms": 16_000, "refresh": False})

    assert find_difference(log, "window=16s", step_ms=60_000).kinds == {}
    many = [*log[:2], *[control("plan")] * 40, log[-1]]
    assert find_difference(many, "window=16s", step_ms=60_000).kinds == {"duplicate to unique": 1}
    assert find_difference(many, "window=16s", "refresh=true", step_ms=10).kinds == {}
    found = find_difference([windowed, *many[1:]], "window=none", step_ms=60_000).kinds
    assert found == {"unique to duplicate": 1}


def test_another_rule_shows_which_copies_would_be_better() -> None:
    """A longer or a later copy would be better; verdicts stay the same."""
    docs = [
        Doc(0, 0, 1, b"a" * 16, PRINT, 100, time_ms=5000),
        Doc(0, 1, 2, b"b" * 16, PRINT ^ 1, 120, id=b"longer", time_ms=4000),
        Doc(0, 2, 3, b"c" * 16, PRINT ^ 2, 101, id=b"later", time_ms=6000),
    ]
    log: list[bytes | None] = [declare(PLANS["blocks"]), batch(docs[:2]), batch(docs[2:])]

    assert find_difference(log, "better=longest").kinds == {}
    found = find_difference(log, "better=newest")
    assert (found.documents, dict(found.kinds)) == (3, {"another best copy": 2})
    fields = [sample.to_fields() for sample in found.samples]
    better = [
        (sample["id"], sample["was"]["better"], sample["would_be"]["better"]) for sample in fields
    ]
    assert better == [("longer", "longest", ""), ("later", "", "newest")]
    changed: list[bytes | None] = [*log[:2], control("plan", better="newest"), log[2]]
    assert find_difference(changed, "better=longest").kinds == {"another best copy": 1}
    assert find_difference(changed, "plan=blocks").kinds == {}


def test_the_same_plan_changes_nothing() -> None:
    log = RandomLog(7, PLANS["blocks"], windows=True).records(60)

    found = find_difference(log, "plan=blocks")

    assert found.documents > 50
    assert (dict(found.kinds), found.was) == ({}, found.would_be)


@pytest.mark.parametrize(
    "text",
    [
        *("plan", "colour=red", "threshold=many", "by_length=3", "threshold", "window=long"),
        "better=shortest",
    ],
)
def test_unknown_settings_and_plans_that_the_log_cannot_serve_are_refused(
    text: str,
) -> None:
    with pytest.raises(
        (InputError, ConfigurationError),
        match=r"such as plan=classic|There is no plan|BITS@FEATURES|A window must be|The rule for better copies must be longest",
    ):
        Alternative.parse([text])
    log: list[bytes | None] = [
        declare(PLANS["classic"], width=128),
        batch([Doc(0, 0, 1, bytes(16), PRINT)]),
    ]
    with pytest.raises(ConfigurationError, match="The plan cannot judge this log"):
        find_difference(log, "plan=256:8:1:21")


def test_given_numbers_replace_those_of_the_log() -> None:
    blocks = PLANS["blocks"].to_fields()

    assert Alternative.parse(["threshold=18"]).replace_plan(blocks) == parse(
        "128:8:0:18:75%~0:0%:1000"
    )
    assert Alternative.parse(["plan=classic", "ratio=60%"]).replace_plan(blocks) == parse(
        "64:4:0:3:60%"
    )
    assert Alternative.parse(["by_length=24@5,22@40"]).replace_plan(blocks) == parse(
        "128:8:0:24@5,22@40,17:75%~0:0%:1000"
    )


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_log_gives_the_recorded_answers(path: Path) -> None:
    recorded = json.loads(path.read_text())
    log = [
        (offset, append_ms, None if raw is None else bytes.fromhex(raw))
        for offset, (append_ms, raw) in enumerate(recorded["log"])
    ]

    index, fold = LogIndex(MemoryStore()), Fold(PlainScan())
    given = dict(index.apply(log))

    found = {offset: raw.hex() for offset, raw in given.items()}
    assert found == {int(number): raw for number, raw in recorded["answers"].items()}
    for offset, append_ms, raw in log:
        answer = answers.decode(given[offset]) if offset in given else None
        expected = answer.judgements if isinstance(answer, answers.LogAnswer) else None
        assert fold.judge(offset, append_ms, read(raw)) == expected
