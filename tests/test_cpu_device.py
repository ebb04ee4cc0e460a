"""The CPU as a device: who computes there, and with how many threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpu_worker.cpu_device import CPUDevice
from tests.tiny_models import save, tiny_model

THREADS_OF_A_WORKER = """
import os, sys
from pathlib import Path
from protocol.messages import Plan
from tests.core_loop import submit
from tests.real_loop import RealLoop, poisoned_engine

before = len(os.listdir("/proc/self/task"))
# Large enough that every buffer is filled by all threads that its maker has.
engine = poisoned_engine(Path(sys.argv[1]), threads=int(sys.argv[2]), kv_cache_blocks=20_000, max_num_seqs=512)
loop = RealLoop(engine, 2)
loop.submit(submit(1, list(range(5, 105)), 4, ignore_eos=True))
loop.drain()
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.slow
def test_only_the_computing_thread_has_others_to_help_it(tmp_path: Path) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path)

    for number in (1, 3):
        command = [sys.executable, "-c", THREADS_OF_A_WORKER, str(folder), str(number)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        streams, team = 3, number - 1
        assert int(ran.stdout) == streams + team, "a second team, idle or not, slows down the first"


def test_each_stream_has_its_own_number_of_threads() -> None:
    before = torch.get_num_threads()
    device = CPUDevice(threads=3)
    found: list[int] = []
    for stream in (device.copy_in, device.compute, device.copy_out):
        stream.run(lambda: found.append(torch.get_num_threads()))
        stream.record().block()
    assert found == [1, 3, 1]
    assert torch.get_num_threads() == before
    device.close()


def test_work_before_the_first_step_is_done_where_steps_are_and_gives_what_it_gives() -> None:
    device = CPUDevice(threads=2)
    assert device.prepare(torch.get_num_threads) == 2

    def fail() -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        device.prepare(fail)
    assert device.prepare(lambda: 5) == 5
    device.close()
