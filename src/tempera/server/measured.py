"""Measures of a server, in the form of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector

from .refusals import TYPES

CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ITEMS = (1, 2, 4, 8, 16, 32, 64)
_WORKS = ("embeddings", "search", "recommend")


class Measured:
    """Count what a server does. The values of labels are known beforehand, so that no request adds
    one.

    Args:
        endpoints: paths.
        runs: names of runs.
        queue: returns the number of requests that wait.
    """

    def __init__(
        self, endpoints: tuple[str, ...], runs: tuple[str, ...], queue: Callable[[], int]
    ) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        ProcessCollector(registry=registry)
        latency = Histogram(
            "tempera_request_seconds",
            "Seconds from the headers of a request to its answer.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.latency = {path: latency.labels(path) for path in endpoints}
        errors = Counter(
            "tempera_errors", "Requests answered by an error.", ["type"], registry=registry
        )
        self.errors = {kind: errors.labels(kind) for kind in TYPES}
        self.refused_busy = Counter(
            "tempera_busy", "Requests answered by 429, since the queue is full.", registry=registry
        )
        Gauge("tempera_queue", "Requests that wait.", registry=registry).set_function(queue)
        batches = Histogram(
            "tempera_batch_texts",
            "Texts, queries or questions of a computation.",
            ["work"],
            buckets=_ITEMS,
            registry=registry,
        )
        self.batches = {label: batches.labels(label) for label in _WORKS}
        replaced = Counter(
            "tempera_run_replaced", "Runs taken over from disk.", ["run"], registry=registry
        )
        refused = Counter(
            "tempera_run_refused", "Runs on disk that did not open.", ["run"], registry=registry
        )
        documents = Gauge("tempera_documents", "Documents or items.", ["run"], registry=registry)
        self.replaced = {name: replaced.labels(name) for name in runs}
        self.refused = {name: refused.labels(name) for name in runs}
        self.documents = {name: documents.labels(name) for name in runs}

    def observe_batch(self, label: str, items: int) -> None:
        """Count a computation."""
        self.batches[label].observe(items)

    def text(self) -> bytes:
        """Return all measures."""
        return generate_latest(self.registry)
