"""How long a decode step takes by batch and context, beside what reading its bytes takes at least.

The worker's engine is driven directly: no processes, no requests, no prompts. Bytes are those of the parameters and of
all keys and values that a step must read; the floor is the time for them at the read bandwidth that the same run finds.
With --attention, one layer's attention alone is beside that bandwidth.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.contestant import BenchmarkError
from bench.engine_options import add_model_options, add_worker_options, check_counts, engine_config
from bench.machine import machine
from bench.shapes import shape_of
from checkpoint import ModelConfig, describe
from gpu_worker.__main__ import OPENMP_SPINS
from gpu_worker.config import EngineConfig
from stepahead.progress import Progress

if TYPE_CHECKING:
    from bench.decode_steps import DecodeSteps

BATCHES = (1, 8, 32, 64, 128, 256)
CONTEXTS = (256, 2048, 4096, 8192)
BUFFER_MIB = {"cuda": 4096, "cpu": 512}
LEAST_BATCH_TOKENS = 512
MEBI, GIGA = 2**20, 1e9


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    add_model_options(parser, "llama-3.1-8b")
    for name, default in (("batch", BATCHES), ("context", CONTEXTS)):
        parser.add_argument(
            f"--{name}", type=int, nargs="+", default=default, metavar="N", help=f"({' '.join(map(str, default))})"
        )
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="steps measured for each (%(default)s)")
    parser.add_argument(
        "--attention",
        action="store_true",
        help="time the attention of one layer alone, without weights; --steps is how often",
    )
    parser.add_argument(
        "--buffer-mib", type=int, metavar="N", help="tensor whose reading is timed (4096 on a GPU, 512 on a CPU)"
    )
    add_worker_options(parser)


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure."""
    check_counts(given, "batch", "context", "steps")
    buffer_mib = BUFFER_MIB[given.device] if given.buffer_mib is None else given.buffer_mib
    if buffer_mib < 1:
        raise BenchmarkError(f"--buffer-mib must be at least 1, not {buffer_mib}")
    with shape_of(given.model) as path:
        model = describe(path)
        if not isinstance(model, ModelConfig):
            raise BenchmarkError(f"{given.model}: {model.architecture} runs through transformers' code: not measured")
        config = engine_config(
            given,
            path,
            max_num_seqs=max(given.batch),
            max_model_len=max(2, max(given.context) + 1),
            max_batch_tokens=max(LEAST_BATCH_TOKENS, *given.batch),
        )
        os.environ.setdefault("GOMP_SPINCOUNT", str(OPENMP_SPINS))  # as a worker has it
        if given.attention:
            return _attention(given, model, config, buffer_mib, tell)
        from bench.bandwidth import bandwidth
        from bench.decode_steps import DecodeSteps
        from gpu_worker.building import build_engine

        engine = build_engine(
            config, lambda text: tell("decode", text), share=lambda done, text: tell.share("decode", done, text)
        )
    try:
        tell("decode", f"reading {buffer_mib} MiB to see how fast that is")
        found = bandwidth(engine.device, buffer_mib * MEBI)
        steps = DecodeSteps(engine)
        rows = [_measured(given, model, steps, found.best, *at, tell) for at in _all(given)]
    finally:
        engine.device.close()
    return {
        "machine": machine(),
        "model": given.model,
        "dtype": engine.dtype,
        "where": engine.where,
        "worker_options": given.worker_options,
        "steps_each": given.steps,
        "read_bytes_per_second": found.read,
        "copy_bytes_per_second": found.copy,
        "steps": [row for row in rows if row is not None],
    }


def _attention(
    given: argparse.Namespace, model: ModelConfig, config: EngineConfig, buffer_mib: int, tell: Progress
) -> dict[str, Any]:
    """Measure attention alone."""
    from bench.bandwidth import bandwidth
    from bench.decode_attention import DecodeAttention, name_of, open_device
    from gpu_worker.backends import choose_backend
    from gpu_worker.loading import DTYPES

    device, dtype = open_device(given.device, config.threads), DTYPES[given.dtype]
    try:
        backend, why = choose_backend(config.attention_backend, model, device.torch_device)
        tell("decode", f"attention by {backend}{f' ({why})' if why else ''}")
        tell("decode", f"reading {buffer_mib} MiB to see how fast that is")
        found = bandwidth(device, buffer_mib * MEBI)
        layers = DecodeAttention(device, model, dtype, config.block_size, backend)
        rows = []
        for batch, context in _all(given):
            if not layers.fits(batch, context):
                tell("decode", f"{batch} rows of {context:,} tokens do not fit into memory: left out")
                continue
            times = layers.run(batch, context, given.steps)
            seconds, read = float(np.median(times)), layers.bytes_of(batch, context)
            tell("decode", f"{batch} rows of {context:,} tokens: {1e6 * seconds:.1f} µs a layer")
            rows.append(
                {
                    "batch": batch,
                    "context": context,
                    "layers": layers.layers_for(batch, context),
                    "layer_us": {"p50": 1e6 * seconds, "p99": 1e6 * float(np.percentile(times, 99))},
                    "kv_bytes": read,
                    "bytes_per_second": read / seconds,
                    "share_of_bandwidth": read / seconds / found.best,
                }
            )
        where = name_of(device)
    finally:
        device.close()
    return {
        "machine": machine(),
        "model": given.model,
        "dtype": given.dtype,
        "where": where,
        "worker_options": given.worker_options,
        "attention_by": backend,
        "rounds_each": given.steps,
        "read_bytes_per_second": found.read,
        "copy_bytes_per_second": found.copy,
        "attention": rows,
    }


