"""`python -m timeline NAME`: what can be done with a timeline."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from timeline import collect, comparison, draw, report, start, status, stop
from timeline.errors import TraceError

SUBCOMMANDS = {
    "report": report,
    "draw": draw,
    "compare": comparison,
    "start": start,
    "stop": stop,
    "status": status,
}
COLLECT = "collect"
"""The one that is a process of the system, and takes its options as the others do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the command line names; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m timeline", description=__doc__, allow_abbrev=False)
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == [COLLECT]:
        return collect.main(arguments[1:])
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in SUBCOMMANDS.items():
        about = module.__doc__ or ""
        one = names.add_parser(name, help=about.splitlines()[0], description=about, allow_abbrev=False)
        module.add_options(one)
    names.add_parser(COLLECT, help=(collect.__doc__ or "").splitlines()[0])
    given = parser.parse_args(arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal has "µ" and "×"
    try:
        status: int = SUBCOMMANDS[given.name].run(given)
        sys.stdout.flush()
    except TraceError as error:
        print(f"timeline: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
