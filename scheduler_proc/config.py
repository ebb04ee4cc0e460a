"""What a scheduler process can be told."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from protocol.options import lifeline_option, option
from timeline.options import collector_option, name_option

ONE_STEP_AHEAD = 2
"""Plans in flight: one computing, one queued behind it."""


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """How to schedule."""

    max_plans_in_flight: int | None = option(
        "plans that a worker may have unanswered (default: 2, which is one computing and one queued behind it)",
        None,
        "N",
    )
    lockstep: bool = option("one plan at a time, so that nothing overlaps: --max-plans-in-flight 1", False)
    enable_prefix_caching: bool = option(
        "compute no KV that a request with the same first tokens has left behind (the default)", True
    )
    step_timeout: float = option("seconds after which a step is taken to hang, and /health says so", 30.0, "SECONDS")

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be meant."""
        most = self.max_plans_in_flight
        if most is not None and not 1 <= most <= 64:
            raise ValueError(f"--max-plans-in-flight must be from 1 to 64, got {most}")
        if self.lockstep and most not in (None, 1):
            raise ValueError(f"give --lockstep, which is --max-plans-in-flight 1, or --max-plans-in-flight {most}")
        if not 0 < self.step_timeout < inf:
            raise ValueError(f"--step-timeout must be more than 0 and finite, got {self.step_timeout}")

    @property
    def credit(self) -> int:
        """Plans that may be unanswered."""
        return 1 if self.lockstep else self.max_plans_in_flight or ONE_STEP_AHEAD


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Who a scheduler process talks to."""

    bind: str = option("address for clients: tcp://127.0.0.1:PORT or ipc:///PATH", metavar="ADDRESS")
    worker: tuple[str, ...] = option("address of a GPU worker; give it once for each", metavar="ADDRESS")
    start_timeout: float = option("seconds to wait for the first worker to be ready; 0 is without end", 0.0, "SECONDS")
    timeline: str | None = collector_option()
    name: str = name_option("scheduler")
    lifeline: str | None = lifeline_option()

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be meant."""
        if not 0 <= self.start_timeout < inf:
            raise ValueError(f"--start-timeout must be finite and not negative, got {self.start_timeout}")