def _all(given: argparse.Namespace) -> list[tuple[int, int]]:
    return [(batch, context) for batch in given.batch for context in given.context]


def _measured(
    given: argparse.Namespace,
    model: ModelConfig,
    steps: DecodeSteps,
    bytes_per_second: float,
    batch: int,
    context: int,
    tell: Progress,
) -> dict[str, Any] | None:
    """Return what steps of one kind take, or None if the KV cache is too small for them."""
    from bench.decode_steps import kv_bytes, weight_bytes
    from bench.step_loop import microseconds

    if not steps.fits(batch, context):
        tell("decode", f"{batch} rows of {context:,} tokens do not fit into the KV cache: left out")
        return None
    timed = steps.run(batch, context, given.steps)
    weights, kv = weight_bytes(model, given.dtype, batch), kv_bytes(model, given.dtype, batch, context)
    seconds = float(np.median(timed.device_seconds))
    floor = (weights + kv) / bytes_per_second
    tell("decode", f"{batch} rows of {context:,} tokens: {1e3 * seconds:.3f} ms")
    return {
        "batch": batch,
        "context": context,
        "device_ms": {"p50": 1e3 * seconds, "p99": 1e3 * float(np.percentile(timed.device_seconds, 99))},
        "ms_a_step": 1e3 * timed.seconds / given.steps,
        "host_us": microseconds(timed.host_seconds),
        "idle_share": timed.idle_share,
        "weight_bytes": weights,
        "kv_bytes": kv,
        "bytes_per_second": (weights + kv) / seconds,
        "floor_ms": 1e3 * floor,
        "times_the_floor": seconds / floor,
    }


def text(report: dict[str, Any]) -> str:
    """Return the report as a table."""
    lines = [" ".join(f"{key} {value}," for key, value in report["machine"].items()).rstrip(",")]
    read, copy = (report[f"{what}_bytes_per_second"] / GIGA for what in ("read", "copy"))
    lines.append(
        f"{report['model']}, random weights, {report['dtype']} on {report['where']}; "
        f"memory: read {read:,.1f} GB/s, copy {copy:,.1f} GB/s"
    )
    if "attention" in report:
        return "\n".join([*lines, *_attention_table(report)])
    lines.append(
        "              device, ms a step     with   host, µs a step  device   GB read a step         floor,  times"
    )
    lines.append(
        "batch context     p50     p99     launch       p50     p99    idle   weights     KV   GB/s      ms     it"
    )
    for step in report["steps"]:
        lines.append(
            f"{step['batch']:5}{step['context']:8,}{step['device_ms']['p50']:8.3f}{step['device_ms']['p99']:8.3f}"
            f"{step['ms_a_step']:11.3f}{step['host_us']['p50']:10,.0f}{step['host_us']['p99']:8,.0f}"
            f"{step['idle_share']:8.1%}{step['weight_bytes'] / GIGA:10.3f}{step['kv_bytes'] / GIGA:7.3f}"
            f"{step['bytes_per_second'] / GIGA:7,.0f}{step['floor_ms']:8.3f}{step['times_the_floor']:7.2f}"
        )
    return "\n".join(lines)


def _attention_table(report: dict[str, Any]) -> list[str]:
    lines = [f"attention by {report['attention_by']}, {report['rounds_each']:,} rounds"]
    lines.append("                         µs a layer           GB         share of")
    lines.append("batch context  layers     p50     p99  a layer    GB/s  bandwidth")
    for one in report["attention"]:
        lines.append(
            f"{one['batch']:5}{one['context']:8,}{one['layers']:8}{one['layer_us']['p50']:8.1f}"
            f"{one['layer_us']['p99']:8.1f}{one['kv_bytes'] / GIGA:9.3f}{one['bytes_per_second'] / GIGA:8,.0f}"
            f"{one['share_of_bandwidth']:11.1%}"
        )
    return lines
