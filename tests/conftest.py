"""What holds for every test: no process is left behind, GPU tests need a GPU, hypothesis repeats itself exactly."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from tests.default_model import default_model_path
from tests.turns import Turns

__all__ = ["default_model_path"]  # a fixture that any test may ask for

settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile("ci")

_MARK = "STEPAHEAD_TEST"

if not os.path.exists("/dev/nvidiactl"):
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run without a GPU, too; Triton looks when it is imported


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # this is one of pytest-xdist's processes
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # each has a core; torch looks when it is imported
        assert config.cache is not None
        config.pluginmanager.register(_InTurn(Turns(config.cache.mkdir("turns"))))


class _InTurn:
    """Hooks of a process that runs some of the tests: those marked `alone` run while no other process runs one."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around the time limit: who waits for a turn loses none of it
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._turns.alone() if item.get_closest_marker("alone") else self._turns.beside_others():
            return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _cuda():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))


def _cuda() -> bool:
    import torch  # takes a second, which only the GPU tests should pay

    return torch.cuda.is_available()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder as `tmp_path`, whose path surely leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _no_process_is_left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test marked `processes` that ends before its processes have; kill what is left."""
    if request.node.get_closest_marker("processes") is None:
        yield
        return
    mark = uuid.uuid4().hex
    monkeypatch.setenv(_MARK, mark)
    before = set(psutil.Process().children(recursive=True))
    yield
    left = _started_under(mark) | set(psutil.Process().children(recursive=True)) - before
    _, alive = psutil.wait_procs(left, timeout=1)
    alive = [process for process in alive if not _is_zombie(process)]
    if alive:
        told = [_describe(process) for process in alive]
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=5)
        pytest.fail(f"processes were left behind: {told}")


def _started_under(mark: str) -> set[psutil.Process]:
    """Return the processes with our mark in their environment: grandchildren whose parent has died, too."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(_MARK) == mark:
                found.add(process)
    return found


def _is_zombie(process: psutil.Process) -> bool:
    """Whether it ended and only its exit status is left, because nobody has asked for it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())}"[:200]
    except psutil.Error:
        return str(process.pid)
