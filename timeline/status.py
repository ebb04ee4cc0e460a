"""Say whether a server records, and where."""

from __future__ import annotations

import argparse

from protocol.messages import AskTimeline
from timeline.ask import add_address, ask, told


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    add_address(parser)


def run(given: argparse.Namespace) -> int:
    """Ask, and say. Raises `TraceError`."""
    print(told(ask(given.address, AskTimeline(1))))
    return 0
