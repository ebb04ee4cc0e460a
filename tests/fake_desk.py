"""A timeline desk for tests, with a collector behind it that keeps its books like a real one, and what it was asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from frontend.timeline_desk import Question, TimelineUnavailableError
from protocol.messages import StartTimeline, StopTimeline, TimelineState, View

BIN_NS = 5_000_000
BINS = 1200
LATE_NS = 500_000_000
RECORDED = bytes(range(256)) * 1000
"""What stands in each of its files."""


class FakeDesk:
    """Has `view` when somebody watches. Without a `collector`, every question fails. Recordings go into `folder`."""

    def __init__(
        self, *, collector: bool = True, moving: Callable[[int], View] | None = None, folder: Path | None = None
    ) -> None:
        self.collector = collector
        self.asked: list[Question] = []
        self.watched = 0
        self.problem = ""
        self._folder = folder
        self._moving = moving
        self._recording = False
        self._file = ""
        self._started = 0.0

    @property
    def view(self) -> View | None:
        if self._moving is None or not self.watched or not self.collector:
            return None
        return self._moving(time.monotonic_ns())

    def watch(self) -> None:
        self.watched += 1

    async def ask(self, question: Question) -> TimelineState:
        self.asked.append(question)
        if not self.collector:
            raise TimelineUnavailableError("no timeline collector answers")
        refusal = ""
        if isinstance(question, StartTimeline):
            if self._recording:
                refusal = f"{self._file} is being recorded already"
            else:
                self._recording, self._started = True, time.monotonic()
                self._file = question.file or "timeline-20261130-120000.json.gz"
                if self._folder is not None:
                    (self._folder / self._file).write_bytes(RECORDED)
                    self._file = str(self._folder / self._file)
        elif isinstance(question, StopTimeline):
            refusal = "" if self._recording else "nothing is being recorded"
            self._recording = False
        seconds = time.monotonic() - self._started if self._file else 0.0
        spans = int(12_000 * seconds)
        return TimelineState(
            question.request, self._recording, self._file, seconds, spans, 31 * spans, refusal, self.problem
        )


def even_view(
    now: int, device: int, work: int, both: int, *, every: int = 1, known: int = BINS, devices: int = 1
) -> View:
    """Return a view with the same in all bins, but for the CPUs' `work` (0 to 255), which is in one of `every` bins."""
    worked = np.where(np.arange(BINS) % every == 0, work, 0).astype("<u1")
    alike = [np.full(BINS, share, "<u1") for share in (device, both)]
    start = now - LATE_NS - now % BIN_NS - BINS * BIN_NS
    return View(start, BIN_NS, known, devices, alike[0], worked, worked, alike[1], 0.0, 0.0, 0.0, 0, 0, 0, 12_288)


def busy_view(now: int) -> View:
    """Return what a busy server would show at `now`: the device nearly always at work, with a gap every 3 seconds."""
    end = now - LATE_NS - now % BIN_NS
    start = end - BINS * BIN_NS
    seconds = (start + BIN_NS * np.arange(BINS)) / 1e9
    gap = (seconds % 3) < 0.1
    quiet = (seconds % 20) < 1.5
    device = np.where(gap | quiet, 0, 250).astype("<u1")
    scheduler = np.where(quiet, 0, 60 + 40 * np.sin(seconds * 2)).astype("<u1")
    worker = np.where(quiet, 0, np.where(gap, 255, 90 + 60 * np.sin(seconds * 0.7))).astype("<u1")
    both = np.minimum(device, np.maximum(scheduler, worker) + 60).astype("<u1")
    both[device == 0] = 0
    return View(start, BIN_NS, BINS, 1, device, scheduler, worker, both, 0.994, 0.0081, 3871.4, 32, 5, 8211, 12_288)
