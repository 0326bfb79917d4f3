"""What a server measures, for Prometheus. Labels come from fixed sets: routes, status codes, models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
COPIES = (1, 4, 16, 64, 256, 1024, 4096, 16384)


class Meters:
    """The measurements of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        model: dict[str, Any] = {"labelnames": ("model",), "registry": self.registry}
        self._requests = Counter(
            "adaptdel_requests", "Requests by route and status code.", ("route", "code"), registry=self.registry
        )
        self._latency = Histogram(
            "adaptdel_request_seconds", "Time of a request.", ("route",), buckets=SECONDS, registry=self.registry
        )
        self._in_flight = Gauge("adaptdel_requests_in_flight", "Requests that are worked on.", registry=self.registry)
        self._texts = Counter("adaptdel_texts", "Texts that were answered.", **model)
        self._votes = Counter("adaptdel_votes", "Votes of the base classifier.", **model)
        self._abstentions = Counter("adaptdel_abstentions", "Texts for which nothing was certified.", **model)
        self._late = Counter("adaptdel_deadlines_reached", "Texts whose votes a deadline ended.", **model)
        self._batches = Histogram("adaptdel_batch_copies", "Copies in a batch.", buckets=COPIES, **model)

    def request(self, route: str, code: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(route, str(code)).inc()
        self._latency.labels(route).observe(seconds)

    def in_flight(self, count: int) -> None:
        """The number of requests that are worked on."""
        self._in_flight.set(count)

    def batch(self, model: str, copies: int) -> None:
        """A batch was classified."""
        self._batches.labels(model).observe(copies)
        self._votes.labels(model).inc(copies)

    def answered(self, model: str, *, abstained: bool, late: bool) -> None:
        """A text was answered."""
        self._texts.labels(model).inc()
        if abstained:
            self._abstentions.labels(model).inc()
        if late:
            self._late.labels(model).inc()

    def watch(self, sizes: Callable[[], dict[str, tuple[int, int]]]) -> None:
        """Also report the number of texts that wait and that are in the pool, by model."""
        self.registry.register(_Sizes(sizes))

    def page(self) -> bytes:
        """All measurements in the text format of Prometheus."""
        return generate_latest(self.registry)


class _Sizes:
    def __init__(self, sizes: Callable[[], dict[str, tuple[int, int]]]) -> None:
        self._sizes = sizes

    def collect(self) -> Any:
        """The measurements now."""
        queue = GaugeMetricFamily("adaptdel_queue_texts", "Texts that wait for a place in the pool.", labels=["model"])
        pool = GaugeMetricFamily("adaptdel_pool_texts", "Texts that are voted on together.", labels=["model"])
        for model, (waiting, active) in self._sizes().items():
            queue.add_metric([model], waiting)
            pool.add_metric([model], active)
        return [queue, pool]
