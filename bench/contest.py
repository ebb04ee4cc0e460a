"""Contestants of a workload that are watched step by step: their turns, and what is told of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bench.step_times import StepTimes
from bench.thin import Answered
from bench.workload import Workload
from stepahead.progress import Progress

WARM_UP_TOKENS = 16

Measured = tuple[Answered, StepTimes]
Contestants = dict[str, Callable[[Workload], Measured]]
"""What does a workload, by name."""


def take_turns(contestants: Contestants, workload: Workload, runs: int, tell: Progress) -> dict[str, list[Measured]]:
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


def figures(runs: dict[str, list[Measured]], pairs: list[tuple[str, str]] | None = None) -> dict[str, Any]:
    """Return what a report says of runs: "runs", and "ratios" of the speeds of `pairs`, turn by turn.

    Without `pairs`, the first contestant is compared with each of the others.
    """
    speed = {name: [answered.tokens_per_second for answered, _ in each] for name, each in runs.items()}
    first, *others = speed
    return {
        "runs": {name: [_shown(*one) for one in each] for name, each in runs.items()},
        "ratios": {
            f"{one} / {other}": [ours / theirs for ours, theirs in zip(speed[one], speed[other], strict=True)]
            for one, other in ([(first, other) for other in others] if pairs is None else pairs)
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


def table(report: dict[str, Any]) -> list[str]:
    """Return a row of medians for each contestant, and all ratios, as lines."""
    width = max(map(len, report["runs"]))
    some = next(iter(report["runs"].values()))[0]
    lines = [f"{'':{width}}  first to                     ms a step, idle"]
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
        lines.append(f"{name}: {statistics.median(ratios):.3f}  ({each})")
    return lines


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
