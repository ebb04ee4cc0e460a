"""Many tokens for a few requests at once: what overlap gives a model that computes for milliseconds a step.

Every request has a short prompt and makes the same number of tokens, greedily; end tokens are ignored. All figures are
of the time from the first token to the last; the device's idle share is what its timeline shows between the first step
and the last, and in `early` and `late`, which are steps in a row near the beginning and at the end.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench.bare import Bare
from bench.contest import Contestants, figures, take_turns
from bench.continuous_peer import modes_on
from bench.equal_requests import (
    add_common_options,
    check,
    described,
    engine_for,
    equal_workload,
    text,
    transformers_peer,
)
from bench.shapes import shape_of
from scheduler_proc.config import SchedulingConfig
from stepahead.progress import Progress

__all__ = ["add_options", "run", "text"]

OVERLAP, LOCKSTEP = "stepahead", "stepahead --lockstep"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument(
        "--compare",
        choices=("lockstep", "transformers"),
        nargs="+",
        default=[],
        help="whom to take turns with: ourselves without overlap; transformers' continuous batching, sync and async",
    )
    add_common_options(parser, model="llama-3.1-8b", requests=32, tokens=8192)


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure."""
    timelines = check(given)
    with ExitStack() as undo:
        model = undo.enter_context(shape_of(given.model))
        engine, workload = engine_for(given, model), equal_workload(given, model)
        others: Contestants = {}
        if "transformers" in given.compare:
            tell("transformers", f"loading {given.model}")
            peer = transformers_peer(given, model, engine)
            undo.callback(peer.close)
            others = {f"transformers, {mode}": partial(peer.run, mode) for mode in modes_on(given.device)}
        bare = Bare(engine, timelines, tell)
        undo.callback(bare.close)
        ours: Contestants = {OVERLAP: partial(bare.run, "overlap", SchedulingConfig())}
        if "lockstep" in given.compare:
            ours[LOCKSTEP] = partial(bare.run, "lockstep", SchedulingConfig(lockstep=True))
        runs = take_turns(ours | others, workload, given.runs, tell)
    return described(given, workload) | figures(runs)
