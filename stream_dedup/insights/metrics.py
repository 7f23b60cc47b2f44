"""The metrics of the role insights."""

from __future__ import annotations

from stream_dedup.serving.metrics import RoleMetrics


class InsightsMetrics(RoleMetrics):
    """The metrics of the role; none has a label with a host."""

    def __init__(self) -> None:
        super().__init__()
        self.set_recipe("")
        counter, gauge = self._counter, self._gauge
        self.read = counter(
            "stream_dedup_insights_records",
            "Output records by result: counted, counted before, or without a host.",
            ["result"],
        )
        self.hosts = gauge("stream_dedup_insights_hosts", "Hosts with statistics.")
        self.signals = counter("stream_dedup_host_signals", "Records written to host-signals.")
        self.events = counter("stream_dedup_host_events", "Events that began at a host.", ["event"])
        self.lag = gauge("stream_dedup_insights_lag_records", "Output records not yet read.")
        for result in ("counted", "repeated", "no-host"):
            self.read.labels(result)
        for event in ("one-page", "template", "vanishing"):
            self.events.labels(event)
