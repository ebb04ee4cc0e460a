"""One request, as the scheduler knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.logprobs import Logprobs, Scores, joined, joined_scores
from protocol.messages import Finish, Submit
from scheduler_proc.prefix_index import NOTHING_FOUND, Prefix

NEVER = -1.0
"""A point in time that has not come."""

Key = tuple[int, int]
"""(client, its counter): never used twice."""


@dataclass(slots=True, eq=False)
class Request:
    """A request from its acceptance to its end. While it runs, what grows by the step lives in its slot's columns."""

    client: int
    ask: Submit
    rank: float  # its place by the policy: lower ones first; a preempted request keeps its own
    order: int  # among those of equal rank, by arrival
    final_len: int  # prompt and output together never get longer
    arrived: float
    deadline: float  # inf for none
    output: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))  # up to the last leave of a slot
    sent: int = 0  # how many tokens of the output the client has been given
    slot: int = -1  # -1 while it waits
    prefix: Prefix = NOTHING_FOUND  # what was found of it in the cache when it was last looked up
    cached: int = 0  # tokens of its prompt that were not computed when it was admitted first
    resumed: bool = False  # it has lost a slot before its end
    strikes: int = 0  # steps that failed with it on board since it last got a token
    deaths: int = 0  # workers that died with it on board, not long after each other
    died_at: int = 0  # its length at the last of these
    logprobs: list[Logprobs] = field(default_factory=list)  # of each token that its client has not been given
    scored: int = 0  # tokens of its prompt, behind the first, whose scores have settled
    scores: list[Scores] = field(default_factory=list)  # those of them that its client has not been given
    finish: Finish = Finish.RUNNING
    first_planned: float = NEVER
    first_token: float = NEVER
    last_token: float = NEVER

    @property
    def key(self) -> Key:
        """Its name among all requests."""
        return self.client, self.ask.request

    @property
    def prompt_len(self) -> int:
        """Tokens of the original prompt, from which limits and positions count."""
        return len(self.ask.prompt)

    @property
    def waiting_len(self) -> int:
        """Tokens known while it waits: what has to be prefilled when it is admitted."""
        return len(self.ask.prompt) + len(self.output)

    @property
    def sparable_len(self) -> int:
        """So many tokens it need not compute if others have: not the last, nor one whose successor is to be scored."""
        whole = self.waiting_len - 1
        return whole if self.scored == self.to_score else min(whole, self.scored)

    @property
    def to_score(self) -> int:
        """How many tokens of its prompt are scored in all."""
        return 0 if self.ask.prompt_logprobs is None else self.prompt_len - 1

    @property
    def unsent(self) -> NDArray[np.uint32]:
        """Output, while it waits, that its client has not been given."""
        return self.output[self.sent :]

    def take_logprobs(self, count: int) -> Logprobs | None:
        """Return what is known of the next `count` tokens that its client is given; None if it wants nothing."""
        if self.ask.logprobs is None:
            return None
        taken, self.logprobs = self.logprobs[:count], self.logprobs[count:]
        return joined(taken)

    def take_scores(self) -> tuple[int, Scores] | None:
        """Return where in its prompt the next scored token stands, and all scores its client has not been given."""
        if not self.scores:
            return None
        taken, self.scores = joined_scores(self.scores), []
        return 1 + self.scored - len(taken), taken

    def ends_at(self, end_tokens: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the tokens that end it, u4: its own, and the model's `end_tokens` unless it ignores them."""
        own = self.ask.stop_token_ids
        return own if self.ask.ignore_eos else np.concatenate((end_tokens, own))

    def waiting_tokens(self) -> NDArray[np.uint32]:
        """Return prompt and output so far, u4[waiting_len]."""
        return np.concatenate((self.ask.prompt, self.output)) if len(self.output) else self.ask.prompt
