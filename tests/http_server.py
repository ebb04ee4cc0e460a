"""A frontend process that serves HTTP in front of a stub scheduler."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.stub_scheduler import StubScheduler
from tests.test_frontend_process import start

PATIENCE_SECONDS = 20.0


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_health(client: httpx.Client, status: int, seconds: float = PATIENCE_SECONDS) -> float:
    """Return after how many seconds /health first had a status; fails after so many."""
    began = time.monotonic()
    seen = None
    while time.monotonic() - began < seconds:
        try:
            answer = client.get("/health")
            seen = f"{answer.status_code} {answer.text}"
            if answer.status_code == status:
                return time.monotonic() - began
        except httpx.TransportError as error:
            seen = repr(error)
        time.sleep(0.02)
    raise AssertionError(f"/health never was {status}: {seen}")


class HttpServer:
    """The process and where to ask it; it must end with code 0 and without a traceback."""

    def __init__(self, folder: Path, model: Path, scheduler: str, *more: str) -> None:
        """Start it, and wait until it is well."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.address = f"ipc://{folder / 'frontend'}"
        self.process = start(self.address, scheduler, model, "--http", f"--port={self.port}", *more)
        self.errors = ""
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_SECONDS)
        wait_for_health(self.client, 200)

    def post(self, path: str, **body: object) -> httpx.Response:
        """Ask an endpoint."""
        return self.client.post(f"/v1/{path}", json=body)

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.client.close()
        self.process.terminate()
        try:
            _, self.errors = self.process.communicate(timeout=10)
        finally:
            self.process.kill()
        assert self.process.returncode == 0, self.errors
        assert "Traceback" not in self.errors, self.errors


def wait_until_idle(scheduler: StubScheduler, seconds: float) -> None:
    """Fail unless nothing runs at a scheduler within so many seconds."""
    deadline = time.monotonic() + seconds
    while scheduler.running:
        assert time.monotonic() < deadline, f"{scheduler.running} requests still run"
        time.sleep(0.01)
