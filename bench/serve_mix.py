"""Which requests a server is asked: prompts and lengths, each drawn from a seed and its number alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np

SHAREGPT = {"input": (161.31, 1.3), "output": (337.99, 1.0)}
"""Mean tokens and sigma of log-normal lengths. The means are those that the paper on vLLM gives of ShareGPT's chats
(Kwon et al. 2023); the sigmas are ours, for a long tail like theirs. It resembles that distribution and is not it."""

SHAREGPT_BOUNDS = (4, 1024)
"""What such lengths are cut to, which lowers their means a little."""

_COMMON = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city name president team minute idea kid body information back parent face
others level office door health person art war history party result change morning reason research girl guy moment
air teacher force education foot boy age policy music market sense nation plan college interest death experience
effect use class control field development role effort rate heart drug show leader light voice wife police mind
price report decision son view relationship town road arm difference value building action season society tax
director position player record paper space ground form event official matter center
"""

WORDS = tuple(_COMMON.split())
"""Words that most vocabularies have as one token each, behind a blank."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its prompt, as token ids or as a text, and how many tokens are wanted."""

    prompt: list[int] | str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Mix:
    """What all requests are drawn from.

    `kind` is "uniform", from the two ranges, both ends included; "sharegpt", log-normal; or "dataset": `rows` in turn,
    each (tokens or text of the prompt, output tokens). The first `prefix_length` tokens are one of `prefixes`
    beginnings; they come before a prompt's own. Token ids are drawn from `pool`; without one, prompts are texts of a
    word for each token.
    """

    kind: str
    seed: int
    input_lengths: tuple[int, int]
    output_lengths: tuple[int, int]
    prefix_length: int = 0
    prefixes: int = 1
    pool: tuple[int, ...] = ()
    rows: tuple[tuple[int | str, int], ...] = ()

    def ask(self, number: int) -> Ask:
        """Return request `number`, the same whoever asks."""
        draw = np.random.default_rng((self.seed, 0, number))
        prompt: int | str
        if self.kind == "dataset":
            prompt, output = self.rows[number % len(self.rows)]
        elif self.kind == "sharegpt":
            prompt, output = _log_normal(draw, *SHAREGPT["input"]), _log_normal(draw, *SHAREGPT["output"])
        else:
            prompt, output = (
                int(draw.integers(*bounds, endpoint=True)) for bounds in (self.input_lengths, self.output_lengths)
            )
        beginning = self._prefix(int(draw.integers(self.prefixes)))
        if isinstance(prompt, str):
            return Ask(" ".join([*_words(beginning), prompt]), output)
        chosen = beginning + draw.integers(self._choices, size=prompt).tolist()
        return Ask([self.pool[each] for each in chosen] if self.pool else " ".join(_words(chosen)), output)

    @property
    def _choices(self) -> int:
        return len(self.pool) or len(WORDS)

    def _prefix(self, number: int) -> list[int]:
        draw = np.random.default_rng((self.seed, 1, number))
        chosen: list[int] = draw.integers(self._choices, size=self.prefix_length).tolist()
        return chosen


def _words(chosen: list[int]) -> list[str]:
    return [WORDS[each % len(WORDS)] for each in chosen]


def _log_normal(draw: np.random.Generator, mean: float, sigma: float) -> int:
    """Return a length; a log-normal distribution's mean is exp(mu + sigma²/2)."""
    length = exp(draw.normal(log(mean) - sigma**2 / 2, sigma))
    return int(min(max(round(length), SHAREGPT_BOUNDS[0]), SHAREGPT_BOUNDS[1]))


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Return when so many requests are due, in seconds from the beginning, in order.

    Gaps between them are gamma-distributed with shape `burstiness` and mean 1 / `rate`: 1 is a Poisson process, less
    comes in bursts, inf is evenly spread. They are scaled so that the last is due at count / rate, as vLLM does it. An
    infinite rate has all of them due at once.
    """
    if rate == np.inf:
        return [0.0] * count
    if burstiness == np.inf:
        gaps = np.full(count, 1.0 / rate)
    else:
        gaps = np.random.default_rng((seed, 2)).gamma(burstiness, 1.0 / (rate * burstiness), count)
    at = np.cumsum(gaps)
    if at[-1] > 0:
        at *= count / rate / at[-1]
    return [float(each) for each in at]
