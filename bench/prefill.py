"""How long prompts take by the tokens that a step may have, beside the rate at which the device multiplies matrices.

The worker's engine is driven directly: no processes, no requests, nothing decodes. Prompts of random tokens are
computed chunk by chunk as a scheduler would plan them, with two plans in flight.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.contestant import BenchmarkError
from bench.engine_options import add_model_options, add_worker_options, check_counts, engine_config
from bench.machine import machine
from bench.shapes import shape_of
from checkpoint import ModelConfig, describe
from gpu_worker.__main__ import OPENMP_SPINS
from stepahead.progress import Progress

if TYPE_CHECKING:
    from bench.prefill_steps import PrefillSteps

PROMPTS = ((4, 8192), (64, 512))
BUDGETS = (512, 2048, 8192)
MATRIX_SIZE = {"cuda": 8192, "cpu": 1024}
BLOCK_SIZE = 16
MOST_PROMPTS = 2**16
TERA = 1e12

Prompts = tuple[int, int]
"""How many, and the tokens of each."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    add_model_options(parser, "llama-3.1-8b")
    parser.add_argument(
        "--prompts",
        type=_prompts,
        nargs="+",
        default=PROMPTS,
        metavar="NxTOKENS",
        help="how many prompts, and of how many tokens each (4x8192 64x512)",
    )
    parser.add_argument(
        "--max-batch-tokens",
        type=int,
        nargs="+",
        default=BUDGETS,
        metavar="N",
        help=f"tokens computed in one step, at most ({' '.join(map(str, BUDGETS))})",
    )
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs measured of each (%(default)s)")
    parser.add_argument(
        "--matrix-size", type=int, metavar="N", help="of the product that is timed (8192 on a GPU, 1024 on a CPU)"
    )
    add_worker_options(parser)


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure."""
    check_counts(given, "max_batch_tokens", "runs")
    matrix_size = MATRIX_SIZE[given.device] if given.matrix_size is None else given.matrix_size
    if matrix_size < 1:
        raise BenchmarkError(f"--matrix-size must be at least 1, not {matrix_size}")
    with shape_of(given.model) as path:
        model = describe(path)
        if not isinstance(model, ModelConfig):
            raise BenchmarkError(f"{given.model}: {model.architecture} runs through transformers' code: not measured")
        rows = max(prompts for prompts, _ in given.prompts)
        config = engine_config(
            given,
            path,
            max_num_seqs=rows,
            max_model_len=max(length for _, length in given.prompts) + 1,
            max_batch_tokens=max(rows, *given.max_batch_tokens),
            block_size=BLOCK_SIZE,
            kv_cache_blocks=max(prompts * -(-length // BLOCK_SIZE) for prompts, length in given.prompts),
        )
        os.environ.setdefault("GOMP_SPINCOUNT", str(OPENMP_SPINS))  # as a worker has it
        from bench.matrix_rate import matrix_rate
        from bench.prefill_steps import PrefillSteps
        from gpu_worker.building import build_engine
        from gpu_worker.loading import DTYPES

        engine = build_engine(
            config, lambda text: tell("prefill", text), share=lambda done, text: tell.share("prefill", done, text)
        )
    try:
        tell("prefill", f"multiplying matrices of {matrix_size} by {matrix_size} to see how fast that is")
        rate = matrix_rate(engine.device, matrix_size, DTYPES[given.dtype])
        steps = PrefillSteps(engine)
        found = [
            _measured(given, model, steps, rate, prompts, budget, tell)
            for prompts in given.prompts
            for budget in given.max_batch_tokens
        ]
    finally:
        engine.device.close()
    return {
        "machine": machine(),
        "model": given.model,
        "dtype": engine.dtype,
        "where": engine.where,
        "worker_options": given.worker_options,
        "runs_each": given.runs,
        "matrix_operations_per_second": rate,
        "prompts": [one for one in found if one is not None],
    }


def _measured(
    given: argparse.Namespace,
    model: ModelConfig,
    steps: PrefillSteps,
    rate: float,
    prompts: Prompts,
    budget: int,
    tell: Progress,
) -> dict[str, Any] | None:
    """Return what prompts take with a budget, or None if the KV cache is too small for them."""
    from bench.operations import prompt_operations
    from bench.step_loop import microseconds

    count, length = prompts
    what = f"{count} prompts of {length:,} tokens, {budget:,} a step"
    if not steps.fits(count, length):
        tell("prefill", f"{what}: they do not fit into the KV cache: left out")
        return None
    steps.run(count, length, budget)  # first calls allocate, and compile what they compile
    runs = [steps.run(count, length, budget) for _ in range(given.runs)]
    seconds = float(np.median([one.seconds for one in runs]))
    device_ms = 1e3 * np.concatenate([one.device_seconds for one in runs])
    operations = prompt_operations(model, count, length)
    tell("prefill", f"{what}: {seconds:.3f} s, {count * length / seconds:,.0f} tokens/s")
    return {
        "prompts": count,
        "prompt_tokens": length,
        "max_batch_tokens": budget,
        "steps": len(runs[0].device_seconds),
        "seconds": seconds,
        "seconds_of_runs": [one.seconds for one in runs],
        "tokens_per_second": count * length / seconds,
        "operations": operations,
        "operations_per_second": operations / seconds,
        "share_of_matrix_rate": operations / seconds / rate,
        "device_ms": {"p50": float(np.median(device_ms)), "max": float(device_ms.max())},
        "host_us": microseconds(np.concatenate([one.host_seconds for one in runs])),
        "idle_share": float(np.median([one.idle_share for one in runs])),
    }


def text(report: dict[str, Any]) -> str:
    """Return the report as a table."""
    lines = [" ".join(f"{key} {value}," for key, value in report["machine"].items()).rstrip(",")]
    rate = report["matrix_operations_per_second"] / TERA
    lines.append(
        f"{report['model']}, random weights, {report['dtype']} on {report['where']}; "
        f"matrix products: {rate:,.3g} TFLOP/s"
    )
    lines.append(
        "                  a step,                                     share of    device, ms      host, µs  device"
    )
    lines.append(
        "prompts  tokens  at most  steps  seconds  tokens/s  TFLOP/s  that rate     p50     max    p50    p99    idle"
    )
    for one in report["prompts"]:
        lines.append(
            f"{one['prompts']:7}{one['prompt_tokens']:8,}{one['max_batch_tokens']:9,}{one['steps']:7}"
            f"{one['seconds']:9.3f}{one['tokens_per_second']:10,.0f}{one['operations_per_second'] / TERA:9,.3g}"
            f"{one['share_of_matrix_rate']:11.1%}{one['device_ms']['p50']:8.2f}{one['device_ms']['max']:8.2f}"
            f"{one['host_us']['p50']:7,.0f}{one['host_us']['p99']:7,.0f}{one['idle_share']:8.1%}"
        )
    return "\n".join(lines)


def _prompts(text: str) -> Prompts:
    """Return what `--prompts` was given."""
    found = re.fullmatch(r"(\d{1,9})x(\d{1,9})", text)
    if found is None or not 1 <= int(found[1]) <= MOST_PROMPTS or int(found[2]) < 1:
        raise argparse.ArgumentTypeError(f"must be as in 64x512, at most {MOST_PROMPTS} prompts, not {text}")
    return int(found[1]), int(found[2])
