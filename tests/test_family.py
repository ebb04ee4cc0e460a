"""Children and their end: whatever they do, and however long a user lets them take, it comes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from frontend.config import ServeConfig
from launch import drain
from protocol.stop_signal import BROKEN, StopSignal
from stepahead.family import Family
from stepahead.progress import Progress
from stepahead.start import wait_until_ready

LONGER_THAN_THE_SYSTEM_KNOWS = 1e23

pytestmark = pytest.mark.processes


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    numbers = (signal.SIGTERM, BROKEN, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield StopSignal()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    yield family
    family.stop()


def test_a_start_may_take_longer_than_the_system_can_wait(family: Family, stop: StopSignal) -> None:
    family.start("child", "tests.share_child", [])
    assert wait_until_ready(family, stop, LONGER_THAN_THE_SYSTEM_KNOWS, Progress())


def test_a_frontend_that_hangs_is_not_waited_for(
    family: Family, stop: StopSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("stepahead.family.GRACE_SECONDS", 0.5)
    family.start("frontend", "tests.waiting_child", ["--deaf"])
    assert wait_until_ready(family, stop, 30.0, Progress())
    os.kill(os.getpid(), signal.SIGTERM)
    began = time.monotonic()
    drain(family, ServeConfig(drain_timeout=LONGER_THAN_THE_SYSTEM_KNOWS), stop, Progress())
    family.stop()
    assert time.monotonic() - began < 5.0


def test_a_child_that_was_stopped_hears_that_it_is_to_end(family: Family) -> None:
    family.start("child", "tests.waiting_child", [])
    while not family.ready:
        assert family.listen(30.0, Progress()) is None
    child = family.children[0]
    child.process.send_signal(signal.SIGSTOP)
    family.stop_in_order()
    assert child.process.returncode == 0
