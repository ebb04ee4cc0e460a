"""Stepahead as its users have it: launch.py with all its processes, asked by a client over a socket."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import zmq

from bench.contestant import BenchmarkError, Run
from bench.workload import Workload
from client import AsyncClient, StepaheadError
from protocol.codec import decode
from protocol.endpoints import PrivateDirectory
from protocol.messages import Ping, Pong
from protocol.sockets import connect_dealer, receive, send

START_SECONDS = 600.0
ANSWER_MILLISECONDS = 30_000


class Served:
    """A system of its own, from construction to `close`."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        """Start launch.py with `arguments` and wait until it serves; raises `BenchmarkError` with what it said."""
        self.name = name
        self._directory = PrivateDirectory()
        self.address = self._directory.address("clients")
        where = [
            f"--zmq={self.address}",
            f"--timeline-dir={self._directory.path}",
            f"--run-dir={self._directory.path}",
            "--no-http",
            "--no-enable-prefix-caching",  # the same prompts come again, and are to be computed again
        ]
        self._said = self._directory.path / "log"
        with self._said.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "launch", *where, *arguments], stderr=log)
        try:
            asyncio.run(self._wait())
        except BaseException:
            self.close()
            raise

    async def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                async with AsyncClient(self.address, connect_seconds=1.0) as client:
                    await client.generate([1], max_tokens=1)
                return
            except StepaheadError:
                await asyncio.sleep(0.1)
        raise BenchmarkError(f"{self.name} does not serve:\n{self._said.read_text(errors='replace')}")

    def run(self, workload: Workload) -> Run:
        """Ask for everything at once, and wait for the last answer."""
        busy = self._busy_seconds()
        began = time.perf_counter()
        asyncio.run(self._answers(workload))
        seconds = time.perf_counter() - began
        return Run(seconds, workload.output_tokens, self._busy_seconds() - busy)

    async def _answers(self, workload: Workload) -> None:
        async with AsyncClient(self.address) as client:
            asked = [
                client.generate(prompt, max_tokens=length, temperature=0.0, ignore_eos=True)
                for prompt, length in zip(workload.prompts, workload.output_lengths, strict=True)
            ]
            for answer, length in zip(await asyncio.gather(*asked), workload.output_lengths, strict=True):
                if answer.output_tokens != length:
                    raise BenchmarkError(f"{self.name}: {answer.output_tokens} tokens came, {length} were asked for")

    def _busy_seconds(self) -> float:
        """Return how long the devices have computed, as the workers say."""
        workers = list(Path(self._directory.path).glob("*/worker-*"))
        if not workers:  # a long TMPDIR: the system had to make its sockets elsewhere
            raise BenchmarkError(f"{self._directory.path}: no worker's socket is there; set TMPDIR to a shorter path")
        with zmq.Context() as context:
            return sum(_busy(context, f"ipc://{path}") for path in workers)

    def close(self) -> None:
        """End all its processes."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._said.unlink(missing_ok=True)
        self._directory.remove()


def _busy(context: zmq.Context[zmq.Socket[bytes]], address: str) -> float:
    with connect_dealer(context, address) as worker:
        send(worker, Ping())
        if not worker.poll(ANSWER_MILLISECONDS):
            raise BenchmarkError(f"{address}: the worker does not answer")
        frame = receive(worker)
        assert frame is not None
        pong = decode(frame, Pong)
        assert isinstance(pong, Pong)
        return pong.busy
