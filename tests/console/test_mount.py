"""What the console asks other roles for."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from stream_dedup.console.mount import index_at
from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.indexer.api import IndexApi
from stream_dedup.service.health import Health
from stream_dedup.service.http import HttpServer


def test_what_an_index_refuses_is_told_in_its_own_words(tmp_path: Path) -> None:
    for routes, sentence in ((IndexApi().routes(), "still opening its volume"), ([], "There is nothing here")):
        server = HttpServer("127.0.0.1", 0, Health(), CollectorRegistry(), routes)
        server.start()
        try:
            with pytest.raises(StreamDedupError, match=rf"^The index at http://127.0.0.1:{server.port} answers: .*{sentence}"):
                index_at(f"http://127.0.0.1:{server.port}")()
        finally:
            server.stop()
