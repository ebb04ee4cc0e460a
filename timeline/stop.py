"""Stop what `start` has started, and close its file."""

from __future__ import annotations

import argparse

from protocol.messages import StopTimeline
from timeline.ask import add_address, ask, told


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    add_address(parser)


def run(given: argparse.Namespace) -> int:
    """Stop, and say what there is. Raises `TraceError`."""
    print(told(ask(given.address, StopTimeline(1))))
    return 0
