"""Clients in processes of their own, which are told what to do in lines of JSON, and answer in such lines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from bench.contestant import BenchmarkError


class ClientProcesses:
    """So many processes of one module, from construction to `close`."""

    def __init__(self, module: str, count: int, *arguments: str) -> None:
        """Start them."""
        command = [sys.executable, "-m", module, *arguments]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
            for _ in range(count)
        ]

    def tell(self, lines: Sequence[str]) -> None:
        """Say a line to each; raises `BenchmarkError` if one of them has ended."""
        for process, line in zip(self._processes, lines, strict=True):
            assert process.stdin is not None
            try:
                process.stdin.write(line + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise _ended(process) from None

    def answers(self, to: str) -> list[dict[str, Any]]:
        """Wait for a line of each; raises `BenchmarkError` for an error, which is one `to` something, or an end."""
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise _ended(process)
            answer = json.loads(line)
            if "error" in answer:
                raise BenchmarkError(f"{to}: {answer['error']}")
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
                with suppress(BrokenPipeError):  # what one that had ended was never told is still in the pipe
                    pipe.close()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ended(process: subprocess.Popen[str]) -> BenchmarkError:
    return BenchmarkError(f"a client's process has ended, exit code {process.wait()}")
