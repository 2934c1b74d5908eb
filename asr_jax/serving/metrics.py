"""Figures of a server for Prometheus, at /metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)


class Metrics:
    """Figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "asr_jax_requests", "Answered requests by route and status", ["route", "status"], registry=self.registry
        )
        self.latency = Histogram(
            "asr_jax_transcription_seconds",
            "Time from the beginning of a request to its answer",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.audio_seconds = Counter("asr_jax_audio_seconds", "Recognised audio", registry=self.registry)
        self.computed_seconds = Counter(
            "asr_jax_computed_seconds", "Audio of batches of short recordings with padding", registry=self.registry
        )
        self.batches = Counter("asr_jax_batches", "Batches of short recordings", registry=self.registry)
        self.rows = Counter("asr_jax_rows", "Recordings in batches", registry=self.registry)
        self.open_requests = Gauge("asr_jax_open_requests", "Requests without an answer", registry=self.registry)
        self.open_streams = Gauge("asr_jax_open_streams", "Open streams", registry=self.registry)
        self.waiting_seconds = Gauge(
            "asr_jax_waiting_seconds", "Audio that waits to be recognised", registry=self.registry
        )
        self.decoders = Gauge("asr_jax_decoders", "Running processes that decode audio", registry=self.registry)
        self.replaced_decoders = Gauge(
            "asr_jax_replaced_decoders", "Processes for decoding that were replaced", registry=self.registry
        )
