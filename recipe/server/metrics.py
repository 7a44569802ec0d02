"""Numbers for Prometheus: the engine's, by its own collector, and those of the HTTP side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from stepahead import prometheus_collector

from .errors import HttpError


class HttpCounts:
    """Requests by path and status. Written by the loop, read at a scrape."""

    def __init__(self) -> None:
        self.running = 0
        self._answered: Counter[tuple[str, int]] = Counter()

    def add(self, path: str, status: int) -> None:
        self._answered[path, status] += 1

    def collect(self) -> Iterator[Any]:
        """Metrics as prometheus-client's collectors give them."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        requests = CounterMetricFamily(
            "stepahead_http_requests", "Requests answered.", labels=["path", "status"]
        )
        for (path, status), count in self._answered.items():
            requests.add_metric([path, str(status)], count)
        yield requests
        yield GaugeMetricFamily(
            "stepahead_http_requests_running", "Requests being answered.", value=self.running
        )


def exposition(engine: Any, counts: HttpCounts) -> tuple[str, bytes]:
    """Content type and text of a scrape. Raises `HttpError` where prometheus-client is not installed."""
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    except ImportError:
        raise HttpError(501, "metrics need prometheus-client: stepahead[metrics]", "server_error") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(prometheus_collector(engine))
    registry.register(counts)
    return CONTENT_TYPE_LATEST, generate_latest(registry)
