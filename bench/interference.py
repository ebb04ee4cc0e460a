"""What it costs to stream every token: the same requests offline, and streamed as text to clients.

Offline one client with token ids is attached to the scheduler. Streamed there is a frontend between, which makes text
of every token, and clients in processes of their own that each read a share of the requests. Steps are short here: host
work that is not hidden shows in tokens a second, and in the device's idle share. With --http tokens are streamed over
HTTP, an event each, and every request has a connection of its own.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench.bare import Bare
from bench.contest import Contestants, figures, take_turns
from bench.continuous_peer import modes_on
from bench.engine_options import check_counts
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
from checkpoint import check_tokenizer
from scheduler_proc.config import SchedulingConfig
from stepahead.progress import Progress

__all__ = ["add_options", "run", "text"]

STREAMED, OFFLINE = "stepahead, every token streamed", "stepahead, offline"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument("--clients", type=int, default=4, metavar="N", help="processes that read (%(default)s)")
    parser.add_argument("--frontends", type=int, default=1, metavar="N", help="processes that stream (%(default)s)")
    parser.add_argument("--http", action="store_true", help="stream over HTTP, not ZeroMQ")
    parser.add_argument(
        "--compare",
        choices=("transformers",),
        help="take turns with its continuous batching, alone and with a thread that encodes every token as JSON",
    )
    add_common_options(parser, model="qwen3-0.6b", requests=128, tokens=1024)


def run(given: argparse.Namespace, tell: Progress) -> dict[str, Any]:
    """Measure."""
    timelines = check(given)
    check_counts(given, "clients", "frontends")
    with ExitStack() as undo:
        model = undo.enter_context(shape_of(given.model))
        check_tokenizer(model)
        engine, workload = engine_for(given, model), equal_workload(given, model)
        others: Contestants = {}
        if given.compare:
            tell("transformers", f"loading {given.model}")
            peer = transformers_peer(given, model, engine)
            undo.callback(peer.close)
            mode = modes_on(given.device)[-1]
            others[f"transformers, {mode}, a thread encodes JSON"] = partial(peer.run, mode, encoding=True)
            others[f"transformers, {mode}, alone"] = partial(peer.run, mode)
        bare = Bare(engine, timelines, tell)
        undo.callback(bare.close)
        ours: Contestants = {
            STREAMED: partial(
                bare.stream,
                "streamed",
                SchedulingConfig(),
                clients=given.clients,
                frontends=given.frontends,
                http=given.http,
            ),
            OFFLINE: partial(bare.run, "offline", SchedulingConfig()),
        }
        runs = take_turns(ours | others, workload, given.runs, tell)
    streamed = {"clients": given.clients, "frontends": given.frontends, "over": "HTTP" if given.http else "ZeroMQ"}
    return described(given, workload) | streamed | figures(runs, pairs(list(runs)))


def pairs(names: list[str]) -> list[tuple[str, str]]:
    """Return who is compared with whom: streaming with its absence, on each side."""
    return list(zip(names[0::2], names[1::2], strict=True))
