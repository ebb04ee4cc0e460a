"""A load for any OpenAI-compatible server: latencies and throughput as its clients see them.

Requests are due by a schedule, whether or not others are answered yet, or are as many at a time as --concurrency says.
Every answer is streamed. Token counts are the server's own, from the usage that ends each stream: an event may bring
several tokens. TTFT, TPOT, ITL and E2EL are reckoned as vLLM's `bench serve` does it, from when a request is sent; how
much later that was than it was due is said beside them. Clients are processes of their own.
"""

from __future__ import annotations

import argparse
from math import inf
from typing import Any

from bench.contestant import BenchmarkError
from bench.engine_options import check_counts
from bench.machine import machine
from bench.serve_client import Errand
from bench.serve_clients import ServeClients
from bench.serve_dataset import read_dataset
from bench.serve_mix import Mix, arrivals
from bench.serve_report import GOALS, figures, lateness, table
from bench.serve_target import ServeTarget
from bench.workload import seed_number
from stepahead.progress import Progress

BUSY_SHARE = 0.8
"""A client that needs so much of a core is late itself, now and then."""

MOST_CLIENTS = 256
"""Processes that ask; more than there are cores add nothing."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument(
        "--base-url",
        default="http://127.0.0.1:8000",
        metavar="URL",
        help="where the server is, with or without /v1 (%(default)s)",
    )
    parser.add_argument("--api-key", default="", metavar="KEY", help="what it is told in Authorization: Bearer")
    parser.add_argument("--model", metavar="NAME", help="what to ask for (default: the first in its /v1/models)")
    parser.add_argument(
        "--endpoint", choices=("completions", "chat"), default="completions", help="what to ask (%(default)s)"
    )
    _add_schedule_options(parser)
    _add_mix_options(parser)
    parser.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="have answers be as long as they may; servers that do not know this need --no-ignore-eos",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest tokens (%(default)g)"
    )
    parser.add_argument(
        "--goodput",
        nargs="+",
        type=_goal,
        default=[],
        metavar="NAME:MS",
        help=f"count requests that are within all of these, as in ttft:200 tpot:50; names are {', '.join(GOALS)}",
    )
    parser.add_argument("--clients", type=int, default=1, metavar="N", help="processes that ask (%(default)s)")
    parser.add_argument(
        "--warm-up", type=int, default=1, metavar="N", help="requests of each client before it begins (%(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds that a request may take (%(default)g)"
    )
    parser.add_argument("--seed", type=seed_number, default=0, metavar="N", help="of what is drawn (%(default)s)")


def _add_schedule_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--request-rate",
        type=float,
        default=inf,
        metavar="R",
        help="requests that are due a second (inf: all at once, as far as --concurrency lets them)",
    )
    parser.add_argument(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="B",
        help="1 is a Poisson process, less comes in bursts, inf is evenly spread (%(default)g)",
    )
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="requests under way at a time, at most (default: no limit)"
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--num-prompts", type=int, metavar="N", help="how many requests (200)")
    ends.add_argument("--seconds", type=float, metavar="S", help="instead: for how long requests are sent")


def _add_mix_options(parser: argparse.ArgumentParser) -> None:
    for what, default in (("input", 1024), ("output", 128)):
        parser.add_argument(
            f"--{what}-lengths",
            type=int,
            nargs=2,
            default=(default, default),
            metavar=("FROM", "TO"),
            help=f"{what} tokens of a request, drawn uniformly ({default} {default})",
        )
    others = parser.add_mutually_exclusive_group()
    others.add_argument(
        "--mix",
        choices=("uniform", "sharegpt"),
        default="uniform",
        help="sharegpt: log-normal lengths with the means of ShareGPT's chats, 161 tokens in and 338 out, and sigmas "
        "of 1.3 and 1.0, cut to 4 … 1,024; they resemble that distribution (%(default)s)",
    )
    others.add_argument(
        "--dataset",
        metavar="FILE",
        help='a .jsonl file of {"prompt": TOKENS, "output": TOKENS}, or a .json file of chats as ShareGPT has them',
    )
    parser.add_argument(
        "--prefix-length",
        type=int,
        default=0,
        metavar="N",
        help="tokens that come before each prompt's own, and are shared (%(default)s)",
    )
    parser.add_argument(
        "--prefixes", type=int, default=1, metavar="N", help="how many such beginnings there are (%(default)s)"
    )


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure."""
    _check(given)
    target = ServeTarget(given.base_url, given.api_key)
    model = given.model or target.model()
    count = _count(given)
    mix = _mix(given, target, model, count)
    prompts = "texts" if not mix.pool or any(isinstance(prompt, str) for prompt, _ in mix.rows) else "token ids"
    due = None if count is None else arrivals(count, given.request_rate, given.burstiness, given.seed)
    errands = [
        Errand(
            base_url=target.base_url,
            api_key=given.api_key,
            endpoint=given.endpoint,
            parameters=_parameters(given, model),
            mix=mix,
            number=number,
            clients=given.clients,
            concurrency=_share(given.concurrency or 0, number, given.clients),
            due=None if due is None else due[number :: given.clients],
            seconds=given.seconds or 0.0,
            timeout=given.timeout,
            warm_up=given.warm_up,
        )
        for number in range(given.clients)
    ]
    tell("serve", f"warming up {model} at {target.base_url}, prompts are {prompts}")
    with ServeClients(errands) as clients:
        tell("serve", f"requests for {given.seconds:g} s" if count is None else f"{count:,} requests")
        done = clients.run()
    courses = [course for each in done for course in each.courses]
    shares = [each.core_share for each in done]
    if max(shares) > BUSY_SHARE:
        tell("serve", f"a client was busy for {max(shares):.0%} of the time: its figures are late, use more --clients")
    goals = dict(given.goodput)
    return {
        "machine": machine(),
        "base_url": target.base_url,
        "model": model,
        "endpoint": given.endpoint,
        "prompts": prompts,
        "mix": "dataset" if given.dataset else given.mix,
        "request_rate": None if given.request_rate == inf else given.request_rate,
        "burstiness": None if given.burstiness == inf else given.burstiness,
        "concurrency": given.concurrency,
        "clients": given.clients,
        "clients_core_share": shares,
        "seed": given.seed,
        **figures(courses, goals),
        "lateness": lateness(courses, scheduled=given.request_rate < inf),
    }


