"""The scheduler's critical path without processes: settle + plan in steady decode, and the codec around it.

Every row decodes in every step, two plans are in flight, and a stand-in answers at once with tokens that end nothing.
So each sample is what stands between the arrival of Result N and the departure of Plan N+2. With --waiting there is a
queue, too, and in each step a request ends and one that waited takes its place, which is part of the sample.

Where others want the cores as well, a sample is as long as they let it be. So the CPU's time is told beside the
clock's, and budgets go by it; the codec is timed after other work, as in a process, and in a loop, as can be repeated.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import zmq
from numpy.typing import NDArray

from bench.contestant import BenchmarkError
from bench.machine import machine
from bench.percentiles import percentiles
from bench.workload import greedy
from protocol.codec import decode, encode
from protocol.endpoints import PrivateDirectory
from protocol.identity import new_session
from protocol.messages import Opened, Plan, Result, RowFlag, Submit
from protocol.sockets import bind_router
from scheduler_proc.core import Scheduler
from scheduler_proc.policy import FIRST_COME, Policy, PolicyName, policy_of
from stepahead.progress import Progress

BLOCK_SIZE = 16
CLIENT = 1
BUDGETS = {  # what the design allows on two cores
    "settle + plan at 256 rows, µs of CPU in the best steps": 150.0,
    "settle + plan at 4,096 rows, µs of CPU in the best steps": 1000.0,
    "settle + plan at 4,096 rows, µs of CPU at p99": 1000.0,
    "plan at 256 rows, bytes a row": 16.0,
    "codec at 256 rows, µs each way in a loop": 30.0,
    "submit of 1,000 tokens, µs of CPU": 20.0,
    "start of a scheduler process, s": 0.5,
}
CREDIT = 2
WAITING_TOKENS = 100
MOST_WAITING = 10**6
ROWS = (32, 256, 1024, 4096)
STARTS = 5
BLOCK = 20  # steps, of which the best ones are told on average: those least disturbed
LOOPS, CALLS = 20, 20  # of one function, of which the best loop counts


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument(
        "--rows", type=int, nargs="+", default=ROWS, metavar="N", help=f"batch sizes ({' '.join(map(str, ROWS))})"
    )
    parser.add_argument(
        "--waiting", type=int, default=0, metavar="N",
        help=f"requests that wait meanwhile, of {WAITING_TOKENS} tokens (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--scheduling-policy", choices=get_args(PolicyName), default="fcfs", help="in which order (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=600, metavar="N", help="steps measured for each (%(default)s)")


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure each batch size."""
    for name in ("rows", "steps"):
        if np.min(getattr(given, name)) < 1:
            raise BenchmarkError(f"--{name} must be at least 1, not {np.min(getattr(given, name))}")
    if not 0 <= given.waiting <= MOST_WAITING:
        raise BenchmarkError(f"--waiting must be from 0 to {MOST_WAITING}, not {given.waiting}")
    policy = policy_of(given.scheduling_policy, None)
    gc.collect()
    gc.disable()  # as in the scheduler process
    try:
        batches = []
        for rows in given.rows:
            tell("scheduler", f"measuring {given.steps} steps of {rows:,} rows")
            batches.append(_measure(rows, given.steps, given.waiting, policy))
            tell("scheduler", f"{rows:,} rows: settle + plan takes {batches[-1]['settle_plan_us']['p50']:.0f} µs")
        tell("scheduler", f"starting a scheduler process {STARTS} times")
        report = {"machine": machine(), "start_seconds": _start_seconds(), "batches": batches}
        return report | {"budgets": _budgets(report)}
    finally:
        gc.enable()


