"""`python -m bench NAME`: run a benchmark."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Iterator

from bench import (
    arrivals,
    decode,
    frontend,
    headline,
    interference,
    prefill,
    recording,
    scheduler,
    serve,
    simulate,
    throughput,
)
from bench.contestant import BenchmarkError
from checkpoint import CheckpointError
from protocol.errors import ProtocolError
from stepahead.progress import Progress

BENCHMARKS = {
    "scheduler": scheduler,
    "simulate": simulate,
    "throughput": throughput,
    "recording": recording,
    "headline": headline,
    "decode": decode,
    "prefill": prefill,
    "interference": interference,
    "frontend": frontend,
    "arrivals": arrivals,
    "serve": serve,
}


def main() -> int:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in BENCHMARKS.items():
        one = names.add_parser(name, help=(module.__doc__ or "").splitlines()[0], description=module.__doc__)
        one.add_argument("--json", action="store_true", help="print JSON")
        module.add_options(one)
    given = parser.parse_args()
    try:
        with _signals_end_it():
            report = BENCHMARKS[given.name].run(given, Progress())
    except (BenchmarkError, CheckpointError, ProtocolError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=2) if given.json else BENCHMARKS[given.name].text(report))
    return 0


@contextlib.contextmanager
def _signals_end_it() -> Iterator[None]:
    """Have SIGTERM and SIGINT end what is done here by `SystemExit`: what was started is ended on the way out."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
