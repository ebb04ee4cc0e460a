"""The real scheduler before simulated GPUs: latencies, throughput and idle time by policy, without any GPU.

Every choice that is given several times (--credit, --max-batch-tokens, --max-num-seqs, --max-prefill-tokens,
--scheduling-policy, --aging-seconds) is tried with each of the others on the same arrivals. A device is a formula for
the seconds of a step; what it leaves out, such as memory that runs short or clocks that fall, no simulation will show.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from bench.contestant import BenchmarkError
from bench.device_model import DEVICES
from bench.percentiles import percentiles
from bench.simulation import Arrival, Host, Outcome, Simulation
from bench.workload import seed_number, uniform_workload
from protocol.messages import PRIORITY_MAX, PRIORITY_MIN, Opened
from scheduler_proc.capacity import CapacityError
from scheduler_proc.config import MOST_AGING_SECONDS
from scheduler_proc.policy import PolicyName, policy_of
from stepahead.progress import Progress

BLOCK_SIZE = 16
VOCABULARY = 50_000
EOS = 0
LONGEST = 2**17
"""Tokens of a request, prompt and output together."""

MOST_REQUESTS = 10**6
MOST_BLOCKS = 10**7
LEAST_RATE = 1e-6


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument(
        "trace",
        nargs="?",
        metavar="TRACE",
        help='arrivals, a line of JSON each: {"at": SECONDS, "prompt": TOKENS, "output": TOKENS}, and "priority" and '
        '"user" if they count; without, they are drawn at random',
    )
    parser.add_argument("--requests", type=int, default=1000, metavar="N", help="requests drawn (%(default)s)")
    parser.add_argument(
        "--rate", type=float, default=10.0, metavar="R", help="arrivals a second, a Poisson process; 0: all at once "
        "(%(default)s)",
    )  # fmt: skip
    for what in ("input", "output"):
        parser.add_argument(
            f"--{what}-lengths", type=int, nargs=2, default=(100, 1024), metavar=("FROM", "TO"),
            help=f"{what} tokens of a request, drawn uniformly (100 1024)",
        )  # fmt: skip
    parser.add_argument(
        "--priorities", type=int, nargs="+", default=[0], metavar="N",
        help="what each request's priority is drawn from; a number may be given several times (0)",
    )  # fmt: skip
    parser.add_argument("--seed", type=seed_number, default=0, metavar="N", help="of what is drawn (%(default)s)")
    parser.add_argument(
        "--device", choices=tuple(DEVICES), default="8b-h200", help="what computes, and which model (%(default)s)"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="devices (%(default)s)")
    parser.add_argument("--blocks", type=int, default=40_000, metavar="N", help="KV blocks of each (%(default)s)")
    for name, default, what in (
        ("credit", 2, "plans in flight"),
        ("max-batch-tokens", 2048, "tokens computed in one step"),
        ("max-num-seqs", 256, "requests that run at the same time"),
    ):
        parser.add_argument(
            f"--{name}", type=int, nargs="+", default=[default], metavar="N", help=f"{what} ({default})"
        )
    parser.add_argument(
        "--max-prefill-tokens", type=int, nargs="+", default=[None], metavar="N",
        help="prompt tokens in one step (no limit of their own)",
    )  # fmt: skip
    parser.add_argument(
        "--scheduling-policy", choices=get_args(PolicyName), nargs="+", default=["fcfs"], help="whose turn is first "
        "(fcfs)",
    )  # fmt: skip
    parser.add_argument(
        "--aging-seconds", type=float, nargs="+", default=[None], metavar="S",
        help="waiting that outweighs one level of priority, or 1,000 tokens of prompt (as of launch.py)",
    )  # fmt: skip
    parser.add_argument(
        "--think-us", type=float, default=150.0, metavar="US", help="the scheduler's time for a step (%(default)s)"
    )
    parser.add_argument(
        "--wire-us", type=float, default=60.0, metavar="US", help="a message's time on its way (%(default)s)"
    )


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Simulate each combination."""
    _check(given)
    arrivals = _drawn(given) if given.trace is None else read_trace(Path(given.trace))
    host = Host(given.think_us * 1e-6, given.wire_us * 1e-6)
    runs = []
    choices = ("credit", "max_batch_tokens", "max_num_seqs", "max_prefill_tokens")
    policies = dict.fromkeys(  # aging is the same to those who come first
        (name, None if name == "fcfs" else seconds)
        for name in given.scheduling_policy
        for seconds in given.aging_seconds
    )
    for *values, (name, seconds) in itertools.product(*[getattr(given, name) for name in choices], policies):
        chosen = dict(zip(choices, values, strict=True)) | {"scheduling_policy": name, "aging_seconds": seconds}
        tell("simulate", ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in chosen.items()))
        worker = _worker(chosen["max_num_seqs"], given.blocks, chosen["max_batch_tokens"])
        policy = policy_of(name, seconds)
        began = time.perf_counter()
        try:
            outcome = Simulation(
                given.workers, worker, chosen["credit"], DEVICES[given.device], host, policy,
                chosen["max_prefill_tokens"],
            ).run(arrivals)  # fmt: skip
        except CapacityError as error:
            raise BenchmarkError(str(error)) from None
        runs.append(chosen | figures(outcome) | {"wall_seconds": time.perf_counter() - began})
    return {"device": given.device, "workers": given.workers, "requests": len(arrivals), "runs": runs}


