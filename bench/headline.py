"""Many tokens for a few requests at once: what overlap gives a model that computes for milliseconds a step.

Every request has a short prompt and makes the same number of tokens, greedily; end tokens are ignored. All figures are
of the time from the first token to the last; the device's idle share is what its timeline shows between the first step
and the last, and in `early` and `late`, which are steps in a row near the beginning and at the end.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.bare import Bare
from bench.contestant import BenchmarkError
from bench.continuous_peer import MODES, ContinuousPeer
from bench.engine_options import add_model_options, add_worker_options, check_counts, engine_config
from bench.machine import machine
from bench.shapes import shape_of
from bench.step_times import StepTimes
from bench.thin import Answered
from bench.workload import Workload, uniform_workload
from checkpoint import describe
from gpu_worker.config import EngineConfig
from scheduler_proc.config import SchedulingConfig
from stepahead.progress import Progress

OVERLAP, LOCKSTEP = "stepahead", "stepahead --lockstep"
WARM_UP_TOKENS = 16
LEAST_BATCH_TOKENS = 512
"""Tokens that a step may have, prompts included, of either side: prompts of some requests at once."""

Measured = tuple[Answered, StepTimes]
Contestants = dict[str, Callable[[Workload], Measured]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    add_model_options(parser, "llama-3.1-8b")
    parser.add_argument("--requests", type=int, default=32, metavar="N", help="requests, all at once (%(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=16, metavar="N", help="of each (%(default)s)")
    parser.add_argument("--tokens", type=int, default=8192, metavar="N", help="new tokens of each (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each contestant (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the prompts (%(default)s)")
    parser.add_argument(
        "--compare",
        choices=("lockstep", "transformers"),
        nargs="+",
        default=[],
        help="whom to take turns with: ourselves without overlap; transformers' continuous batching, sync and async",
    )
    parser.add_argument(
        "--compile-level",
        type=int,
        choices=range(4),
        metavar="N",
        help="transformers' default_compile_level, 0 to 3 (1 on a GPU, 0 on a CPU)",
    )
    parser.add_argument("--timelines", metavar="FOLDER", help="keep each run's timeline there (default: nowhere)")
    add_worker_options(parser)


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure."""
    check_counts(given, "requests", "prompt_tokens", "tokens", "runs")
    if given.tokens < 2:
        raise BenchmarkError("--tokens must be at least 2: what is measured lies between the first and the last")
    timelines = _folder(given.timelines)
    with ExitStack() as undo:
        model = undo.enter_context(shape_of(given.model))
        lengths = (given.prompt_tokens,) * 2, (given.tokens,) * 2
        workload = uniform_workload(given.requests, *lengths, describe(model).vocab_size, given.seed)
        engine = _engine(given, model)
        contestants: Contestants = {}
        if "transformers" in given.compare:
            tell("transformers", f"loading {given.model}")
            level = int(given.device == "cuda") if given.compile_level is None else given.compile_level
            peer = ContinuousPeer(model, given.dtype, given.device, level, engine.max_batch_tokens)
            undo.callback(peer.close)
            for mode in MODES if given.device == "cuda" else MODES[:1]:
                contestants[f"transformers, {mode}"] = lambda work, mode=mode: peer.run(mode, work)  # type: ignore[misc]
        bare = Bare(engine, timelines, tell)
        undo.callback(bare.close)
        ours = {OVERLAP: SchedulingConfig()}
        if "lockstep" in given.compare:
            ours[LOCKSTEP] = SchedulingConfig(lockstep=True)
        contestants = {name: _ours(bare, scheduling) for name, scheduling in ours.items()} | contestants
        runs = _take_turns(contestants, workload, given.runs, tell)
    return _report(given, workload, runs)


