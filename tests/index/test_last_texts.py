"""What text an id had last: what is written of it goes with the entry, and is found in one step."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_dedup.ground.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.entries import Entries
from stream_dedup.index.volume.layout import PREFIX_LAST_TEXT
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.log import answers
from stream_dedup.log.answers import LogAnswer
from tests.index.logs import Doc, batch, control, declare, forget, retract


def written(volume: dict[bytes, bytes]) -> set[int]:
    return {int.from_bytes(key[1:], "big") for key in volume if key.startswith(PREFIX_LAST_TEXT)}


@pytest.mark.parametrize("how", ["retract", "forget", "window"])
def test_what_an_id_had_last_goes_with_its_entry(how: str) -> None:
    """A volume that runs for years holds of it what it needs for the entries that stand."""
    chance = random.Random(5)
    prints = [chance.getrandbits(128) for _ in range(4)]
    kept = [Doc(0, at, at, bytes([at] * 16), prints[at], id=b"%d" % (at % 2)) for at in range(4)]
    again = [Doc(0, 10 + at, at, bytes([at] * 16), prints[at], id=b"%d" % (at % 2)) for at in (0, 1)]
    end = {
        "retract": [retract(kept[3])],
        "forget": [forget(b"1")],
        "window": [control("plan", window={"length_ms": 1000, "refresh": False})],
    }[how]
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    log = [declare(PLANS["classic"]), batch(kept), batch(again)]
    index.apply([(offset, 0, record) for offset, record in enumerate(log)])
    assert written(volume) == {2, 3}
    late = [] if how != "window" else [control("plan")] * 2000
    index.apply([(len(log) + at, at * 1000, record) for at, record in enumerate([*end, *late])])

    assert written(volume) == (set() if how == "window" else {2})


def test_the_latest_of_an_id_is_found_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many have the id: where records are keyed by host, thousands do."""
    chance = random.Random(6)
    docs = [Doc(0, at, at, chance.randbytes(16), chance.getrandbits(128), id=b"a.example") for at in range(3000)]
    index = LogIndex(MemoryStore())
    records = [declare(PLANS["classic"]), *(batch(docs[first : first + 500]) for first in range(0, len(docs), 500))]
    index.apply([(offset, 0, record) for offset, record in enumerate(records)])
    looked_at: list[int] = []
    texts = Entries.texts

    def counted(self: Entries, numbers: NDArray[np.int64]) -> list[tuple[int, bytes, bytes]]:
        looked_at.extend(numbers.tolist())
        return texts(self, numbers)

    monkeypatch.setattr(Entries, "texts", counted)
    new = Doc(0, 3002, 2, chance.randbytes(16), chance.getrandbits(128), id=b"a.example")
    asked = [replace(docs[-1], offset=3000), replace(docs[0], offset=3001), new, replace(docs[0], offset=3003)]
    ((_, raw),) = index.apply([(len(records), 0, batch(asked))])
    answer = answers.decode(raw)
    assert isinstance(answer, LogAnswer)

    assert [one.reason.label for one in answer.judgements] == ["unchanged", "returned", "new", "returned"]
    assert looked_at == []
    index.apply(
        [(len(records) + 1, 0, batch([replace(docs[-1], id=b"b.example", offset=3004), replace(docs[7], offset=3005)]))]
    )
    assert looked_at == [3000]
