"""Frontends before a scheduler, for a benchmark: the processes, where clients find them, and what they have used."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.contestant import BenchmarkError
from frontend.config import FrontendConfig, ServeConfig, TextConfig
from protocol.endpoints import PrivateDirectory
from stepahead.family import INSIST_SECONDS, Child, Family, StartError
from stepahead.frontends import start_frontends
from stepahead.progress import Progress

START_SECONDS = 900.0
END_SECONDS = 5.0

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Frontends:
    """Some frontends as one. Clients find them at `where`, the `address` for ZeroMQ or a URL for HTTP."""

    address: str
    where: str
    children: list[Child]

    @property
    def cpu_seconds(self) -> float:
        """How long they have computed, all of their threads, to a hundredth of a second."""
        return sum(_cpu_seconds(child.process.pid) for child in self.children)

    @property
    def memory_bytes(self) -> int:
        """How much memory they have in use (their resident sets)."""
        return sum(_memory_bytes(child.process.pid) for child in self.children)


@contextlib.contextmanager
def frontends(
    family: Family, count: int, config: FrontendConfig, run: PrivateDirectory, tell: Progress, *, http: bool
) -> Iterator[Frontends]:
    """Yield so many frontends as `config` describes one, ready; raises `BenchmarkError`.

    Over `http` they have a port of their own, and ZeroMQ clients are left to themselves.
    """
    serve = ServeConfig(http=http, port=_free_port() if http else ServeConfig().port)
    before = len(family.children)
    try:
        try:
            start_frontends(family, count, config, TextConfig(), serve, run)
        except StartError as error:
            raise BenchmarkError(str(error)) from None
        wait_until_ready(family, tell)
        where = f"http://{serve.host}:{serve.port}" if http else config.bind
        yield Frontends(config.bind, where, family.children[before:])
    finally:
        with ExitStack() as ends:
            for child in family.children[before:]:
                ends.callback(end, family, child)


def wait_until_ready(family: Family, tell: Progress) -> None:
    """Wait until all that was started is ready; raises `BenchmarkError` with what is wrong."""
    deadline = time.monotonic() + START_SECONDS
    while not family.ready:
        gone = family.listen(max(0.0, deadline - time.monotonic()), tell)
        if gone is not None:
            raise BenchmarkError(f"{gone.name}: {gone.how_it_ended()}")
        if time.monotonic() > deadline:
            raise BenchmarkError(f"not ready within {START_SECONDS:g} s")


def end(family: Family, child: Child) -> None:
    """End one process; nothing is under way any more."""
    deadline = time.monotonic() + END_SECONDS
    while not child.ended(INSIST_SECONDS) and time.monotonic() < deadline:
        child.ask_to_end()  # a frontend that has drained waits to be asked again
    child.process.kill()
    child.process.wait()
    with contextlib.suppress(KeyError):  # it is gone by itself, and was heard to be
        family.selector.unregister(child.pipes.status)
    child.pipes.close()
    family.children.remove(child)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
