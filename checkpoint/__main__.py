"""`python -m checkpoint`: fetch the default model, once, and print where it is."""

from __future__ import annotations

import argparse
import sys

from checkpoint.default_model import NAME, default_model_is_there, fetch_default_model
from checkpoint.errors import CheckpointError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m checkpoint", description=__doc__)
    parser.add_argument("action", nargs="?", choices=["fetch"], default="fetch", help="fetch is all there is to do")
    parser.parse_args(arguments)
    if not default_model_is_there():
        print(f"fetching {NAME} (93 MB) ...", file=sys.stderr, flush=True)
    try:
        print(fetch_default_model())
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
