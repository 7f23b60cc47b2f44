"""The figures that sizing rests on, as they were measured last: `plan` reckons with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("measured.json")


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures, and the day, the machine and the documents they belong to.

    `*_us` are CPU time of a document by plan, the index's beside few representatives; `rate` is documents a second through both
    roles by plan, the broker beside them. `log_bytes` is of a document before replication, its id included. `constants` are
    those of `index.calibration`, `surrounding_us` is what surrounds a search. `disk_bytes` and `memory_bytes` by plan are of a
    representative with an id of `id_bytes`; `index_bytes` is what an index takes beside them at its most, by plan.
    """

    date: str
    machine: str
    documents: str
    rate: Mapping[str, float]
    worker_us: Mapping[str, float]
    index_us: Mapping[str, float]
    broker_us: Mapping[str, float]
    log_bytes: float
    constants: Mapping[str, float]
    surrounding_us: float
    id_bytes: float
    disk_bytes: float
    memory_bytes: Mapping[str, float]
    index_bytes: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


def read(file: Path = FILE) -> Measured:
    """Return the figures that a file keeps."""
    return Measured(**json.loads(file.read_text(encoding="utf-8")))


MEASURED: Final = read()