def text(report: dict[str, Any]) -> str:
    """Return the report as a table."""
    rate = "all at once" if report["request_rate"] is None else f"{report['request_rate']:g} requests a second due"
    cap = "" if report["concurrency"] is None else f", {report['concurrency']:,} at a time"
    busy = ", ".join(f"{share:.0%}" for share in report["clients_core_share"])
    return "\n".join(
        [
            " ".join(f"{key} {value}," for key, value in report["machine"].items()).rstrip(","),
            f"{report['model']} at {report['base_url']}, {report['endpoint']}, prompts are {report['prompts']}, "
            f"{report['mix']}; {rate}{cap}",
            *table(report),
            f"clients: {report['clients']}, each busy for {busy} of the time",
        ]
    )


def _goal(text: str) -> tuple[str, float]:
    name, _, most = text.partition(":")
    try:
        limit = float(most)
    except ValueError:
        limit = -1.0
    if name not in GOALS or not 0 < limit < inf:
        raise argparse.ArgumentTypeError(f"must be NAME:MILLISECONDS with a name of {', '.join(GOALS)}, not {text}")
    return name, limit


def _parameters(given: argparse.Namespace, model: str) -> dict[str, Any]:
    parameters = {
        "model": model,
        "temperature": given.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return parameters | ({"ignore_eos": True} if given.ignore_eos else {})


def _count(given: argparse.Namespace) -> int | None:
    """Return how many requests there are; None for as many as can be answered in a time."""
    if given.seconds is None:
        return given.num_prompts or 200
    return None if given.request_rate == inf else max(1, round(given.request_rate * given.seconds))


def _share(total: int, number: int, clients: int) -> int:
    """Return how many of `total` are those of one client."""
    return total // clients + (number < total % clients)


def _mix(given: argparse.Namespace, target: ServeTarget, model: str, count: int | None) -> Mix:
    rows: tuple[tuple[int | str, int], ...] = ()
    if given.dataset:

        def tokens_of(text: str) -> int | None:
            tokens = target.tokens(model, text)
            return None if tokens is None else len(tokens)

        rows = tuple(read_dataset(given.dataset, count, tokens_of))
    return Mix(
        kind="dataset" if given.dataset else given.mix,
        seed=given.seed,
        input_lengths=tuple(given.input_lengths),
        output_lengths=tuple(given.output_lengths),
        prefix_length=given.prefix_length,
        prefixes=given.prefixes,
        pool=target.token_pool(model) if given.endpoint == "completions" else (),
        rows=rows,
    )


def _check(given: argparse.Namespace) -> None:
    """Raise `BenchmarkError` for a mistake, before anything is asked."""
    counts = [name for name in ("num_prompts", "concurrency") if getattr(given, name) is not None]
    check_counts(given, *counts, "clients", "prefixes")
    for name in ("request_rate", "burstiness", "seconds", "timeout"):
        value = getattr(given, name)
        if value is not None and not (value > 0 and (value < inf or name in ("request_rate", "burstiness"))):
            raise BenchmarkError(f"--{name.replace('_', '-')} must be more than 0, not {value:g}")
    for name in ("prefix_length", "warm_up"):
        if (value := getattr(given, name)) < 0:
            raise BenchmarkError(f"--{name.replace('_', '-')} must be at least 0, not {value}")
    for name in ("input", "output"):
        least, most = getattr(given, f"{name}_lengths")
        if not 1 <= least <= most:
            raise BenchmarkError(f"--{name}-lengths must be two numbers from 1 on, the larger last; not {least} {most}")
    if given.clients > MOST_CLIENTS:
        raise BenchmarkError(f"--clients must be at most {MOST_CLIENTS}, not {given.clients}")
    if given.concurrency is not None and given.concurrency < given.clients:
        raise BenchmarkError(f"--concurrency {given.concurrency} leaves some of {given.clients} --clients without work")
    if given.seconds is not None and given.request_rate == inf and given.concurrency is None:
        raise BenchmarkError("--seconds needs a --request-rate or a --concurrency, or there is no end of requests")
    if not 0 <= given.temperature < inf:
        raise BenchmarkError(f"--temperature must be at least 0, not {given.temperature:g}")
