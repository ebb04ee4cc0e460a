"""The clock of a GPU that is made of two numbers: how far it is from the host's, and how long an answer takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from gpu_worker import cuda_clock
from gpu_worker.cuda_clock import FORGOTTEN_NANOSECONDS, PATIENCE_NANOSECONDS, TRIES, CUDAClock

SECOND = 1_000_000_000


@dataclass
class StubGPU:
    """Time passes by one microsecond each time the host looks at its clock."""

    host: int = 100 * SECOND
    ahead: int = 7_000_000
    looks: int = 4  # of the host until it sees that an event is done

    def nanoseconds(self) -> int:
        self.host += 1000
        return self.host


@dataclass
class StubEvent:
    gpu: StubGPU
    moment: int = 0
    asked: int = field(default=0)

    def record(self, _stream: object) -> None:
        self.moment = self.gpu.host + self.gpu.ahead + 500 * self.gpu.looks

    def query(self) -> bool:
        self.asked += 1
        return self.asked >= self.gpu.looks

    def elapsed_time(self, later: StubEvent) -> float:
        return (later.moment - self.moment) / 1e6


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> StubGPU:
    made = StubGPU()
    monkeypatch.setattr(cuda_clock, "nanoseconds", made.nanoseconds)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: object())
    monkeypatch.setattr(torch.cuda, "Event", lambda *, enable_timing: StubEvent(made))
    return made


def off(clock: CUDAClock, gpu: StubGPU) -> int:
    """Return by how many ns an event of this moment is dated wrongly."""
    event = StubEvent(gpu, gpu.host + gpu.ahead)
    when = clock.when(event)  # type: ignore[arg-type]
    assert when is not None
    return abs(when - gpu.host)


def test_an_event_is_dated_by_the_hosts_clock_within_the_error(gpu: StubGPU) -> None:
    clock = CUDAClock(torch.device("cpu"))
    clock.set()
    assert off(clock, gpu) <= clock.error <= 1000 * gpu.looks
    gpu.host += SECOND
    assert off(clock, gpu) <= clock.error


def test_before_a_comparison_nothing_is_dated_and_a_gpu_that_does_not_answer_holds_nobody_up(gpu: StubGPU) -> None:
    clock = CUDAClock(torch.device("cpu"))
    gpu.looks = 10**9
    began = gpu.host
    clock.set()
    assert gpu.host - began < 2 * TRIES * PATIENCE_NANOSECONDS
    assert clock.when(StubEvent(gpu)) is None  # type: ignore[arg-type]
    assert clock.error == 0


def test_the_last_anchor_stays_when_the_gpu_does_not_answer(gpu: StubGPU) -> None:
    clock = CUDAClock(torch.device("cpu"))
    clock.set()
    gpu.looks = 10**9
    clock.set()
    assert off(clock, gpu) <= clock.error


def test_the_fastest_comparison_counts(gpu: StubGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([9, 30, 3, *[50] * TRIES])
    record = StubEvent.record

    def next_one(event: StubEvent, stream: object) -> None:
        gpu.looks = event.gpu.looks = next(looks)
        record(event, stream)

    monkeypatch.setattr(StubEvent, "record", next_one)
    clock = CUDAClock(torch.device("cpu"))
    clock.set()
    assert clock.error <= 3000


def test_how_far_the_clocks_drifted_between_two_anchors_counts_as_error(gpu: StubGPU) -> None:
    clock = CUDAClock(torch.device("cpu"))
    clock.set()
    alone = clock.error
    gpu.host += SECOND
    gpu.ahead += 40_000
    clock.set()
    assert clock.error == pytest.approx(alone + 40_000, abs=2 * alone)
    assert off(clock, gpu) <= alone


def test_drift_while_nothing_was_dated_is_no_error(gpu: StubGPU) -> None:
    clock = CUDAClock(torch.device("cpu"))
    clock.set()
    alone = clock.error
    gpu.host += FORGOTTEN_NANOSECONDS + SECOND
    gpu.ahead += 40_000_000
    clock.set()
    assert clock.error == alone
