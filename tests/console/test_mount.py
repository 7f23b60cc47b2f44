"""What the console asks other roles for."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_dedup.console.mount import index_at
from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.indexer.api import IndexApi
from tests.service.serving import serving


def test_what_an_index_refuses_is_told_in_its_own_words(tmp_path: Path) -> None:
    for routes, sentence in ((IndexApi().routes(), "still opening its volume"), ([], "There is nothing here")):
        said = rf"^The index at http://127.0.0.1:\d+ answers: .*{sentence}"
        with serving(routes) as server, pytest.raises(StreamDedupError, match=said):
            index_at(f"http://127.0.0.1:{server.port}")()
