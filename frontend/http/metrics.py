"""GET /metrics: what there is to do and what was done, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fastapi import FastAPI
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from frontend.core import FrontendCore
from frontend.counts import Counts
from frontend.tally import Histogram, Tally
from protocol.awake_clock import AwakeClock
from protocol.messages import Finish, Totals

PREFIX = "stepahead:"
"""What follows it are vLLM's names, for what vLLM has too."""

REASONS = (Finish.STOP, Finish.LENGTH, Finish.ABORT, Finish.ERROR, Finish.TIMEOUT)
"""How an answer that was accepted may end. Each is told from the start, so that rates are right from the first on."""


class _OfScheduler(NamedTuple):
    name: str
    family: type[CounterMetricFamily] | type[GaugeMetricFamily]
    about: str
    value: Callable[[Totals], float]


_OF_SCHEDULERS = (
    _OfScheduler("num_requests_running", GaugeMetricFamily, "Requests that have a slot.", lambda it: it.running),
    _OfScheduler("num_requests_waiting", GaugeMetricFamily, "Requests that wait for a slot.", lambda it: it.waiting),
    _OfScheduler(
        "kv_cache_usage_perc",
        GaugeMetricFamily,
        "Share of KV blocks in use, from 0 to 1; what is cached for later prompts is not.",
        lambda it: it.blocks_used / it.blocks if it.blocks else 0.0,
    ),
    _OfScheduler("kv_cache_blocks", GaugeMetricFamily, "KV blocks that there are.", lambda it: it.blocks),
    _OfScheduler("kv_cache_blocks_used", GaugeMetricFamily, "Those of them in use.", lambda it: it.blocks_used),
    _OfScheduler(
        "prefix_cache_queries",
        CounterMetricFamily,
        "Tokens of prompts, and of requests that had lost their slot, that were looked for in the prefix cache.",
        lambda it: it.cached_tokens + it.prefill_tokens,
    ),
    _OfScheduler(
        "prefix_cache_hits",
        CounterMetricFamily,
        "Those of them that were found, and not computed.",
        lambda it: it.cached_tokens,
    ),
    _OfScheduler(
        "num_preemptions", CounterMetricFamily, "Requests that lost their slot to others.", lambda it: it.preemptions
    ),
    _OfScheduler("steps", CounterMetricFamily, "Steps sent to workers.", lambda it: it.steps),
    _OfScheduler("step_rows", CounterMetricFamily, "Rows of these steps, one for each request.", lambda it: it.rows),
    _OfScheduler("plan_bytes", CounterMetricFamily, "Bytes of these steps' plans.", lambda it: it.plan_bytes),
    _OfScheduler(
        "wasted_rows",
        CounterMetricFamily,
        "Rows that were computed for a request that had ended or lost its slot meanwhile.",
        lambda it: it.wasted_rows,
    ),
    _OfScheduler("failed_steps", CounterMetricFamily, "Steps that gave nothing.", lambda it: it.failed_steps),
    _OfScheduler(
        "stale_results",
        CounterMetricFamily,
        "Answers of workers that were dropped, because they were of another session or not the next one.",
        lambda it: it.stale_results,
    ),
    _OfScheduler("device_busy_seconds", CounterMetricFamily, "Seconds that devices have computed.", lambda it: it.busy),
)


class _OfAnswers(NamedTuple):
    name: str
    about: str
    histogram: Callable[[Tally], Histogram]


_OF_ANSWERS = (
    _OfAnswers(
        "time_to_first_token_seconds",
        "From when a request is read to the first token of an answer.",
        lambda it: it.first_token,
    ),
    _OfAnswers("inter_token_latency_seconds", "Between two tokens of an answer.", lambda it: it.between_tokens),
    _OfAnswers(
        "request_time_per_output_token_seconds",
        "Mean time from one token to the next, of an answer that ended by stop or length.",
        lambda it: it.per_token,
    ),
    _OfAnswers(
        "e2e_request_latency_seconds",
        "From when a request is read to the last token of an answer that ended by stop or length.",
        lambda it: it.whole,
    ),
    _OfAnswers(
        "request_queue_time_seconds",
        "From when its scheduler has an answer's request to its first step, where it ended by stop or length.",
        lambda it: it.queue,
    ),
    _OfAnswers("request_prefill_time_seconds", "From there to its first token.", lambda it: it.prefill),
    _OfAnswers("request_decode_time_seconds", "From its first token to its last.", lambda it: it.decode),
    _OfAnswers("request_inference_time_seconds", "From its first step to its last token.", lambda it: it.inference),
    _OfAnswers(
        "request_prompt_tokens",
        "Tokens of the prompt of an answer that ended by stop or length.",
        lambda it: it.prompt_lengths,
    ),
    _OfAnswers(
        "request_generation_tokens", "Tokens of an answer that ended by stop or length.", lambda it: it.answer_lengths
    ),
)


