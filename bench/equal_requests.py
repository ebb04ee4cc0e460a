"""Requests that are all alike, all there at the beginning: the options, sizes and words of benchmarks that run them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench.contest import table
from bench.contestant import BenchmarkError
from bench.continuous_peer import ContinuousPeer
from bench.engine_options import (
    add_model_options,
    add_recordings_option,
    add_worker_options,
    check_counts,
    engine_config,
    recordings_folder,
)
from bench.machine import machine
from bench.workload import Workload, seed_number, uniform_workload
from checkpoint import describe
from gpu_worker.config import EngineConfig

BLOCK_SIZE = 16
LEAST_BATCH_TOKENS = 512
"""Tokens that a step may have, prompts included, of either side: prompts of some requests at once."""


def add_common_options(parser: argparse.ArgumentParser, model: str, requests: int, tokens: int) -> None:
    """Declare what can be chosen; the last three are defaults."""
    add_model_options(parser, model)
    parser.add_argument("--requests", type=int, default=requests, metavar="N", help="all at once (%(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=16, metavar="N", help="of each (%(default)s)")
    parser.add_argument("--tokens", type=int, default=tokens, metavar="N", help="new tokens of each (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each contestant (%(default)s)")
    parser.add_argument("--seed", type=seed_number, default=0, metavar="N", help="of the prompts (%(default)s)")
    parser.add_argument(
        "--compile-level",
        type=int,
        choices=range(4),
        metavar="N",
        help="transformers' default_compile_level, 0 to 3 (1 on a GPU, 0 on a CPU)",
    )
    add_recordings_option(parser)
    add_worker_options(parser)


def check(given: argparse.Namespace) -> Path | None:
    """Return where recordings go; raises `BenchmarkError` for a mistake, before anything is loaded."""
    check_counts(given, "requests", "prompt_tokens", "tokens", "runs")
    if given.tokens < 2:
        raise BenchmarkError("--tokens must be at least 2: what is measured lies between the first and the last")
    return recordings_folder(given)


def equal_workload(given: argparse.Namespace, model: Path) -> Workload:
    """Return the requests."""
    lengths = (given.prompt_tokens,) * 2, (given.tokens,) * 2
    return uniform_workload(given.requests, *lengths, describe(model).vocab_size, given.seed)


def engine_for(given: argparse.Namespace, model: Path) -> EngineConfig:
    """Return a worker's configuration in which all of them run at once; raises `BenchmarkError`."""
    longest = given.prompt_tokens + given.tokens
    return engine_config(
        given,
        model,
        max_num_seqs=given.requests,
        max_model_len=longest,
        max_batch_tokens=max(LEAST_BATCH_TOKENS, given.requests),
        block_size=BLOCK_SIZE,
        kv_cache_blocks=given.requests * -(-longest // BLOCK_SIZE),
    )


def transformers_peer(given: argparse.Namespace, model: Path, engine: EngineConfig) -> ContinuousPeer:
    """Return transformers with the same model and the same bound of a step's tokens."""
    level = int(given.device == "cuda") if given.compile_level is None else given.compile_level
    return ContinuousPeer(model, given.dtype, given.device, level, engine.max_batch_tokens)


def described(given: argparse.Namespace, workload: Workload) -> dict[str, Any]:
    """Return what a report says of the machine and the workload."""
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
    }


def text(report: dict[str, Any]) -> str:
    """Return the report as a table of medians, with all ratios."""
    about = " ".join(f"{key} {value}," for key, value in report["machine"].items()).rstrip(",")
    workload = (
        f"{report['model']}, random weights, {report['dtype']} on {report['device']}: {report['requests']} requests, "
        f"{report['prompt_tokens']} tokens in and {report['tokens']:,} out each"
    )
    return "\n".join((about, workload, *table(report)))
