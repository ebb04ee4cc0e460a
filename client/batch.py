"""`python -m client batch IN OUT`: a file of requests to a running server, a file of its answers."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path

from client.batch_files import BatchInput, BatchOutput
from client.batch_lines import BatchFileError
from client.batch_run import BatchRun, BatchStoppedError
from client.batch_server import BatchServer
from protocol.progress_lines import ProgressLines

URL = "http://127.0.0.1:8000"

MOST_SECONDS = 1e6
"""That an answer may take: sockets count milliseconds, in 31 bits."""

DRAW_SECONDS = 0.2
"""How often what is redrawn is."""

MOST_AT_ONCE = 4096
"""A server answers no more at the same time."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m client batch",
        description="Ask a running server all that a file in OpenAI's batch format asks, and write a file of answers. "
        "Killed or stopped, the same command goes on where it was.",
        epilog="Exit code: 0 if every line was answered with status 200, 1 if not, 2 for a mistake of yours.",
        allow_abbrev=False,
    )
    parser.add_argument("input", type=Path, help="JSON lines with custom_id, method, url and body")
    parser.add_argument("output", type=Path, help="where answers are appended, in the order in which they come")
    parser.add_argument("--url", default=URL, help="where the server's HTTP is (%(default)s)")
    parser.add_argument("--api-key", metavar="KEY", help="what the server was given as --api-key")
    parser.add_argument(
        "--concurrency", type=int, default=128, metavar="N", help="requests under way at the same time (%(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=3600.0, metavar="SECONDS", help="how long one answer may take (%(default)g)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long a server may be busy or gone, and answer nothing, before this ends (%(default)g)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a batch; return the exit code: 0 if every line was answered well, 1 if not, 2 for a mistake, 130: Ctrl-C."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if not 1 <= given.concurrency <= MOST_AT_ONCE:
        parser.error(f"--concurrency must be from 1 to {MOST_AT_ONCE}, got {given.concurrency}")
    if not 0 < given.timeout <= MOST_SECONDS:
        parser.error(f"--timeout must be more than 0 and at most {MOST_SECONDS:.0f} seconds, got {given.timeout:g}")
    if not 0 <= given.patience < inf:
        parser.error(f"--patience is seconds, and has an end, got {given.patience:g}")
    try:
        server = BatchServer(given.url, given.api_key, given.timeout)
        questions = BatchInput(given.input)
        output = BatchOutput(given.output, questions.keys)
    except (BatchFileError, ValueError) as error:
        print(f"client: {error}", file=sys.stderr)
        return 2
    with output:
        return _run(questions, output, server, given)


def _run(questions: BatchInput, output: BatchOutput, server: BatchServer, given: argparse.Namespace) -> int:
    watch = _Watch(questions, output)
    run = BatchRun(questions, output, server, given.patience)
    try:
        left = watch.left
        if left:
            run.greet()
            watch.follow(run.start(min(given.concurrency, left)), run)
            run.check()
    except KeyboardInterrupt:
        watch.end("stopped; the same command goes on from here")
        return 128 + signal.SIGINT
    except (BatchStoppedError, OSError) as error:
        what = str(error)
        if isinstance(error, OSError):  # one that names no file came of writing to a descriptor
            what = f"{error.filename or given.output}: {error.strerror or error}"
        watch.end(f"{what}; the same command goes on from here")
        return 1
    finally:
        run.stop()
    watch.end(f"the answers are in {given.output}")
    return 1 if output.bad else 0


class _Watch:
    """How far it is, for who looks on."""

    def __init__(self, questions: BatchInput, output: BatchOutput) -> None:
        """Start the clock; `output` may have answers of an earlier run."""
        self._total = len(questions.keys)
        self._output = output
        self._lines = ProgressLines(sys.stderr)
        self._began = time.monotonic()
        self._rate = ""
        if self._done:
            self._lines.say("", f"client: {self._done:,} of {self._total:,} lines were answered before")

    @property
    def left(self) -> int:
        """How many lines have no answer."""
        return self._total - self._done

    @property
    def _done(self) -> int:
        return len(self._output.outcomes)

    def follow(self, threads: Sequence[threading.Thread], run: BatchRun) -> None:
        """Draw until the threads have ended."""
        for thread in threads:
            while thread.is_alive():
                thread.join(DRAW_SECONDS)
                self._rate = f", {run.tokens / (time.monotonic() - self._began):,.0f} tokens/s"
                self._lines.show("batch", self._done / self._total, self._so_far())

    def end(self, text: str) -> None:
        """Say how it ended."""
        self._lines.say("batch", f"client: {self._so_far()}: {text}")

    def _so_far(self) -> str:
        errors = f", {self._output.bad:,} with errors" if self._output.bad else ""
        return f"{self._done:,} of {self._total:,} lines answered{errors}{self._rate}"
