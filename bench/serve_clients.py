"""The processes that load a server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from bench.contestant import BenchmarkError
from bench.serve_client import Errand, clock
from bench.serve_course import Course

HEAD_START_SECONDS = 0.1
"""How long before the schedule's beginning clients are told when that is."""


class Done(NamedTuple):
    """What a client has to say: what became of its requests, and which share of a core it needed."""

    courses: list[Course]
    core_share: float


class ServeClients:
    """One process for each errand, from construction to `close`."""

    def __init__(self, errands: Sequence[Errand]) -> None:
        """Start them, and wait until each has warmed up; raises `BenchmarkError`."""
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.serve_client"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for _ in errands
        ]
        try:
            for process, errand in zip(self._processes, errands, strict=True):
                self._say(process, errand.to_json())
            self._answers()
        except BaseException:
            self.close()
            raise

    def run(self) -> list[Done]:
        """Have them do their errands, all by one clock."""
        begin = clock() + HEAD_START_SECONDS
        for process in self._processes:
            self._say(process, json.dumps({"begin": begin}))
        return [
            Done([Course(**each) for each in answer["courses"]], answer["cpu_seconds"] / answer["seconds"])
            for answer in self._answers()
        ]

    @staticmethod
    def _say(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise BenchmarkError(f"a client's process has ended, exit code {process.wait()}") from None

    def _answers(self) -> list[dict[str, Any]]:
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise BenchmarkError(f"a client's process has ended, exit code {process.wait()}")
            answer = json.loads(line)
            if "error" in answer:
                raise BenchmarkError(f"warming up: {answer['error']}")
            found.append(answer)
        return found

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
