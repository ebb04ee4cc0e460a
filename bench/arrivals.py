"""Requests that come one by one, as users' do: latencies and the device's active share by plans in flight.

First all of --requests are there at once, as in nano-vllm's workload: their tokens a second are the peak. Then requests
arrive at random, as a Poisson process with a share of that rate, at a scheduler of its own for each --credit, with the
same arrivals for all.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.bare import Bare
from bench.contestant import BenchmarkError
from bench.engine_options import (
    add_model_options,
    add_recordings_option,
    add_worker_options,
    check_counts,
    engine_config,
    recordings_folder,
)
from bench.machine import machine
from bench.moments import Moments
from bench.percentiles import percentiles
from bench.shapes import shape_of
from bench.step_times import DeviceTime
from bench.workload import Workload, seed_number, uniform_workload
from checkpoint import describe
from scheduler_proc.config import SchedulingConfig
from stepahead.progress import Progress

BATCH_TOKENS = 8192
WARM_UP_TOKENS = 16
MOST_CREDIT = 64
MOST_SECONDS = 3600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    add_model_options(parser, "qwen3-0.6b")
    parser.add_argument(
        "--requests", type=int, default=256, metavar="N", help="at once for the peak, and at most later (%(default)s)"
    )
    for what in ("input", "output"):
        parser.add_argument(
            f"--{what}-lengths",
            type=int,
            nargs=2,
            default=(100, 1024),
            metavar=("FROM", "TO"),
            help=f"{what} tokens of a request, drawn uniformly (100 1024)",
        )
    parser.add_argument(
        "--share", type=float, default=0.7, metavar="S", help="of the peak rate, at which requests arrive (%(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="S", help="for which requests arrive (%(default)s)"
    )
    parser.add_argument(
        "--credit",
        type=int,
        nargs="+",
        default=(1, 2, 3),
        metavar="N",
        help="plans in flight, launch.py's --max-plans-in-flight (1 2 3)",
    )
    parser.add_argument("--seed", type=seed_number, default=0, metavar="N", help="of what is drawn (%(default)s)")
    add_recordings_option(parser)
    add_worker_options(parser)


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure."""
    timelines = _check(given)
    with ExitStack() as undo:
        model = undo.enter_context(shape_of(given.model))
        vocab_size = describe(model).vocab_size
        engine = engine_config(
            given,
            model,
            max_num_seqs=given.requests,
            max_model_len=given.input_lengths[1] + given.output_lengths[1],
            max_batch_tokens=max(BATCH_TOKENS, given.requests),
        )
        at_once = _workload(given, given.requests, vocab_size, given.seed)
        bare = Bare(engine, timelines, tell)
        undo.callback(bare.close)
        tell("arrivals", "warming up")
        short = tuple(min(length, WARM_UP_TOKENS) for length in at_once.output_lengths)
        bare.run("warm-up", SchedulingConfig(), Workload(at_once.prompts, short))
        tell("arrivals", f"{given.requests} requests at once, to find the peak")
        moments, time = bare.arrive("peak", SchedulingConfig(), at_once, np.zeros(given.requests))
        peak = figures(moments, time, at_once)
        rate = given.share * peak["tokens_per_second"] / np.mean(given.output_lengths)
        at = poisson(rate, given.seconds, given.seed)
        arriving = _workload(given, len(at), vocab_size, given.seed + 1)
        runs = []
        for credit in given.credit:
            tell("arrivals", f"{len(at):,} requests in {given.seconds:g} s, {credit} plans in flight")
            scheduling = SchedulingConfig(max_plans_in_flight=credit)
            measured = figures(*bare.arrive(f"credit-{credit}", scheduling, arriving, at), arriving)
            tell("arrivals", f"device active {measured['active_share']:.2%} while there is work")
            runs.append({"credit": credit} | measured)
    return {
        "machine": machine(),
        "model": given.model,
        "dtype": given.dtype,
        "device": given.device,
        "worker_options": given.worker_options,
        "input_lengths": given.input_lengths,
        "output_lengths": given.output_lengths,
        "share": given.share,
        "seconds_of_arrivals": given.seconds,
        "requests_per_second": rate,
        "peak": {"requests": given.requests} | peak,
        "requests": len(at),
        "input_tokens": sum(map(len, arriving.prompts)),
        "output_tokens": arriving.output_tokens,
        "runs": runs,
    }


