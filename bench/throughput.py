"""Output tokens a second over a fixed set of requests, beside transformers or beside --lockstep.

Both are loaded before the first run, and take turns on the same requests: what slows the machine down for a while slows
both. Every pair gives a ratio; the report has all of them, not only the median.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.contestant import BenchmarkError, Contestant, Run
from bench.machine import machine
from bench.served import Served
from bench.shapes import SHAPES, shape_of
from bench.transformers_peer import CONTINUOUS, STATIC_BATCHES, TransformersPeer, mode_names
from bench.workload import Workload, seed_number, uniform_workload
from checkpoint import describe, locate
from stepahead.progress import Progress

WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Preset:
    """What is measured unless an option says otherwise."""

    model: str | None
    requests: int
    input_lengths: tuple[int, int]
    output_lengths: tuple[int, int]
    launch_options: tuple[str, ...] = ()


ORDINARY = Preset(None, 32, (16, 256), (16, 256))
PRESETS = {
    "nano-vllm": Preset(
        model="qwen3-0.6b",
        requests=256,
        input_lengths=(100, 1024),
        output_lengths=(100, 1024),
        launch_options=("--max-num-seqs=256", "--max-batch-tokens=8192", "--max-model-len=2048"),
    )
}
"""Workloads that others are known by. All of the requests run at once."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument(
        "--preset", choices=PRESETS, help="workload of nano-vllm's benchmark, as far as other options leave it"
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="model folder or .gguf file (default: the default model), or a shape, computed with random weights: "
        f"{', '.join(SHAPES)}",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="what to compute in (%(default)s)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (%(default)s)")
    parser.add_argument("--requests", type=int, metavar="N", help="requests, all there at the beginning (32)")
    for what in ("input", "output"):
        parser.add_argument(
            f"--{what}-lengths",
            type=int,
            nargs=2,
            metavar=("FROM", "TO"),
            help=f"{what} tokens of a request, drawn uniformly (16 256)",
        )
    parser.add_argument("--seed", type=seed_number, default=0, metavar="N", help="of lengths and tokens (%(default)s)")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="runs of each (%(default)s)")
    parser.add_argument(
        "--compare",
        choices=("transformers", "lockstep", "nothing"),
        default="nothing",
        help="whom to take turns with: transformers at its best, or ourselves without overlap (%(default)s)",
    )
    parser.add_argument(
        "--way",
        metavar="NAME",
        help=f'how transformers does it: "{CONTINUOUS}", or "generate, batches of N" with --requests for N, or less: '
        f"{', '.join(map(str, STATIC_BATCHES))}. Without, each is tried once, and the fastest taken",
    )
    parser.add_argument(
        "launch_options", nargs="*", metavar="OPTION", help="for launch.py, all behind --, as in -- --max-num-seqs 16"
    )


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure."""
    preset = PRESETS[given.preset] if given.preset else ORDINARY
    for name in ("model", "requests", "input_lengths", "output_lengths"):
        if getattr(given, name) is None:
            setattr(given, name, getattr(preset, name))
    given.launch_options = [*preset.launch_options, *given.launch_options]
    if given.way is not None and given.way not in mode_names(given.requests):
        ways = ", ".join(map(repr, mode_names(given.requests)))
        raise BenchmarkError(f"--way must be one of {ways}, not {given.way!r}")
    _check(given)
    if given.model not in SHAPES:
        return _run(given, locate(given.model, need_weights="dummy" not in " ".join(given.launch_options)), tell)
    if given.compare == "transformers":
        raise BenchmarkError(f"--compare transformers: {given.model} has no weights to load; headline compares shapes")
    given.launch_options = ["--load-format=dummy", *given.launch_options]
    with shape_of(given.model) as path:
        return _run(given, path, tell)


def _run(given: argparse.Namespace, path: Path, tell: Progress) -> dict[str, Any]:
    vocab_size = describe(path).vocab_size
    workload = uniform_workload(
        given.requests, tuple(given.input_lengths), tuple(given.output_lengths), vocab_size, given.seed
    )
    where = [f"--device={given.device}", *_beside_another(given)]
    arguments = [f"--model={path}", f"--dtype={given.dtype}", *where, *given.launch_options]
    report: dict[str, Any] = {
        "machine": machine(),
        "model": path.name,
        "dtype": given.dtype,
        "device": given.device,
        "requests": given.requests,
        "input_tokens": sum(map(len, workload.prompts)),
        "output_tokens": workload.output_tokens,
        "launch_options": given.launch_options,
    }
    with ExitStack() as undo:
        other: Contestant | None = None
        if given.compare == "transformers":
            tell("transformers", f"loading {path.name}")
            peer = other = TransformersPeer(path, given.dtype, given.device)
            undo.callback(peer.close)
        tell("stepahead", f"loading {path.name}")
        ours = Served("stepahead", arguments)
        undo.callback(ours.close)
        if given.compare == "transformers":
            if given.way is None:
                report["modes"] = peer.best(_shortened(workload), workload, tell)
            else:
                peer.mode = given.way
        elif given.compare == "lockstep":
            tell("stepahead --lockstep", f"loading {path.name}")
            other = Served("stepahead --lockstep", [*arguments, "--lockstep"])
            undo.callback(other.close)
        contestants: list[Contestant] = [ours] if other is None else [ours, other]
        for contestant in contestants:
            tell(contestant.name, "warming up")
            contestant.run(_shortened(workload))
        runs = _take_turns(contestants, workload, given.pairs, tell)
    report["runs"] = {name: [_shown(one) for one in each] for name, each in runs.items()}
    if other is not None:
        first, second = runs.values()
        ratios = [a.tokens_per_second / b.tokens_per_second for a, b in zip(first, second, strict=True)]
        report["ratio"] = {
            "of": " / ".join(runs),
            "pairs": ratios,
            "median": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
        }
    return report


def _check(given: argparse.Namespace) -> None:
    for name in ("requests", "pairs"):
        if getattr(given, name) < 1:
            raise BenchmarkError(f"--{name} must be at least 1, not {getattr(given, name)}")
    for name in ("input", "output"):
        least, most = getattr(given, f"{name}_lengths")
        if not 1 <= least <= most:
            raise BenchmarkError(f"--{name}-lengths must be two numbers from 1 on, the larger last; not {least} {most}")


def _beside_another(given: argparse.Namespace) -> list[str]:
    """Return what leaves another contestant its half of a GPU's memory."""
    return ["--gpu-memory-utilization=0.45"] if given.device == "cuda" and given.compare != "nothing" else []