class FrontendCollector(Collector):
    """Reads the numbers of a core when they are asked for."""

    def __init__(self, core: FrontendCore, clock: AwakeClock, counts: Counts | None = None) -> None:
        """Read those of `core`, and of the frontends that share `counts`; `clock` shows the process's last turn."""
        self._core = core
        self._clock = clock
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield them; those of a scheduler that is not attached, or has not told them yet, are absent."""
        core = self._core
        well = not core.draining and not core.trouble(self._clock.now)
        yield GaugeMetricFamily(PREFIX + "healthy", "1 if /health says ok, else 0.", value=float(well))
        if core.served is None:
            return
        model = core.served.model
        yield from self._own(model)
        told = [(str(number), link.totals) for number, link in enumerate(core.links) if link.totals is not None]
        for each in _OF_SCHEDULERS:
            family = each.family(PREFIX + each.name, each.about, labels=("model_name", "engine"))
            for engine, totals in told:
                family.add_metric((model, engine), each.value(totals))
            yield family

    def _own(self, model: str) -> Iterator[Metric]:
        tally, counters = self._core.tally, self._core.counters
        if self._counts is not None:
            tally, counters = self._counts.told(tally, counters)
        yield _counter(model, "prompt_tokens", "Tokens of the prompts of accepted requests.", tally.prompt_tokens)
        yield _counter(model, "generation_tokens", "Tokens of answers.", tally.generation_tokens)
        yield _counter(model, "stream_pieces", "Pieces of streamed answers that had tokens.", tally.pieces)
        yield _counter(model, "stream_pieces_of_several_tokens", "Those with more than one.", tally.crowded_pieces)
        ends = CounterMetricFamily(
            PREFIX + "request_success", "Answers by how they ended.", labels=("model_name", "finished_reason")
        )
        for reason in REASONS:
            ends.add_metric((model, reason.name.lower()), tally.ended[reason])
        yield ends
        yield _counter(
            model, "requests_refused", "Requests that could not be served as they were.", counters["refused"]
        )
        yield _counter(
            model, "requests_turned_away", "Requests that came while too many waited.", counters["turned_away"]
        )
        yield _counter(model, "requests_resubmitted", "Requests given to a scheduler again.", counters["resubmitted"])
        yield _counter(
            model, "overshoot_tokens", "Tokens that came behind the end of their answer.", counters["overshoot_tokens"]
        )
        for each in _OF_ANSWERS:
            yield _histogram(model, each.name, each.about, each.histogram(tally))


def _counter(model: str, name: str, about: str, value: float) -> Metric:
    family = CounterMetricFamily(PREFIX + name, about, labels=("model_name",))
    family.add_metric((model,), value)
    return family


def _histogram(model: str, name: str, about: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, about, labels=("model_name",))
    bounds = [*map(str, histogram.bounds), "+Inf"]
    family.add_metric((model,), list(zip(bounds, histogram.cumulative, strict=True)), histogram.total)
    return family


def add_metrics(app: FastAPI, core: FrontendCore, clock: AwakeClock, counts: Counts | None = None) -> None:
    """Add the endpoint to `app`; it is about all frontends that share `counts`."""
    collector = FrontendCollector(core, clock, counts)

    @app.get("/metrics", response_model=None)
    async def metrics(request: Request) -> Response:
        try:
            encode, kind = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # what it makes of versions that are none
            encode, kind = choose_encoder("")
        return Response(encode(collector), headers={"content-type": kind})
