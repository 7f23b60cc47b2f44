"""What the role insights counts."""

from __future__ import annotations

from functools import partial

from prometheus_client import Counter, Gauge

from stream_dedup.service.metrics import RoleMetrics


class InsightsMetrics(RoleMetrics):
    """What the role insights reports; nothing of it is by host."""

    def __init__(self) -> None:
        super().__init__()
        self.recipe("")
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self._read = counter(
            "stream_dedup_insights_records",
            "Records of insights: counted, counted before, or not readable.",
            ["result"],
        )
        self._hosts = gauge("stream_dedup_insights_hosts", "Hosts that are remembered.")
        self._signals = counter("stream_dedup_host_signals", "Records written to host-signals.")
        self._events = counter(
            "stream_dedup_host_events",
            "Times that an event began at a host.",
            ["event"],
        )
        self._lag = gauge("stream_dedup_insights_lag_records", "Records of insights that wait to be read.")
        for result in ("counted", "repeated", "malformed"):
            self._read.labels(result)
        for event in ("one-page", "vanishing"):
            self._events.labels(event)

    def read(self, result: str) -> None:
        """Count a record: `counted`, `repeated` or `malformed`."""
        self._read.labels(result).inc()

    def wrote(self, signals: int, hosts: int) -> None:
        """Count signals that were written; say how many hosts there are."""
        self._signals.inc(signals)
        self._hosts.set(hosts)

    def event(self, kind: str) -> None:
        """Count something that has begun at a host."""
        self._events.labels(kind).inc()

    def lag(self, records: int) -> None:
        """Say how many records wait."""
        self._lag.set(records)