def _shortened(workload: Workload) -> Workload:
    """Return a little of everything, to warm up with: first calls allocate, and compile what they compile."""
    return Workload(workload.prompts, tuple(min(length, WARM_UP_TOKENS) for length in workload.output_lengths))


def _take_turns(contestants: list[Contestant], workload: Workload, pairs: int, tell: Progress) -> dict[str, list[Run]]:
    """Return each contestant's runs. Who begins alternates: no one always has the other's heat to bear."""
    runs: dict[str, list[Run]] = {contestant.name: [] for contestant in contestants}
    for pair in range(pairs):
        for contestant in contestants if pair % 2 == 0 else contestants[::-1]:
            tell(contestant.name, f"run {pair + 1} of {pairs}")
            one = contestant.run(workload)
            tell(contestant.name, f"{one.tokens_per_second:.1f} tok/s, in {one.seconds:.1f} s")
            runs[contestant.name].append(one)
    return runs


def _shown(one: Run) -> dict[str, float | None]:
    return {"seconds": one.seconds, "tokens_per_second": one.tokens_per_second, "idle_share": one.idle_share}


def text(report: dict[str, Any]) -> str:
    """Return the report as a table."""
    lines = [" ".join(f"{key} {value}," for key, value in report["machine"].items()).rstrip(",")]
    lines.append(
        f"{report['model']}, {report['dtype']} on {report['device']}: {report['requests']} requests, "
        f"{report['input_tokens']:,} tokens in, {report['output_tokens']:,} out"
    )
    for mode, speed in report.get("modes", {}).items():
        lines.append(f"  tried: {mode}: {f'{speed:.1f} tok/s' if speed else 'fails'}")
    width = max(map(len, report["runs"]))
    for name, runs in report["runs"].items():
        speeds = [one["tokens_per_second"] for one in runs]
        line = f"{name:{width}}  {statistics.median(speeds):8.1f} tok/s  ({min(speeds):.1f} … {max(speeds):.1f})"
        idle = [one["idle_share"] for one in runs if one["idle_share"] is not None]
        if idle:
            line += f"  device idle {statistics.median(idle):.1%}  ({min(idle):.1%} … {max(idle):.1%})"
        lines.append(line)
    if "ratio" in report:
        ratio = report["ratio"]
        pairs = ", ".join(f"{one:.3f}" for one in ratio["pairs"])
        lines.append(f"{ratio['of']}: {ratio['median']:.3f}  ({pairs})")
    return "\n".join(lines)
