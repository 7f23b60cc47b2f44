"""Whether an index could hold a plan, asked before the plan is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_dedup.cli import declare
from stream_dedup.ground.errors import ConfigurationError, InputError
from stream_dedup.ground.plan import PLANS
from stream_dedup.ground.sketch import SKETCH_BYTES
from stream_dedup.index.index import LogIndex
from stream_dedup.index.tables.budget import Budget
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.indexer.api import IndexApi
from stream_dedup.service.ports import free_ports
from tests.index.logs import APPEND_MS, Doc, batch
from tests.index.logs import declare as declaration
from tests.service.serving import serving


@pytest.fixture(params=[0, 1, 8 << 30])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Where an index answers, and how much memory it may take."""
    index = LogIndex(MemoryStore(), Budget(8 << 30, tmp_path))
    docs = [Doc(0, n, n, bytes([n]) * 16, n << 40, sketch=bytes(SKETCH_BYTES)) for n in range(3)]
    index.apply([(0, APPEND_MS, declaration(PLANS["classic"])), (1, APPEND_MS, batch(docs))])
    index._budget = Budget(request.param, tmp_path)
    api = IndexApi()
    api.serve(index)
    with serving(api.routes()) as server:
        yield f"http://127.0.0.1:{server.port}", request.param


def test_an_index_says_whether_it_holds_a_plan(index: tuple[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    address, memory_bytes = index
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    if memory_bytes == 1:
        with pytest.raises(ConfigurationError, match=r"needs at least 5\d\d MiB .* kept: 1\), .* Nothing was written"):
            declare._ask_for_memory([nobody, address], PLANS["bands"])
    else:
        declare._ask_for_memory([nobody, address], PLANS["bands"])
        told = capsys.readouterr().err
        assert f"The index at {address} needs 510 MiB" in told
        assert ("of the 8,192 MiB" in told) == bool(memory_bytes)


def test_without_an_answer_nothing_is_written() -> None:
    with pytest.raises(InputError, match=r"No index answers at .* Nothing was written: .*--index .*--unasked"):
        declare._ask_for_memory([f"http://127.0.0.1:{free_ports(1)[0]}"], PLANS["bands"])
