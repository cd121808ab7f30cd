"""What a Prometheus asks: how much was done, how much waits, and how long it takes."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from retro.serving.engine import Engine

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """The numbers of one server; a registry of its own, so that several can live in one process."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_EngineNumbers(engine))
        self.responses = Counter(
            "retro_responses_total",
            "Answers by route and status.",
            ("route", "status"),
            registry=self._registry,
        )
        self.seconds = Histogram(
            "retro_request_seconds",
            "From a request to its answer's end.",
            ("route",),
            registry=self._registry,
            buckets=SECONDS,
        )
        self.first_token = Histogram(
            "retro_first_token_seconds",
            "From a request to its first token.",
            registry=self._registry,
            buckets=SECONDS,
        )

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _EngineNumbers(Collector):
    """The engine's own counts, read when they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        engine, counts = self._engine, self._engine.counts
        yield GaugeMetricFamily("retro_running_sequences", "Sequences in the batch.", engine.running)
        yield GaugeMetricFamily("retro_waiting_requests", "Requests in the queue.", engine.waiting)
        told = {
            "retro_requests": ("Requests that were taken.", counts.requests),
            "retro_refused": ("Requests that found the queue full.", counts.refused),
            "retro_cancelled": ("Requests whose client has left.", counts.cancelled),
            "retro_failed": ("Requests that ended in an error.", counts.failed),
            "retro_tokens": ("Tokens that were written.", counts.tokens),
            "retro_prompt_tokens": ("Tokens of prompts that were read.", counts.prompt_tokens),
            "retro_steps": ("Steps of the batch.", counts.turns),
            "retro_scoring_passes": ("Passes that scored prompts or answers.", counts.passes),
        }
        for name, (words, value) in told.items():
            yield CounterMetricFamily(name, words, value)
