"""What a recorded timeline costs: seconds a step of a running batch, recorded and not, in turns.

One server computes one batch of requests; only the recording changes, every few steps. What slows a machine down lasts
longer than that, so it slows both. Each pair of neighbours gives a ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from bench.contestant import BenchmarkError
from bench.machine import machine
from bench.served import Served
from checkpoint import locate
from client import AsyncClient
from client.ask import Settings
from protocol.messages import StartTimeline, StopTimeline, TimelineState
from stepahead.progress import Progress
from timeline.ask import ask
from timeline.errors import TraceError

PROMPT = tuple(range(5, 21))

STEPS_TO_SETTLE = 3
"""Not measured after recording was switched: the switch itself takes a while to get around."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument("--model", metavar="PATH", help="model folder or .gguf file (default: the default model)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (%(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="what to compute in (%(default)s)")
    parser.add_argument("--requests", type=int, default=16, metavar="N", help="requests that run (%(default)s)")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="between two switches (%(default)s)")
    parser.add_argument("--pairs", type=int, default=20, metavar="N", help="neighbours to compare (%(default)s)")
    parser.add_argument("launch_options", nargs="*", metavar="OPTION", help="for launch.py, all behind --")


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure."""
    for name in ("requests", "steps", "pairs"):
        if getattr(given, name) < 1:
            raise BenchmarkError(f"--{name} must be at least 1, not {getattr(given, name)}")
    path = locate(given.model, need_weights="dummy" not in " ".join(given.launch_options))
    arguments = [f"--model={path}", f"--dtype={given.dtype}", f"--device={given.device}", *given.launch_options]
    tell("stepahead", f"loading {path.name}")
    served = Served("stepahead", arguments)
    try:
        off, on = asyncio.run(_measure(served.address, given.requests, given.steps, given.pairs, tell))
    finally:
        served.close()
    ratios = [without / with_it for without, with_it in zip(off, on, strict=True)]
    return {
        "machine": machine(),
        "model": path.name,
        "dtype": given.dtype,
        "device": given.device,
        "requests": given.requests,
        "launch_options": given.launch_options,
        "seconds_a_step": {"off": off, "on": on},
        "ratio": {
            "of": "speed with recording / without",
            "pairs": ratios,
            "median": statistics.median(ratios),
            "mean": statistics.mean(ratios),
            "standard_error": statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else None,
        },
    }


async def _measure(
    address: str, requests: int, steps: int, pairs: int, tell: Progress
) -> tuple[list[float], list[float]]:
    """Return the seconds a step without and with recording, one of each for each pair."""
    length = (2 * pairs + 2) * (steps + STEPS_TO_SETTLE + 20)
    off: list[float] = []
    on: list[float] = []
    async with AsyncClient(address) as client:
        settings = Settings(max_tokens=length, temperature=0.0, ignore_eos=True)
        others = [asyncio.create_task(client.generate(PROMPT, **settings)) for _ in range(requests - 1)]
        async with aclosing(client.stream(PROMPT, **settings)) as stream:
            tokens = aiter(stream)
            await _steps(tokens, steps)
            for pair in range(pairs):
                for recording in (False, True) if pair % 2 else (True, False):
                    file = await _switched(address, recording)
                    await _steps(tokens, STEPS_TO_SETTLE)
                    (on if recording else off).append(await _steps(tokens, steps))
                    if recording:
                        state = await _said(address, StopTimeline(2))
                        if state.problem or not state.spans:
                            raise BenchmarkError(state.problem or "nothing was recorded")
                        Path(file).unlink()
                tell("stepahead", f"pair {pair + 1} of {pairs}: speed {off[-1] / on[-1]:.3f}")
        for other in others:
            other.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*others)
    return off, on


async def _switched(address: str, recording: bool) -> str:
    """Begin a recording if one is wanted; return its file."""
    return (await _said(address, StartTimeline(1))).file if recording else ""


async def _said(address: str, question: StartTimeline | StopTimeline) -> TimelineState:
    try:
        return await asyncio.to_thread(ask, address, question)
    except TraceError as error:
        raise BenchmarkError(str(error)) from None


async def _steps(tokens: AsyncIterator[Any], count: int) -> float:
    """Wait for so many tokens of one request, one a step; return the seconds that each took."""
    began = time.perf_counter()
    came = 0
    while came < count:
        piece = await anext(tokens, None)
        if piece is None:
            raise BenchmarkError("the requests ended before the measurement did: fewer --pairs or --steps")
        came += len(piece.token_ids)
    return (time.perf_counter() - began) / came


def text(report: dict[str, Any]) -> str:
    """Return the report as lines."""
    ratio = report["ratio"]
    seconds = {name: 1e3 * statistics.median(each) for name, each in report["seconds_a_step"].items()}
    pairs = len(ratio["pairs"])
    error = "" if ratio["standard_error"] is None else f" ± {ratio['standard_error']:.4f}"
    return "\n".join(
        (
            " ".join(f"{key} {value}," for key, value in report["machine"].items()).rstrip(","),
            f"{report['model']}, {report['dtype']} on {report['device']}: {report['requests']} requests",
            f"a step takes {seconds['off']:.2f} ms, while it is recorded {seconds['on']:.2f} ms (medians)",
            f"{ratio['of']}: median {ratio['median']:.4f}, mean {ratio['mean']:.4f}{error}, {pairs} pairs",
        )
    )
