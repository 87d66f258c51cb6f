"""Metrics of a service in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from downset.distributed.service.admission import Admission
from downset.extras import optional_library
from downset.results.serving import Served

__all__ = ["ServiceMetrics"]

_WHAT = "listening for frames"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ServiceMetrics:
    """`text` answers GET /metrics, with the type `content_type`. `served`: the figures of the pipeline so far."""

    def __init__(self, admission: Admission, served: Callable[[], Served]) -> None:
        library: Any = optional_library("prometheus_client", what=_WHAT, extra="service")
        core: Any = optional_library("prometheus_client.core", what=_WHAT, extra="service")
        self._admission, self._served, self._core = admission, served, core
        self._registry = library.CollectorRegistry()
        self._requests = library.Counter(
            "downset_requests", "Requests by their HTTP status", ["status"], registry=self._registry
        )
        self._seconds = library.Histogram(
            "downset_request_seconds",
            "Seconds from a request's admission to its result",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(self)
        self._generate: Callable[[Any], bytes] = library.generate_latest
        self.content_type = str(library.CONTENT_TYPE_LATEST)

    def text(self) -> bytes:
        return self._generate(self._registry)

    def answered(self, status: int) -> None:
        """Note the HTTP status of a request for inference."""
        self._requests.labels(str(status)).inc()

    def took(self, seconds: float) -> None:
        """Note how long a frame took from its admission to its result."""
        self._seconds.observe(seconds)

    def describe(self) -> list[Any]:
        """Describe nothing, so that `prometheus_client` collects nothing when this is registered."""
        return []

    def collect(self) -> Iterator[Any]:
        """The metrics of the queue, of the pipeline and of its devices."""
        gauge, counter = self._core.GaugeMetricFamily, self._core.CounterMetricFamily
        served = self._served()
        yield gauge("downset_queue_frames", "Frames that wait for the pipeline", self._admission.waiting)
        yield gauge("downset_inside_frames", "Frames in the pipeline", self._admission.inside)
        yield gauge("downset_accepts", "1 if requests are taken", int(self._admission.accepts))
        yield counter("downset_frames", "Frames with a result", served.completed)
        yield gauge("downset_period_seconds", "Measured seconds between results", served.period_s or float("nan"))
        yield gauge("downset_planned_period_seconds", "Planned seconds between results", served.planned_period_s)
        losses = counter(
            "downset_events", "Devices lost, back, slow or recovered, and plans made again", labels=["kind"]
        )
        counts = Counter(event.kind for event in served.events)
        for kind in ("lost", "back", "slow", "recovered", "replanned"):
            losses.add_metric([kind], counts[kind])
        yield losses
        replayed = sum(event.replayed for event in served.events)
        yield counter("downset_frames_replayed", "Frames that began again after a loss", replayed)
        shares = gauge("downset_device_share", "Share of the time that a device works", labels=["device", "work"])
        frames = counter("downset_device_frames", "Frames that a device took part in", labels=["device"])
        memory = gauge("downset_device_memory_bytes", "Most memory of a device's process", labels=["device"])
        for use in served.devices:
            for work in ("computing", "sending", "receiving"):
                shares.add_metric([use.name, work], getattr(use, work))
            frames.add_metric([use.name], use.frames)
            memory.add_metric([use.name], use.rss_bytes)
        yield from (shares, frames, memory)
