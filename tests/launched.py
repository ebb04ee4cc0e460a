"""launch.py with all its processes, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
LAUNCH = [sys.executable, "launch.py", "--no-http"]  # unless a later --http says otherwise
END_SECONDS = 5.0


class Launched:
    """A running launcher, its standard error line by line, and its children."""

    def __init__(self, *arguments: str, shell: bool = False) -> None:
        command = [*LAUNCH, *arguments]
        self.process = subprocess.Popen(
            ["sh", "-c", f"{' '.join(command)} & wait"] if shell else command,
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=shell,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def wait_for(self, text: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert self.process.poll() is None or text in self.said, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def children(self) -> dict[str, psutil.Process]:
        """The children by their module's name."""
        found = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            line = process.cmdline()
            if "-m" in line:
                found[line[line.index("-m") + 1]] = process
        return found

    def close(self) -> None:
        self._reader.join(5.0)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def end(self, seconds: float = END_SECONDS) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5.0)
        return code


@contextmanager
def launched(*arguments: str, shell: bool = False) -> Iterator[Launched]:
    run = Launched(*arguments, shell=shell)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()
        run.close()