def text(report: dict[str, Any]) -> str:
    """Return the report as a table; times in µs."""
    lines = [" ".join(f"{key} {value}," for key, value in report["machine"].items()).rstrip(",")]
    lines.append("                settle + plan µs    of CPU: p50     p99    best        plan     submit of")
    lines.append(f"   rows     p50     p99     max    {f'{BLOCK} steps':>25}   bytes/row  1,000 tokens, µs of CPU")
    for batch in report["batches"]:
        settle_plan, cpu = batch["settle_plan_us"], batch["settle_plan_cpu_us"]
        lines.append(
            f"{batch['rows']:7,}{settle_plan['p50']:8.0f}{settle_plan['p99']:8.0f}{settle_plan['max']:8.0f}"
            f"{cpu['p50']:15.0f}{cpu['p99']:8.0f}{cpu['best']:8.0f}{batch['plan_bytes_per_row']:12.1f}{batch['submit_us']:18.1f}"
        )
    lines.append("")
    lines.append("          codec µs after other work: encode / decode       in a loop: encode / decode")
    lines.append("   rows           plan                 result             plan             result")
    for batch in report["batches"]:
        once, loop = batch["codec_us"], batch["codec_loop_us"]
        lines.append(
            f"{batch['rows']:7,}"
            + "".join(f"{once[f'encode_{name}']:13.1f} /{once[f'decode_{name}']:6.1f}" for name in ("plan", "result"))
            + "".join(f"{loop[f'encode_{name}']:10.1f} /{loop[f'decode_{name}']:6.1f}" for name in ("plan", "result"))
        )
    lines += [
        f"{batch['rows']:7,} rows: each of {batch['waiting']:,} requests that wait takes {batch['waiting_bytes']:,.0f} "
        f"bytes, {4 * WAITING_TOKENS} of them for its {WAITING_TOKENS} tokens"
        for batch in report["batches"]
        if batch["waiting"]
    ]
    lines.append(f"a scheduler process speaks to its worker {report['start_seconds']:.2f} s after it was started")
    lines += [
        f"{'within' if found <= BUDGETS[name] else 'OVER':>6} budget: {name}: {found:.2f}, {BUDGETS[name]:g} allowed"
        for name, found in report["budgets"].items()
    ]
    return "\n".join(lines)


def _budgets(report: dict[str, Any]) -> dict[str, float]:
    """Return what was found for each budget that the measured batch sizes allow to judge."""
    found = {"start of a scheduler process, s": report["start_seconds"]}
    for batch in report["batches"]:
        found["submit of 1,000 tokens, µs of CPU"] = batch["submit_us"]
        if batch["rows"] == 4096:
            found["settle + plan at 4,096 rows, µs of CPU at p99"] = batch["settle_plan_cpu_us"]["p99"]
        if batch["rows"] == 4096 or (batch["rows"] == 256 and not batch["waiting"]):
            name = f"settle + plan at {batch['rows']:,} rows, µs of CPU in the best steps"
            found[name] = batch["settle_plan_cpu_us"]["best"]
        if batch["rows"] == 256 and not batch["waiting"]:  # the rest is about steps in which everybody decodes
            found["plan at 256 rows, bytes a row"] = batch["plan_bytes_per_row"]
            found["codec at 256 rows, µs each way in a loop"] = max(batch["codec_loop_us"].values())
    return {name: found[name] for name in BUDGETS if name in found}


def _start_seconds() -> float:
    """Return the median of the seconds from starting a scheduler process to its first word to the worker."""
    taken = []
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for _ in range(STARTS):
        run = PrivateDirectory()
        router = bind_router(context, run.address("worker"))
        began = time.perf_counter()
        command = [sys.executable, "-m", "scheduler_proc", f"--bind={run.address('clients')}"]
        process = subprocess.Popen([*command, f"--worker={run.address('worker')}"], stderr=subprocess.DEVNULL)
        assert router.poll(30_000), "the scheduler never spoke"
        taken.append(time.perf_counter() - began)
        process.terminate()
        process.wait()
        router.close()
        run.remove()
    context.term()
    return statistics.median(taken)


def _measure(rows: int, steps: int, waiting: int, policy: Policy) -> dict[str, Any]:
    scheduler = _steady(rows, steps, policy, ending=waiting > 0)
    waiting_bytes = _let_wait(scheduler, waiting, rows, steps) if waiting else 0.0
    sent: deque[Plan] = deque()
    samples: list[tuple[float, float]] = []
    size: list[float] = []
    codec: list[list[float]] = []
    while len(samples) < steps:
        result = _answer(sent.popleft()) if len(sent) == CREDIT else None
        began, cpu_began = time.perf_counter(), time.thread_time()
        if result is not None:
            scheduler.settle(result, 0.0)
        plan = scheduler.plan(0.0)
        cpu_ended, ended = time.thread_time(), time.perf_counter()
        assert plan is not None
        sent.append(plan)
        scheduler.catch_up()  # in the GPU's shadow, as are deltas: not counted
        scheduler.take_deltas()
        if result is not None and _is_steady(plan, rows, begin=1 if waiting else 0):
            samples.append((ended - began, cpu_ended - cpu_began))
            ways = _ways(plan, result)
            size.append(len(encode(plan)) / rows)
            codec.append([_microseconds(each) for each in ways.values()])
    wall, cpu = 1e6 * np.array(samples).T
    return {
        "rows": rows,
        "waiting": waiting,
        "waiting_bytes": waiting_bytes,
        "settle_plan_us": _spread(wall),
        "settle_plan_cpu_us": _spread(cpu) | {"best": _best_block(cpu)},
        "plan_bytes_per_row": float(np.mean(size)),
        "codec_us": dict(zip(ways, np.median(np.array(codec), axis=0).tolist(), strict=True)),
        "codec_loop_us": {name: _loop_microseconds(each) for name, each in ways.items()},
        "submit_us": _submit_microseconds(scheduler),
    }