def _engine(given: argparse.Namespace, model: Path) -> EngineConfig:
    longest = given.prompt_tokens + given.tokens
    block_size = 16
    return engine_config(
        given,
        model,
        max_num_seqs=given.requests,
        max_model_len=longest,
        max_batch_tokens=max(LEAST_BATCH_TOKENS, given.requests),
        block_size=block_size,
        kv_cache_blocks=given.requests * -(-longest // block_size),
    )


def _folder(named: str | None) -> Path | None:
    """Return where recordings go; raises `BenchmarkError` if some are there already, before anything is loaded."""
    if named is None:
        return None
    folder = Path(named)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BenchmarkError(f"--timelines {named}: the folder is not empty")
    except OSError as error:
        raise BenchmarkError(f"--timelines {named}: {error.strerror}") from None
    return folder


def _ours(bare: Bare, scheduling: SchedulingConfig) -> Callable[[Workload], Measured]:
    name = "lockstep" if scheduling.lockstep else "overlap"

    def measured(workload: Workload) -> Measured:
        recorded = bare.run(name, workload, scheduling)
        return recorded.answered, recorded.steps

    return measured


def _take_turns(contestants: Contestants, workload: Workload, runs: int, tell: Progress) -> dict[str, list[Measured]]:
    """Return each contestant's runs; each is warmed up first. Who begins alternates."""
    short = Workload(workload.prompts, tuple(min(each, WARM_UP_TOKENS) for each in workload.output_lengths))
    for name, measured in contestants.items():
        tell(name, "warming up")
        measured(short)
    found: dict[str, list[Measured]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(runs):
        for name in names if turn % 2 == 0 else names[::-1]:
            tell(name, f"run {turn + 1} of {runs}")
            answered, steps = contestants[name](workload)
            tell(name, f"{answered.tokens_per_second:,.1f} tok/s, in {answered.seconds:.2f} s")
            found[name].append((answered, steps))
    return found


def _report(given: argparse.Namespace, workload: Workload, runs: dict[str, list[Measured]]) -> dict[str, Any]:
    speed = {name: [answered.tokens_per_second for answered, _ in each] for name, each in runs.items()}
    return {
        "machine": machine(),
        "model": given.model,
        "dtype": given.dtype,
        "device": given.device,
        "requests": given.requests,
        "prompt_tokens": given.prompt_tokens,
        "tokens": given.tokens,
        "output_tokens": workload.output_tokens,
        "worker_options": given.worker_options,
        "runs": {name: [_shown(*one) for one in each] for name, each in runs.items()},
        "ratios": {
            name: [ours / theirs for ours, theirs in zip(speed[OVERLAP], speeds, strict=True)]
            for name, speeds in speed.items()
            if name != OVERLAP
        },
    }


def _shown(answered: Answered, steps: StepTimes) -> dict[str, Any]:
    return {
        "first_to_last_seconds": answered.seconds,
        "tokens_per_second": answered.tokens_per_second,
        "steps": len(steps.start),
        "idle_share": steps.idle_share,
        "early": asdict(steps.early),
        "late": asdict(steps.late),
    }


def text(report: dict[str, Any]) -> str:
    """Return the report as a table of medians, with all ratios."""
    lines = [" ".join(f"{key} {value}," for key, value in report["machine"].items()).rstrip(",")]
    lines.append(
        f"{report['model']}, random weights, {report['dtype']} on {report['device']}: {report['requests']} requests, "
        f"{report['prompt_tokens']} tokens in and {report['tokens']:,} out each"
    )
    width = max(map(len, report["runs"]))
    some = next(iter(report["runs"].values()))[0]
    lines.append(f"{'':{width}}  first to                     ms a step, idle")
    spans = (f"from {some[part]['first']}, {some[part]['steps']} steps" for part in ("early", "late"))
    lines.append(f"{'':{width}}    last, s       tok/s    idle" + "".join(f"{span:>24}" for span in spans))
    for name, runs in report["runs"].items():
        median = _median(runs)
        windows = "".join(_window(median, part) for part in ("early", "late"))
        lines.append(
            f"{name:{width}}{median('first_to_last_seconds'):12.2f}{median('tokens_per_second'):12,.1f}"
            f"{median('idle_share'):8.2%}{windows}"
        )
    for name, ratios in report["ratios"].items():
        each = ", ".join(f"{one:.3f}" for one in ratios)
        lines.append(f"{OVERLAP} / {name}: {statistics.median(ratios):.3f}  ({each})")
    return "\n".join(lines)


def _median(runs: list[dict[str, Any]]) -> Callable[..., float]:
    def median(*path: str) -> float:
        values = []
        for one in runs:
            value: Any = one
            for key in path:
                value = value[key]
            values.append(value)
        return float(statistics.median(values))

    return median


def _window(median: Callable[..., float], part: str) -> str:
    return f"{median(part, 'milliseconds_a_step'):15.3f}{median(part, 'idle_share'):9.2%}"