def poisson(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Return when requests arrive, at `rate` a second for so many seconds: float64 seconds in order, at least one.

    Given how many points a Poisson process has in a time, they lie there independently and uniformly.
    """
    draw = np.random.default_rng(seed)
    return np.sort(draw.uniform(0.0, seconds, max(1, draw.poisson(rate * seconds))))


def figures(moments: Moments, time: DeviceTime, workload: Workload) -> dict[str, Any]:
    """Return what a report says of one run."""
    between = 1e3 * moments.between
    return {
        "seconds": moments.seconds,
        "tokens_per_second": workload.output_tokens / moments.seconds,
        "steps": time.steps,
        "active_share": time.active_share,
        "busy_seconds": time.busy,
        "idle_seconds": time.idle,
        "no_work_seconds": time.no_work,
        "ttft_ms": percentiles(1e3 * moments.until_first),
        "itl_ms": percentiles(between) | {"max": float(between.max(initial=0.0))},
    }


def _workload(given: argparse.Namespace, requests: int, vocab_size: int, seed: int) -> Workload:
    return uniform_workload(requests, tuple(given.input_lengths), tuple(given.output_lengths), vocab_size, seed)


def _check(given: argparse.Namespace) -> Path | None:
    """Return where recordings go; raises `BenchmarkError` for a mistake, before anything is loaded."""
    check_counts(given, "requests", "credit")
    if max(given.credit) > MOST_CREDIT:
        raise BenchmarkError(f"--credit must be at most {MOST_CREDIT}, not {max(given.credit)}")
    for name, most in (("share", inf), ("seconds", MOST_SECONDS)):
        value = getattr(given, name)
        if not 0 < value < inf or value > most:
            limit = "" if most == inf else f" and at most {most:g}"
            raise BenchmarkError(f"--{name} must be more than 0{limit}, not {value:g}")
    for name in ("input", "output"):
        least, most_tokens = getattr(given, f"{name}_lengths")
        if not 1 <= least <= most_tokens:
            raise BenchmarkError(
                f"--{name}-lengths must be two numbers from 1 on, the larger last; not {least} {most_tokens}"
            )
    return recordings_folder(given)


def text(report: dict[str, Any]) -> str:
    """Return the report as a table."""
    peak = report["peak"]
    lines = [" ".join(f"{key} {value}," for key, value in report["machine"].items()).rstrip(",")]
    lines.append(
        f"{report['model']}, random weights, {report['dtype']} on {report['device']}; {peak['requests']} requests "
        f"at once, the peak: {peak['tokens_per_second']:,.1f} tok/s, device active {peak['active_share']:.2%}"
    )
    lines.append(
        f"{report['requests']:,} requests in {report['seconds_of_arrivals']:g} s, {report['share']:.0%} of the peak: "
        f"{report['requests_per_second']:,.2f} a second, {report['output_tokens']:,} tokens to be made"
    )
    lines.append("        device active      without           TTFT ms                 ITL ms")
    lines.append("credit  while work is   work, s    tok/s     p50     p99     p50     p99     max    steps")
    for one in report["runs"]:
        ttft, itl = one["ttft_ms"], one["itl_ms"]
        lines.append(
            f"{one['credit']:6}{one['active_share']:15.2%}{one['no_work_seconds']:10.2f}"
            f"{one['tokens_per_second']:9,.0f}{ttft['p50']:8.1f}{ttft['p99']:8.1f}"
            f"{itl['p50']:8.2f}{itl['p99']:8.2f}{itl['max']:8.1f}{one['steps']:9,}"
        )
    return "\n".join(lines)