def text(report: dict[str, Any]) -> str:
    """Return the report as a table."""
    devices = "a device" if report["workers"] == 1 else f"{report['workers']:,} devices"
    lines = [
        f"{report['requests']:,} requests on {devices} as {report['device']}; simulated, not measured",
        "          tokens a step    seqs             active      TTFT s            ITL ms         wasted  preemp-",
        "credit     all  prompts  at once    tok/s        %     p50     p99    p50    p99    max   rows %    tions"
        "  policy",
    ]
    for run in report["runs"]:
        ttft, itl = run["ttft_s"], run["itl_ms"]
        lines.append(
            f"{run['credit']:6}{run['max_batch_tokens']:8,}{run['max_prefill_tokens'] or run['max_batch_tokens']:9,}"
            f"{run['max_num_seqs']:9,}{run['tokens_per_s']:9,.0f}"
            f"{run['active_percent']:9.2f}{ttft['p50']:8.2f}{ttft['p99']:8.2f}"
            f"{itl['p50']:7.1f}{itl['p99']:7.1f}{itl['max']:7.0f}{run['wasted_percent']:9.2f}{run['preemptions']:9,}"
            f"  {_policy(run)}"
        )
        if len(run["ttft_s_by_priority"]) > 1:
            lines += [
                f"        priority {priority}, {part['count']:,} requests: TTFT {part['p50']:.2f} s p50, "
                f"{part['p99']:.2f} s p99"
                for priority, part in run["ttft_s_by_priority"].items()
            ]
        if run["refused"]:
            lines.append(f"        {run['refused']:,} requests were refused: they would never fit")
    simulated, wall = (sum(run[name] for run in report["runs"]) for name in ("seconds", "wall_seconds"))
    lines.append(f"{simulated:,.0f} s were simulated in {wall:,.0f} s")
    return "\n".join(lines)


def _policy(run: dict[str, Any]) -> str:
    name = str(run["scheduling_policy"])
    return name if run["aging_seconds"] is None else f"{name}, aging {run['aging_seconds']:g} s"


