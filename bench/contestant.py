"""Those who are measured against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bench.workload import Workload


class BenchmarkError(Exception):
    """There is no figure; the text says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """One workload, done. `busy_seconds` are those in which the device computed, where that is known."""

    seconds: float
    output_tokens: int
    busy_seconds: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Return output tokens a second."""
        return self.output_tokens / self.seconds

    @property
    def idle_share(self) -> float | None:
        """Return the share of the time in which the device had nothing to compute."""
        return None if self.busy_seconds is None else 1.0 - self.busy_seconds / self.seconds


class Contestant(Protocol):
    """A system that is loaded and waits; it must not use the processor between runs."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def run(self, workload: Workload) -> Run:
        """Do all of a workload; raises `BenchmarkError` if an answer has not the length that it should have."""

    def close(self) -> None:
        """End it."""
