"""Whose turn is first: for a slot, for a prompt's tokens in a step, and for being spared when blocks run short.

A policy gives each request a rank when it is accepted, and it keeps that to its end, whatever happens to it. Requests
of equal rank go by their order of arrival. So there is one strict order of all requests that never changes, which is
what a heap needs, and what lets preemption end (`Planner.victim` says why).

    policy                    rank: the lowest goes first
    fcfs                      arrival
    priority                  arrival + level · seconds
    shortest-prefill-first    arrival + tokens / 1,000 · seconds
    round-robin               a round, in which each user has one request

The first three are points in time. A request that is late by so many seconds is overtaken by whoever arrives within
these seconds, and by nobody who comes later: nobody starves, and nothing has to be reordered while it waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protocol.messages import Submit

PolicyName = Literal["fcfs", "priority", "shortest-prefill-first", "round-robin"]

AGING: tuple[PolicyName, ...] = ("priority", "shortest-prefill-first")
"""Policies that waiting outweighs, by so many seconds."""

FEW_USERS = 1024
"""So many rounds that are over are not worth a clean-up."""


class Policy:
    """What a scheduler asks of it, and tells it. Most need to be told nothing, and do not go by priorities."""

    __slots__ = ()

    def rank(self, client: int, ask: Submit, now: float) -> float:
        """Return the place of a client's request that is accepted `now`, on the scheduler's clock in seconds."""
        raise NotImplementedError

    def refusal(self, ask: Submit) -> str:
        """Return why a request asks for what this policy does not do, or nothing."""
        if ask.priority:
            return f"priority: {ask.priority} only counts with --scheduling-policy priority"
        return ""

    def began(self, rank: float) -> None:
        """Note that a request of that rank has got a slot."""

    def left(self, client: int, ask: Submit, rank: float) -> None:
        """Note that a request of that rank has ended that never got a slot."""


@dataclass(frozen=True, slots=True)
class FirstCome(Policy):
    """First come, first served."""

    def rank(self, client: int, ask: Submit, now: float) -> float:
        """Return when it arrived."""
        return now


@dataclass(frozen=True, slots=True)
class PriorityFirst(Policy):
    """Lower priorities first; one level is outweighed by `seconds` of waiting."""

    seconds: float = 60.0

    def rank(self, client: int, ask: Submit, now: float) -> float:
        """Return when it arrived, moved by its level."""
        return now + ask.priority * self.seconds

    def refusal(self, ask: Submit) -> str:
        """Return nothing: any priority will do."""
        return ""


@dataclass(frozen=True, slots=True)
class ShortestPrefillFirst(Policy):
    """Short prompts first; 1,000 tokens are outweighed by `seconds` of waiting.

    What of a prompt is cached counts too: that changes while it waits, and its rank may not.
    """

    seconds: float = 10.0

    def rank(self, client: int, ask: Submit, now: float) -> float:
        """Return when it arrived, moved by what has to be prefilled."""
        return now + (len(ask.prompt) + len(ask.output)) / 1000 * self.seconds


class RoundRobin(Policy):
    """One request of each user in turn, however many of them each has; a user's own by arrival.

        round     5    6    7    8           the newest round of which one has begun is 5; who comes now and has
        Ann       a    b    c    d           nothing waiting joins it, and so stands before b
        Bob       e

    A user is who a request says, at the client that sent it.
    """

    __slots__ = ("_clean_up_at", "_next", "_round")

    def __init__(self) -> None:
        """Begin with the first round."""
        self._round = 0  # the newest of which a request has begun
        self._next: dict[tuple[int, str], int] = {}  # by user: the round that is its next one, unless that is over
        self._clean_up_at = FEW_USERS

    def rank(self, client: int, ask: Submit, now: float) -> float:
        """Return the round that is its user's next one."""
        user = client, ask.user
        turn = max(self._round, self._next.get(user, 0))
        self._next[user] = turn + 1
        if len(self._next) > self._clean_up_at:
            self._next = {user: turn for user, turn in self._next.items() if turn > self._round}
            self._clean_up_at = 2 * len(self._next) + FEW_USERS
        return turn

    def began(self, rank: float) -> None:
        """Go on to its round, if that is a newer one."""
        self._round = max(self._round, int(rank))

    def left(self, client: int, ask: Submit, rank: float) -> None:
        """Give its user the round back if it was the last one: of any other, those behind it keep theirs."""
        user = client, ask.user
        if (turn := self._next.get(user, 0)) > self._round and turn - 1 == rank:
            self._next[user] = turn - 1


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
        case "round-robin":
            return RoundRobin()
