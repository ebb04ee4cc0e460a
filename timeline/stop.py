"""Stop what `start` has started, and close its file."""

from __future__ import annotations

import argparse
import shlex

from protocol.messages import StopTimeline
from timeline.ask import add_address, amount, ask, with_problem


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    add_address(parser)


def run(given: argparse.Namespace) -> int:
    """Stop, and say what there is. Raises `TraceError`."""
    state = ask(given.address, StopTimeline(1))
    report = f"python -m timeline report {shlex.quote(state.file)}"
    print(with_problem(f"stopped: {state.file}: {amount(state)}; {report}", state))
    return 0
