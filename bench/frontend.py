"""What a streamed token costs a frontend: a scheduler that computes nothing, and clients that read every token.

Tokens come at a pace, one a step for each stream, so that a shared machine, too, shows what they cost: the seconds that
the frontends have computed, over the tokens. Streams that wait for their first token show what one takes of memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.contestant import BenchmarkError
from bench.engine_options import check_counts
from bench.frontends import Frontends, frontends
from bench.machine import machine
from bench.shapes import shape_of
from bench.streaming_clients import StreamingClients
from bench.token_source import TokenSource
from bench.workload import Workload, seed_number, uniform_workload
from checkpoint import check_tokenizer, describe
from client import Client, StepaheadError
from frontend.config import FrontendConfig
from protocol.endpoints import PrivateDirectory
from stepahead.family import Family
from stepahead.progress import Progress

REPORTED = ("model", "frontends", "clients", "streams", "tokens", "rate", "long_prompt")

PROMPT_TOKENS = 16
LONGEST = 2**22
"""Tokens in a context: no prompt is too long to be read."""

COLD_TOKENS = 8
"""Of each stream, in a run before those that are measured: words are met for the first time, code is warm."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument(
        "--model", default="qwen3-0.6b", metavar="MODEL", help="whose text it is: a shape, or a folder (%(default)s)"
    )
    parser.add_argument("--http", action="store_true", help="stream over HTTP, not ZeroMQ")
    parser.add_argument("--frontends", type=int, default=1, metavar="N", help="processes that stream (%(default)s)")
    parser.add_argument("--clients", type=int, default=2, metavar="N", help="processes that read (%(default)s)")
    parser.add_argument("--streams", type=int, default=256, metavar="N", help="all at once (%(default)s)")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="of each (%(default)s)")
    parser.add_argument("--rate", type=float, default=10_000.0, metavar="N", help="tokens a second (%(default)g)")
    parser.add_argument(
        "--long-prompt", type=int, metavar="N", help="while they stream, read a prompt of so many characters (none)"
    )
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="(%(default)s)")
    parser.add_argument("--seed", type=seed_number, default=0, metavar="N", help="of the prompts (%(default)s)")


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure."""
    check_counts(given, "frontends", "clients", "streams", "tokens", "runs")
    if given.long_prompt is not None:
        check_counts(given, "long_prompt")
    if not 0 < given.rate < float("inf"):
        raise BenchmarkError(f"--rate must be more than 0 and finite, not {given.rate:g}")
    with ExitStack() as undo:
        model = undo.enter_context(shape_of(given.model))
        check_tokenizer(model)
        runs = _runs(given, model, tell)
    return {
        "machine": machine(),
        "over": "HTTP" if given.http else "ZeroMQ",
        **{name: getattr(given, name) for name in REPORTED},
    } | runs


def _runs(given: argparse.Namespace, model: Path, tell: Progress) -> dict[str, Any]:
    vocab_size = describe(model).vocab_size
    lengths = (PROMPT_TOKENS,) * 2
    cold, warm = (
        uniform_workload(given.streams, lengths, (length,) * 2, vocab_size, given.seed)
        for length in (min(COLD_TOKENS, given.tokens), given.tokens)
    )
    directory, family = PrivateDirectory(), Family()
    try:
        scheduler, clients = directory.address("scheduler"), directory.address("clients")
        config = FrontendConfig(scheduler=(scheduler,), bind=clients, model=str(model))
        with (
            TokenSource(scheduler, given.rate, vocab_size, LONGEST) as source,
            frontends(family, given.frontends, config, directory, tell, http=given.http) as there,
        ):
            source.go()  # for the first words of each client
            with StreamingClients(there.where, given.clients) as readers:
                memory = _run(cold, source, there, readers, None)["bytes_per_idle_stream"]
                found = []
                for number in range(given.runs):
                    tell("streams", f"run {number + 1} of {given.runs}")
                    found.append(_run(warm, source, there, readers, given.long_prompt))
                return {"bytes_per_idle_stream": memory, "runs": found}
    finally:
        family.stop()
        directory.remove()


def _run(
    workload: Workload, source: TokenSource, there: Frontends, readers: StreamingClients, long_prompt: int | None
) -> dict[str, float]:
    source.hold()
    empty = there.memory_bytes
    readers.ask(workload)
    source.wait_for(len(workload.prompts))
    idle = there.memory_bytes
    before = there.cpu_seconds
    source.go()
    seconds = None if long_prompt is None else _read(there.address, long_prompt)
    streamed = readers.streamed(workload)
    tokens = workload.output_tokens
    spent = there.cpu_seconds - before
    return {
        "tokens_per_second": tokens / streamed.answered.seconds,
        "pieces_per_token": streamed.pieces / tokens,
        "cpu_microseconds_per_token": spent / tokens * 1e6,
        "tokens_per_core_second": tokens / spent,
        "longest_gap_seconds": streamed.longest_gap,
        "bytes_per_idle_stream": (idle - empty) / len(workload.prompts),
    } | ({} if seconds is None else {"long_prompt_seconds": seconds})


def _read(address: str, characters: int) -> float:
    """Return how long it takes to have a text of so many characters read; raises `BenchmarkError`."""
    prompt = "".join(f"{number} words, and " for number in range(characters // 14 + 1))[:characters]
    began = time.perf_counter()
    try:
        with Client(address) as client:
            client.generate(prompt, max_tokens=1)
    except StepaheadError as error:
        raise BenchmarkError(f"the long prompt: {error}") from None
    return time.perf_counter() - began


def text(report: dict[str, Any]) -> str:
    """Return the report as a table, a line a run."""
    about = " ".join(f"{key} {value}," for key, value in report["machine"].items()).rstrip(",")
    what = (
        f"{report['streams']} streams of {report['tokens']} tokens over {report['over']}, {report['rate']:,.0f} tok/s "
        f"asked for; frontends: {report['frontends']}, clients: {report['clients']}, {report['model']}"
    )
    lines = [about, what, "       tok/s  pieces a token  CPU µs a token  tok a core-second  longest gap, ms"]
    for one in report["runs"]:
        lines.append(
            f"{one['tokens_per_second']:12,.0f}{one['pieces_per_token']:16.3f}{one['cpu_microseconds_per_token']:16.1f}"
            f"{one['tokens_per_core_second']:19,.0f}{1e3 * one['longest_gap_seconds']:17.1f}"
        )
    middle = statistics.median(one["tokens_per_core_second"] for one in report["runs"])
    memory = report["bytes_per_idle_stream"]
    lines.append(f"{middle:,.0f} tokens a core-second, {memory / 1024:.1f} KiB a stream that waits")
    if report["long_prompt"] is not None:
        seconds = ", ".join(f"{one['long_prompt_seconds']:.1f}" for one in report["runs"])
        lines.append(f"a prompt of {report['long_prompt']:,} characters beside them took {seconds} s")
    return "\n".join(lines)
