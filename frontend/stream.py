"""One answer to a request of a text client, from its acceptance to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from frontend.detokenizer import Detokenizer
from frontend.stop_strings import StopStrings
from protocol.logprobs import NOTHING, UNSCORED, Logprobs, Scores, joined, joined_scores
from protocol.messages import TIMEOUT_MIN, Chunk, Finish, Generate, Submit

NO_TOKENS = np.zeros(0, "<u4")

_FIELDS = frozenset(field.name for field in fields(Generate))


class Stream:
    """The tokens of one answer, the text they made, and how much of both its client has been given.

        output   t0 t1 t2 t3 t4 t5 │ END        END is one of the model's end tokens or of the request's own: no text
                 └─ given ─┘└ new ┘
        text     "The capital of F" "ran" "ce"
                  └─── given ─────┘ └new┘ └ held back: it may still become a stop string, or half a character

    The output is kept whole until the end, so that another scheduler can go on after it, and new text of a client
    that is slow to take it is gathered here in one piece.
    """

    def __init__(
        self,
        peer: bytes,
        ask: Generate,
        submit: Submit,
        detokenizer: Detokenizer,
        stops: StopStrings,
        end_tokens: frozenset[int],
        deadline: float,
        index: int = 0,
        now: float = 0.0,
    ) -> None:
        """Begin; `submit` is what every submission of it has in common, `deadline` is inf for none.

        It is answer `index` of those that were asked for `now`.
        """
        self.peer = peer
        self.label = ask.request
        self.name = ""  # what its request is called in the log
        self.index = index
        self.submit = submit
        self.deadline = deadline
        self.arrived = now
        self.first = now  # when its first token came, if one has
        self.newest = now  # and its last one
        self.request = 0  # its id at the scheduler that has it now; a new one with every submission
        self.resubmitted = False  # that scheduler had it from the beginning
        self.output: list[int] = []
        self.cached_tokens = 0  # of the prompt, as the scheduler that began it says
        self.finish = Finish.RUNNING
        self.error = ""
        self.in_pieces = ask.stream
        self._one_by_one = bool(ask.stop)
        self._min_tokens = ask.min_tokens  # the text of the first so many tokens ends at no stop string
        self._include_stop = ask.include_stop
        self._detokenizer = detokenizer
        self._stops = stops
        self._end_tokens = end_tokens
        self._end_token: int | None = None  # came last: the end, unless more tokens follow
        self._text: list[str] = []
        self._logprobs: list[Logprobs] | None = None if ask.logprobs is None else []  # of what is not given yet
        self._given = 0
        self._silent = ask.max_tokens == 0  # the one token that a scheduler samples at least is nobody's
        self.scored = 0  # of how many tokens of the prompt, behind its first, it is known how likely they are
        self._scores: list[Scores] = []
        self._prompt_given = submit.prompt_logprobs is None

    @property
    def lacks_scores(self) -> bool:
        """Whether not all that is wanted to be said of the prompt has come."""
        return self.submit.prompt_logprobs is not None and self.scored < len(self.submit.prompt) - 1

    @property
    def outstanding(self) -> int:
        """How many tokens a scheduler may still have to work on for it."""
        return len(self.submit.prompt) + self.submit.max_tokens - len(self.output)

    @property
    def at_fault(self) -> str:
        """Which field of `Generate` a scheduler has refused, if it says so as we do: by its name and a colon."""
        name = self.error.partition(":")[0]
        return name if self.finish is Finish.REFUSED and name in _FIELDS else ""

    def submission(self, request: int, now: float) -> Submit:
        """Return the message that starts it, or makes it go on after what has come so far, under a new id."""
        self.resubmitted, self.request = self.request > 0, request
        output = np.array(self.output, "<u4")
        # 0 would mean no limit, and what is past its deadline is ended by the caller.
        timeout = max(self.deadline - now, TIMEOUT_MIN) if self.deadline < np.inf else 0.0
        again = self.resubmitted
        return replace(
            self.submit, request=request, output=output, timeout=timeout, again=again, scores_told=self.scored
        )

    def push(self, tokens: Sequence[int]) -> None:
        """Take the next tokens into `output`, those behind the end of a stop string excepted.

        With a stop string, `finish` is STOP afterwards; where none are wanted, it is LENGTH.
        """
        if self._silent:
            if tokens:
                self.finish = Finish.LENGTH
            return
        if not self._one_by_one:
            self.output.extend(tokens)
            self._read(tokens)
            return
        # How tokens came in pieces must not show in the counts, so the end of a stop string is found to the token.
        for token in tokens:
            self.output.append(token)
            if self._read((token,)):
                self.finish = Finish.STOP
                return

    def push_logprobs(self, logprobs: Logprobs) -> None:
        """Take what is known of the tokens that `push` has just taken."""
        if self._logprobs is not None:
            self._logprobs.append(logprobs)

    def push_scores(self, scores: Scores) -> None:
        """Take what is said of the next tokens of the prompt."""
        self._scores.append(scores)
        self.scored += len(scores)

    def end(self, finish: Finish, error: str = "") -> None:
        """End it: what was held back becomes text, except for an end token."""
        if self.finish is not Finish.RUNNING:
            return
        self.finish, self.error = finish, error
        tail = ""
        if self._end_token is not None and (finish is not Finish.STOP or self._include_stop):
            tail = self._detokenizer.push((self._end_token,))
        safe, stopped = self._watched(tail + self._detokenizer.finish())
        self._text += (safe, self._stops.finish())
        if stopped and finish is Finish.LENGTH:  # other ends were not the model's own, and stay what they are
            self.finish = Finish.STOP

    def fail(self, error: str) -> None:
        """End it after an exception in `push` or `end`: what was held back is lost."""
        self.finish, self.error = Finish.ERROR, error

    def chunk(self) -> Chunk | None:
        """Return what its client has not been given yet, if that may be sent now. `given` says that it was."""
        ended = self.finish is not Finish.RUNNING
        if not ended and (not self.in_pieces or self._given == len(self.output)):
            return None
        logprobs = None if self._logprobs is None else self._known_logprobs(self._logprobs)
        tells_prompt = not (self._prompt_given or self.lacks_scores)
        scores = joined_scores([UNSCORED, *self._scores]) if tells_prompt else None
        return Chunk(
            request=self.label,
            text="".join(self._text),
            token_ids=np.array(self.output[self._given :], "<u4"),
            finish=self.finish,
            error=self.error,
            prompt_tokens=len(self.submit.prompt),
            output_tokens=len(self.output),
            at_fault=self.at_fault,
            cached_tokens=self.cached_tokens,
            listed=None if logprobs is None else logprobs.count,
            listed_token=None if logprobs is None else logprobs.token,
            logprob=None if logprobs is None else logprobs.logprob,
            index=self.index,
            prompt_token_ids=None if scores is None else self.submit.prompt,
            scored=None if scores is None else scores.logprobs.count,
            scored_token=None if scores is None else scores.logprobs.token,
            scored_logprob=None if scores is None else scores.logprobs.logprob,
            scored_rank=None if scores is None else scores.rank,
        )

    def given(self) -> None:
        """Note that the client has been given the chunk."""
        self._text.clear()
        self._given = len(self.output)
        if self._logprobs is not None:
            self._logprobs.clear()
        self._prompt_given = True
        self._scores.clear()

    def _known_logprobs(self, parts: list[Logprobs]) -> Logprobs:
        """Return what is known of each token that is not given yet; of those whose scheduler said nothing, nothing."""
        known = joined(parts)
        missing = len(self.output) - self._given - len(known)
        return joined([known, *[NOTHING] * missing])

    def _read(self, tokens: Sequence[int]) -> bool:
        """Turn tokens into text; return whether a stop string ended it."""
        if self._end_token is not None:
            tokens = (self._end_token, *tokens)
            self._end_token = None
        if tokens and tokens[-1] in self._end_tokens:
            self._end_token = tokens[-1]
            tokens = tokens[:-1]
        safe, stopped = self._watched(self._detokenizer.push(tokens))
        if safe:
            self._text.append(safe)
        return stopped

    def _watched(self, text: str) -> tuple[str, bool]:
        """Return what of the next text is safe, and whether a stop string ended it."""
        return (text, False) if len(self.output) <= self._min_tokens else self._stops.push(text)