def _is_steady(plan: Plan, rows: int, begin: int) -> bool:
    """Whether all run by now, and only so many at a time begin in the place of others."""
    return len(plan.slot) >= rows - CREDIT * begin and len(plan.begin_slot) <= begin


def _steady(rows: int, steps: int, policy: Policy = FIRST_COME, *, ending: bool = False) -> Scheduler:
    """Return a scheduler with `rows` requests at mixed positions, so that each step some need a block.

    None of them ends within `steps`, or with `ending` one after the other does.
    """
    most = steps + 1200
    worker = Opened(
        nonce=1,
        session=new_session(),
        model="none",
        device="none",
        dtype="none",
        vocab_size=50_000,
        eos_token_ids=np.array([2], np.uint32),
        slots=rows,
        blocks=rows * (-(-most // BLOCK_SIZE) + 1),
        block_size=BLOCK_SIZE,
        max_batch_tokens=rows + 8192,
        max_model_len=most,
    )
    scheduler = Scheduler(worker, CREDIT, new_session(), policy=policy)
    for request in range(rows):
        prompt = np.arange(1 + request % BLOCK_SIZE, dtype=np.uint32)
        output = 1 + request if ending else most
        scheduler.submit(CLIENT, greedy(request, prompt, output, ignore_eos=False), 0.0)
    return scheduler


def _let_wait(scheduler: Scheduler, waiting: int, rows: int, steps: int) -> float:
    """Submit so many requests as they come from a socket, and those that begin meanwhile; return bytes of each."""
    draw = np.random.default_rng(0)
    before = _resident_bytes()
    for request in range(rows, rows + steps + waiting):
        prompt = draw.integers(0, 50_000, WAITING_TOKENS).astype(np.uint32)
        ask = decode(encode(greedy(request, prompt, rows, ignore_eos=False)))
        assert isinstance(ask, Submit)
        scheduler.submit(CLIENT, ask, 1.0)
    return (_resident_bytes() - before) / (steps + waiting)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _answer(plan: Plan) -> Result:
    samples = int(np.count_nonzero(plan.flags & RowFlag.SAMPLE))
    return Result(plan.session, plan.step, np.full(samples, 7, np.uint32), np.zeros(samples, np.uint8))


def _ways(plan: Plan, result: Result) -> dict[str, Callable[[], Any]]:
    """Return what the codec does with a plan and with a result."""
    plan_frame, result_frame = encode(plan), encode(result)
    return {
        "encode_plan": lambda: encode(plan),
        "decode_plan": lambda: decode(plan_frame),
        "encode_result": lambda: encode(result),
        "decode_result": lambda: decode(result_frame),
    }


def _submit_microseconds(scheduler: Scheduler) -> float:
    prompt = np.arange(1000, dtype=np.uint32)
    asks = [greedy(10**6 + each, prompt, 100, ignore_eos=False) for each in range(200)]
    began = time.thread_time()
    for ask in asks:
        scheduler.submit(CLIENT, ask, 0.0)
    return (time.thread_time() - began) / len(asks) * 1e6


def _microseconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return (time.perf_counter() - began) * 1e6


def _loop_microseconds(function: Callable[[], Any]) -> float:
    """Return what a call takes of the CPU in the best of some loops."""
    taken = []
    for _ in range(LOOPS):
        began = time.thread_time()
        for _ in range(CALLS):
            function()
        taken.append(time.thread_time() - began)
    return min(taken) / CALLS * 1e6


def _spread(samples: NDArray[np.float64]) -> dict[str, float]:
    return percentiles(samples) | {"max": float(samples.max()), "mean": float(samples.mean())}


def _best_block(samples: NDArray[np.float64]) -> float:
    """Return the least average of `BLOCK` samples in a row, or of all if there are fewer."""
    block = min(BLOCK, len(samples))
    return float(np.convolve(samples, np.full(block, 1 / block), "valid").min())
