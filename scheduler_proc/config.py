"""What a scheduler process can be told."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from protocol.options import lifeline_option, option
from scheduler_proc.policy import AGING, Policy, policy_of
from timeline.options import collector_option, name_option

ONE_STEP_AHEAD = 2
"""Plans in flight: one computing, one queued behind it."""

MOST_AGING_SECONDS = 1e6
"""Eleven days: in practice the order of priorities alone."""


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
    scheduling_policy: Literal["fcfs", "priority", "shortest-prefill-first", "round-robin"] = option(
        "who is served first: who came first, who asks for the lowest priority number, who has the shortest prompt, or "
        "each user in turn",
        "fcfs",
    )
    aging_seconds: float | None = option(
        "seconds of waiting that outweigh one level of priority (default: 60), or with shortest-prefill-first 1,000 "
        "tokens of prompt (default: 10): nobody waits for ever",
        None,
        "SECONDS",
    )
    max_prefill_tokens: int | None = option(
        "prompt tokens computed in one step at most, beside --max-batch-tokens for all tokens (default: no limit of "
        "their own); with fewer, tokens of running requests come at shorter intervals, and first tokens later",
        None,
        "N",
    )
    max_waiting: int = option(
        "requests that may wait for others to end; those that come then are turned away, over HTTP with status 429, "
        "and may come back later; 0 is without limit",
        0,
        "N",
    )
    step_timeout: float = option("seconds after which a step is taken to hang, and /health says so", 30.0, "SECONDS")

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be meant."""
        most = self.max_plans_in_flight
        if most is not None and not 1 <= most <= 64:
            raise ValueError(f"--max-plans-in-flight must be from 1 to 64, got {most}")
        if self.lockstep and most not in (None, 1):
            raise ValueError(f"give --lockstep, which is --max-plans-in-flight 1, or --max-plans-in-flight {most}")
        if self.aging_seconds is not None and not 0 <= self.aging_seconds <= MOST_AGING_SECONDS:
            raise ValueError(f"--aging-seconds must be from 0 to {MOST_AGING_SECONDS:g}, got {self.aging_seconds}")
        if self.aging_seconds is not None and self.scheduling_policy not in AGING:
            raise ValueError(
                f"--aging-seconds is for --scheduling-policy {' and '.join(AGING)}, not for {self.scheduling_policy}"
            )
        if self.max_prefill_tokens is not None and self.max_prefill_tokens < 1:
            raise ValueError(f"--max-prefill-tokens must be at least 1, got {self.max_prefill_tokens}")
        if self.max_waiting < 0:
            raise ValueError(f"--max-waiting must not be negative, got {self.max_waiting}")
        if not 0 < self.step_timeout < inf:
            raise ValueError(f"--step-timeout must be more than 0 and finite, got {self.step_timeout}")

    @property
    def credit(self) -> int:
        """Plans that may be unanswered."""
        return 1 if self.lockstep else self.max_plans_in_flight or ONE_STEP_AHEAD

    @property
    def policy(self) -> Policy:
        """Whose turn is first."""
        return policy_of(self.scheduling_policy, self.aging_seconds)


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
