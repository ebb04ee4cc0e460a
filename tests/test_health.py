"""/health in front of real processes: it says within two seconds what has died or stopped, and when it is back."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.http_server import HttpServer, wait_for_health
from tests.test_frontend_process import ROOT
from tests.word_model import write_word_model

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DETECTED_SECONDS = 2.0


@contextmanager
def process(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of our processes; killed at the end, if it lives then."""
    started = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=ROOT)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def test_every_process_that_dies_or_stops_is_seen_and_seen_again(tmp_path: Path) -> None:
    model = write_word_model(tmp_path / "model", "Ġone")
    worker_at, scheduler_at = f"ipc://{tmp_path / 'worker'}", f"ipc://{tmp_path / 'scheduler'}"
    small = ["--max-num-seqs=2", "--max-model-len=64", "--kv-cache-blocks=16", "--threads=1", "--device=cpu"]
    worker = ("gpu_worker", f"--bind={worker_at}", f"--model={model}", "--load-format=dummy", *small)
    scheduler = ("scheduler_proc", f"--bind={scheduler_at}", f"--worker={worker_at}")
    with process(*worker) as first, process(*scheduler) as planner, HttpServer(tmp_path, model, scheduler_at) as server:

        def is_well(*, seconds: float = 20.0) -> None:
            wait_for_health(server.client, 200, seconds)
            assert server.client.get("/ready").status_code == 200
            asked = server.post("completions", prompt="a", max_tokens=3, ignore_eos=True)
            assert asked.json()["usage"]["completion_tokens"] == 3

        def is_not_well(reason: str) -> None:
            assert wait_for_health(server.client, 503) < DETECTED_SECONDS
            for path in ("/health", "/ready"):
                assert reason in server.client.get(path).json()["reason"]

        is_well()
        for stopped, name in ((first, "worker"), (planner, "scheduler")):
            stopped.send_signal(signal.SIGSTOP)
            is_not_well(f"the {name} at")
            stopped.send_signal(signal.SIGCONT)
            is_well(seconds=DETECTED_SECONDS)
        first.kill()
        is_not_well("the worker at")
        with process(*worker):
            is_well()
            planner.kill()
            is_not_well("the scheduler at")
            with process(*scheduler):
                is_well()
