"""Whose turn is first: for a slot, for a prompt's tokens in a step, and for being spared when blocks run short.

A policy gives each request a rank when it is accepted, and it keeps that to its end, whatever happens to it. Requests
of equal rank go by their order of arrival. So there is one strict order of all requests that never changes, which is
what a heap needs, and what lets preemption end (`Planner.victim` says why).

Ranks are points in time. One that is late by so many seconds is overtaken by whoever arrives within these seconds, and
by nobody who comes later: nobody starves, and nothing has to be reordered while it waits.

    rank     fcfs                       arrival
             priority                   arrival + level · seconds           lower levels first
             shortest-prefill-first     arrival + tokens / 1,000 · seconds
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from protocol.messages import Submit

PolicyName = Literal["fcfs", "priority", "shortest-prefill-first"]


class Policy(Protocol):
    """What a scheduler asks of it."""

    def rank(self, ask: Submit, now: float) -> float:
        """Return the place of a request that is accepted `now`, in seconds on the scheduler's clock."""

    def refusal(self, ask: Submit) -> str:
        """Return why a request asks for what this policy does not do, or nothing."""


@dataclass(frozen=True, slots=True)
class FirstCome:
    """First come, first served. A priority is refused rather than passed over."""

    def rank(self, ask: Submit, now: float) -> float:
        """Return when it arrived."""
        return now

    def refusal(self, ask: Submit) -> str:
        """Return what is wrong with a priority."""
        return _no_priority(ask)


@dataclass(frozen=True, slots=True)
class PriorityFirst:
    """Lower priorities first; one level is outweighed by `seconds` of waiting."""

    seconds: float = 60.0

    def rank(self, ask: Submit, now: float) -> float:
        """Return when it arrived, moved by its level."""
        return now + ask.priority * self.seconds

    def refusal(self, ask: Submit) -> str:
        """Return nothing: any priority will do."""
        return ""


@dataclass(frozen=True, slots=True)
class ShortestPrefillFirst:
    """Short prompts first; 1,000 tokens are outweighed by `seconds` of waiting.

    What of a prompt is cached counts too: that changes while it waits, and its rank may not.
    """

    seconds: float = 10.0

    def rank(self, ask: Submit, now: float) -> float:
        """Return when it arrived, moved by what has to be prefilled."""
        return now + (len(ask.prompt) + len(ask.output)) / 1000 * self.seconds

    def refusal(self, ask: Submit) -> str:
        """Return what is wrong with a priority."""
        return _no_priority(ask)


FIRST_COME = FirstCome()


def policy_of(name: PolicyName, aging_seconds: float | None) -> Policy:
    """Return the policy of that name; `aging_seconds` is what outweighs one level, or 1,000 tokens, None as usual."""
    match name:
        case "fcfs":
            return FIRST_COME
        case "priority":
            return PriorityFirst() if aging_seconds is None else PriorityFirst(aging_seconds)
        case "shortest-prefill-first":
            return ShortestPrefillFirst() if aging_seconds is None else ShortestPrefillFirst(aging_seconds)


def _no_priority(ask: Submit) -> str:
    return f"priority is {ask.priority}, which only counts with --scheduling-policy priority" if ask.priority else ""
