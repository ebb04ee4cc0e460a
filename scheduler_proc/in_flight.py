"""The owner of one worker's credit: which plans it has that are not answered yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SentPlan:
    """What has to be known of a plan until its answer comes: whose rows these were."""

    step: int
    slots: NDArray[np.intp]  # of every row
    epochs: NDArray[np.int64]
    ends: NDArray[np.int32]  # up to which position each row computes
    sampled: NDArray[np.intp] | slice  # which rows yield a token, in plan order
    samples: int  # how many
    scored: tuple[tuple[int, int], ...] = ()  # which rows score how many tokens, in plan order

    @property
    def scores(self) -> int:
        """How many tokens are scored in all."""
        return sum(count for _, count in self.scored)


class InFlight:
    """At most `credit` plans, answered in the order in which they were sent."""

    def __init__(self, credit: int) -> None:
        """Begin with nothing in flight."""
        self.credit = credit
        self.last_step = 0
        self.last_settled = 0
        self._plans: deque[SentPlan] = deque()

    def __len__(self) -> int:
        """How many plans are unanswered."""
        return len(self._plans)

    @property
    def may_send(self) -> bool:
        """Whether another plan may be sent now."""
        return len(self._plans) < self.credit

    def take(self, plan: SentPlan) -> None:
        """Spend one credit on a plan that is about to be sent."""
        assert self.may_send
        assert plan.step == self.last_step + 1
        self.last_step = plan.step
        self._plans.append(plan)

    def oldest(self) -> SentPlan | None:
        """Return the plan whose answer comes next, or None."""
        return self._plans[0] if self._plans else None

    def give_back(self) -> SentPlan:
        """Return the oldest plan, which was answered, and get its credit back."""
        plan = self._plans.popleft()
        self.last_settled = plan.step
        return plan

    def check(self) -> None:
        """Assert what holds of credits between any two verbs."""
        assert len(self._plans) <= self.credit, "more plans unanswered than the credit"
        steps = [plan.step for plan in self._plans]
        assert steps == list(range(self.last_settled + 1, self.last_step + 1)), f"steps {steps} out of order"
