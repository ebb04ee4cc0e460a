"""From a benchmark's own options, and the worker's behind its --, to the worker's configuration and the recordings."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.contestant import BenchmarkError
from bench.shapes import SHAPES
from checkpoint import describe
from gpu_worker.config import EngineConfig
from protocol.options import parse_options


def add_model_options(parser: argparse.ArgumentParser, model: str) -> None:
    """Declare what is computed, and where; `model` is the default."""
    parser.add_argument(
        "--model",
        default=model,
        metavar="MODEL",
        help=f"shape, computed with random weights: {', '.join(SHAPES)}, or the folder of a model (%(default)s)",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="what to compute in (%(default)s)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="where to compute (%(default)s)")


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    """Declare that the worker's options may follow."""
    parser.add_argument(
        "worker_options", nargs="*", metavar="OPTION", help="for the worker, all behind --, as in -- --enforce-eager"
    )


def add_recordings_option(parser: argparse.ArgumentParser) -> None:
    """Declare where timelines may be kept."""
    parser.add_argument("--timelines", metavar="FOLDER", help="keep each run's timeline there (default: nowhere)")


def recordings_folder(given: argparse.Namespace) -> Path | None:
    """Return where timelines are to be kept, if anywhere; raises `BenchmarkError` if they cannot be."""
    if given.timelines is None:
        return None
    folder = Path(given.timelines)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BenchmarkError(f"--timelines {given.timelines}: the folder is not empty")
    except OSError as error:
        raise BenchmarkError(f"--timelines {given.timelines}: {error.strerror}") from None
    return folder


def engine_config(given: argparse.Namespace, model: Path, **sizes: int) -> EngineConfig:
    """Return what a worker is to hold: random weights of a model's shape, and room for `sizes`, its config's fields.

    Raises `BenchmarkError` if the model cannot have so many positions; what is wrong behind the -- ends the process
    with one line.
    """
    longest = describe(model).longest_model_len
    if sizes["max_model_len"] > longest:
        raise BenchmarkError(f"{sizes['max_model_len']} tokens in a request are more than the model's {longest}")
    own = [f"--{name.replace('_', '-')}={size}" for name, size in sizes.items()]
    own += [f"--model={model}", f"--dtype={given.dtype}", f"--device={given.device}", "--load-format=dummy"]
    program = f"python -m bench {given.name} … --"
    (config,) = parse_options(program, "The worker's options.", EngineConfig, arguments=[*own, *given.worker_options])
    assert isinstance(config, EngineConfig)
    return config


def check_counts(given: argparse.Namespace, *names: str) -> None:
    """Raise `BenchmarkError` unless each of these options is at least 1."""
    for name in names:
        value = getattr(given, name)
        if min(value if isinstance(value, list | tuple) else [value]) < 1:
            shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
            raise BenchmarkError(f"--{name.replace('_', '-')} must be at least 1, not {shown}")
