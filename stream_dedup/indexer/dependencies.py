"""The index's dependencies: host, clock, Kafka clients, threads, volume and logger. Tests replace
them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import structlog
from structlog.typing import FilteringBoundLogger

from stream_dedup.domain.failpoints import VARIABLE
from stream_dedup.domain.threads import SideThread
from stream_dedup.domain.topics import TopicNames, TopicState
from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.kafka import (
    Admin,
    LogAppender,
    LogReader,
)
from stream_dedup.preflight.start import check_topics
from stream_dedup.settings.settings import Settings

_logger: FilteringBoundLogger = structlog.get_logger("stream_dedup.index")


@dataclass(frozen=True)
class IndexerDependencies:
    """Values, factories and functions that an index uses."""

    host: str
    failpoint: str | None
    monotonic: Callable[[], float] = time.monotonic
    make_admin: Callable[[Settings], Admin] = Admin
    make_log_reader: Callable[[Settings, str, str], LogReader] = LogReader
    make_verdict_writer: Callable[[Settings, str, str], LogAppender] = LogAppender
    check_topics: Callable[
        [Literal["index"], Settings, TopicNames, Admin], Mapping[str, TopicState]
    ] = check_topics
    open_store: Callable[[Path], Store] = RocksStore
    table_folder: Callable[[Path], Path | None] = lambda folder: folder / "tables"
    make_thread: Callable[[str], SideThread] = SideThread
    logger: FilteringBoundLogger = _logger

    @classmethod
    def of_process(cls) -> Self:
        """Return the dependencies of this process."""
        return cls(os.uname().nodename, os.environ.get(VARIABLE))
