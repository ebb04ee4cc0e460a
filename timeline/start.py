"""Start to record, while a server runs."""

from __future__ import annotations

import argparse

from protocol.messages import StartTimeline
from timeline.ask import add_address, ask
from timeline.config import wrong_name
from timeline.errors import TraceError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument("file", nargs="?", default="", help="name in the server's --timeline-dir, .json or .json.gz")
    add_address(parser)


def run(given: argparse.Namespace) -> int:
    """Start, and say where to. Raises `TraceError`."""
    problem = wrong_name(given.file) if given.file else ""
    if problem:
        raise TraceError(f"file: {problem}")
    print(f"recording into {ask(given.address, StartTimeline(1, given.file)).file}")
    return 0