def figures(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome in the units of the report."""
    gaps = 1e3 * np.concatenate(outcome.gaps) if outcome.gaps else np.zeros(0)
    return {
        "seconds": outcome.seconds,
        "tokens": outcome.tokens,
        "tokens_per_s": outcome.tokens / outcome.seconds if outcome.seconds else 0.0,
        "active_percent": 100 * outcome.busy / (outcome.busy + outcome.idle) if outcome.busy else 0.0,
        "ttft_s": _spread(np.array([ttft for each in outcome.ttft.values() for ttft in each])),
        "ttft_s_by_priority": {
            priority: _spread(np.array(each)) | {"count": len(each)} for priority, each in sorted(outcome.ttft.items())
        },
        "itl_ms": _spread(gaps),
        "steps": outcome.steps,
        "wasted_percent": 100 * outcome.wasted_rows / outcome.rows if outcome.rows else 0.0,
        "preemptions": outcome.preemptions,
        "refused": outcome.refused,
    }


def read_trace(path: Path) -> list[Arrival]:
    """Return the arrivals that a file tells of, in order. Raises `BenchmarkError` in one line."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"{path}: {error.strerror if isinstance(error, OSError) else 'it is no text'}") from None
    arrivals = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
            at, prompt, output = float(told["at"]), int(told["prompt"]), int(told["output"])
            priority, user = int(told.get("priority", 0)), str(told.get("user", ""))
        except (ValueError, TypeError, KeyError, OverflowError):
            raise BenchmarkError(f'{path}, line {number}: not {{"at": …, "prompt": …, "output": …}}') from None
        fits = 0 <= at < 1e9 and prompt >= 1 and output >= 1 and prompt + output <= LONGEST
        if not (fits and PRIORITY_MIN <= priority <= PRIORITY_MAX):
            raise BenchmarkError(f"{path}, line {number}: out of range (at most {LONGEST} tokens, none below 1)")
        arrivals.append(Arrival(at, _tokens(np.random.default_rng(number), prompt), output, priority, user))
    if not arrivals:
        raise BenchmarkError(f"{path}: no arrivals in it")
    return sorted(arrivals, key=lambda arrival: arrival.at)


def _drawn(given: argparse.Namespace) -> list[Arrival]:
    lengths = tuple(given.input_lengths), tuple(given.output_lengths)
    workload = uniform_workload(given.requests, *lengths, VOCABULARY, given.seed)
    draw = np.random.default_rng(given.seed)
    gaps = draw.exponential(1.0 / given.rate, given.requests) if given.rate else np.zeros(given.requests)
    at = (np.cumsum(gaps) - gaps[0]).tolist()
    prompts = (np.array(prompt, np.uint32) for prompt in workload.prompts)
    priorities = draw.choice(given.priorities, given.requests).tolist()
    return [Arrival(*each) for each in zip(at, prompts, workload.output_lengths, priorities, strict=True)]


def _tokens(draw: np.random.Generator, length: int) -> NDArray[np.uint32]:
    return draw.integers(1, VOCABULARY, length).astype(np.uint32)


def _worker(slots: int, blocks: int, batch_tokens: int) -> Opened:
    return Opened(
        nonce=1,
        session=1,
        model="simulated",
        device="none",
        dtype="none",
        vocab_size=VOCABULARY,
        eos_token_ids=np.array([EOS], np.uint32),
        slots=slots,
        blocks=blocks,
        block_size=BLOCK_SIZE,
        max_batch_tokens=batch_tokens,
        max_model_len=min(LONGEST, blocks * BLOCK_SIZE),
    )


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    return percentiles(values) | {"max": float(values.max(initial=0.0))}


def _check(given: argparse.Namespace) -> None:
    for name in ("requests", "workers", "blocks", "credit", "max_batch_tokens", "max_num_seqs"):
        if np.min(getattr(given, name)) < 1:
            raise BenchmarkError(f"--{name.replace('_', '-')} must be at least 1, not {np.min(getattr(given, name))}")
    if given.max_prefill_tokens != [None] and min(given.max_prefill_tokens) < 1:
        raise BenchmarkError(f"--max-prefill-tokens must be at least 1, not {min(given.max_prefill_tokens)}")
    if not all(PRIORITY_MIN <= priority <= PRIORITY_MAX for priority in given.priorities):
        raise BenchmarkError(f"--priorities must be from {PRIORITY_MIN} to {PRIORITY_MAX}")
    if not all(seconds is None or 0 <= seconds <= MOST_AGING_SECONDS for seconds in given.aging_seconds):
        raise BenchmarkError(f"--aging-seconds must be from 0 to {MOST_AGING_SECONDS:g}")
    for name, most in (("requests", MOST_REQUESTS), ("blocks", MOST_BLOCKS)):
        if getattr(given, name) > most:
            raise BenchmarkError(f"--{name} must be at most {most}, not {getattr(given, name)}")
    if 0 < given.rate < LEAST_RATE:
        raise BenchmarkError(f"--rate must be 0 or at least {LEAST_RATE}, not {given.rate}")
    for name in ("rate", "think_us", "wire_us"):
        if not 0 <= getattr(given, name) < 1e9:
            raise BenchmarkError(f"--{name.replace('_', '-')} must be at least 0, not {getattr(given, name)}")
    for name in ("input_lengths", "output_lengths"):
        low, high = getattr(given, name)
        if not 1 <= low <= high <= LONGEST:
            raise BenchmarkError(f"--{name.replace('_', '-')} must be from 1 to {LONGEST}, the smaller first")
