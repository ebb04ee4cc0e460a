"""What a user asked for, checked and made ready for a scheduler."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpoint.sampling import SamplingDefaults
from frontend.detokenizer import Detokenizer
from frontend.model_text import ModelText
from frontend.reading import read
from frontend.seeds import sample_seed
from frontend.stop_strings import MOST_CHARACTERS, StopStrings
from frontend.stream import NO_TOKENS, Stream
from frontend.text_error import TOO_LONG, TextError, require_unicode, shown
from protocol.fields import UINT64_MAX
from protocol.logprobs import MOST_SCORES
from protocol.messages import (
    MOST_BAD_TOKENS,
    MOST_BAD_WORD_TOKENS,
    MOST_BAD_WORDS,
    MOST_STOP_TOKENS,
    MOST_TOKEN_IDS,
    Attached,
    Generate,
    SpanKind,
    Submit,
)
from timeline.recorder import About, Recorder, nanoseconds

PLAIN = SamplingDefaults()
"""What is sampled with where neither the request nor the model's makers say anything."""


class Intake:
    """Makes a `Stream` for each answer to a `Generate`, or says in the user's terms why that can't be."""

    def __init__(
        self,
        text: ModelText,
        defaults: SamplingDefaults = PLAIN,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(64),
        recorder: Recorder | None = None,
    ) -> None:
        """Read and write text as the model does; `draw_seed` gives a seed in [0, 2**64) to requests without one.

        `recorder` is told how long prompts take.
        """
        self._recorder = recorder or Recorder(capacity=1)
        self._text = text
        self._defaults = defaults
        self._draw_seed = draw_seed

    @property
    def text(self) -> ModelText:
        """How the model's text is read and written."""
        return self._text

    def characters(self, ask: Generate) -> int:
        """Return about how long the text is that has to be read for a request; nothing if it brings token ids."""
        texts = [message.get("content") for message in ask.messages or ()] if ask.prompt is None else [ask.prompt]
        return sum(map(_characters, texts))

    def prompt(self, ask: Generate, served: Attached) -> NDArray[np.uint32]:
        """Return the token ids of a request's prompt, on any thread; raises `TextError`."""
        if ask.token_ids is not None:
            return ask.token_ids
        if ask.messages is not None:
            text, add_special = self._text.chat.render(ask.messages), False
        else:
            assert ask.prompt is not None  # the message was checked: exactly one of the three is there
            text, add_special = ask.prompt, bool(ask.prompt)  # BOS alone is no prompt
        ids = read(self._text, text, served.max_model_len, add_special=add_special, at_fault=_given(ask))
        return np.array(ids, "<u4")

    def accept(
        self, peer: bytes, ask: Generate, served: Attached, now: float, prompt: NDArray[np.uint32] | None = None
    ) -> list[Stream]:
        """Return the streams of a request of `peer`, to be served as `served` describes; raises `TextError`.

        Its `prompt` is read here unless it is given.
        """
        stop_token_ids = NO_TOKENS if ask.stop_token_ids is None else ask.stop_token_ids
        if len(stop_token_ids) > MOST_STOP_TOKENS:
            raise TextError(
                f"{len(stop_token_ids)} stop_token_ids, at most {MOST_STOP_TOKENS} are allowed",
                at_fault="stop_token_ids",
            )
        _check_ids("stop_token_ids", stop_token_ids, served.vocab_size, at_fault="stop_token_ids")
        _check_list("logit_bias", ask.bias_token_ids, served.vocab_size, at_fault="bias_token_ids")
        _check_list("allowed_token_ids", ask.allowed_token_ids, served.vocab_size, at_fault="allowed_token_ids")
        banned, words = self._banned(ask.bad_words)
        given = _given(ask)
        if prompt is None:
            began = nanoseconds()
            prompt = self.prompt(ask, served)
            self._recorder.add(SpanKind.TOKENIZE, began, about=About(rows=1, tokens=len(prompt)))
        if not len(prompt):
            raise TextError("the prompt is empty", at_fault=given)
        if len(prompt) >= served.max_model_len:
            raise TextError(
                f"the prompt has {len(prompt)} tokens: a context of {served.max_model_len} leaves no room for an "
                "answer",
                at_fault=given,
                code=TOO_LONG,
            )
        _check_ids("the prompt", prompt, served.vocab_size, at_fault=given)
        stops = StopStrings(ask.stop, include_stop=ask.include_stop)
        room = served.max_model_len - len(prompt)
        defaults = self._defaults
        max_tokens = room if ask.max_tokens is None else min(ask.max_tokens, room)
        if ask.min_tokens > max_tokens:
            raise TextError(
                f"min_tokens: must be at most {max_tokens}, as many as there may be, got {ask.min_tokens}",
                at_fault="min_tokens",
            )
        if ask.prompt_logprobs is not None and (scores := len(prompt) * (1 + ask.prompt_logprobs)) > MOST_SCORES:
            raise TextError(
                f"the prompt has {len(prompt)} tokens: {ask.prompt_logprobs} log probabilities beside that of each are "
                f"{scores} in all, at most {MOST_SCORES} are told",
                at_fault=given,
            )
        submit = Submit(
            request=0,
            prompt=prompt,
            output=NO_TOKENS,
            max_tokens=max(1, max_tokens),
            temperature=defaults.temperature if ask.temperature is None else ask.temperature,
            top_k=defaults.top_k if ask.top_k is None else ask.top_k,
            top_p=defaults.top_p if ask.top_p is None else ask.top_p,
            min_p=defaults.min_p if ask.min_p is None else ask.min_p,
            seed=self._draw_seed() if ask.seed is None else ask.seed & UINT64_MAX,  # two's complement
            ignore_eos=ask.ignore_eos,
            stop_token_ids=stop_token_ids,
            timeout=0.0,
            repetition_penalty=(
                defaults.repetition_penalty if ask.repetition_penalty is None else ask.repetition_penalty
            ),
            presence_penalty=ask.presence_penalty,
            frequency_penalty=ask.frequency_penalty,
            min_tokens=ask.min_tokens,
            bias_token_ids=ask.bias_token_ids,
            bias=ask.bias,
            allowed_token_ids=ask.allowed_token_ids,
            banned_token_ids=banned,
            bad_word_tokens=np.concatenate(words) if words else None,
            bad_word_lengths=np.array([len(word) for word in words], "<u1") if words else None,
            logprobs=ask.logprobs,
            cache_salt=ask.cache_salt,
            priority=ask.priority,
            user=ask.user,
        )
        ends = frozenset(stop_token_ids.tolist())
        if not ask.ignore_eos:
            ends |= frozenset(served.eos_token_ids.tolist())
        deadline = now + ask.timeout if ask.timeout else inf
        return [
            Stream(
                peer,
                ask,
                # What is said of the prompt is the same for all answers.
                replace(
                    submit,
                    seed=sample_seed(submit.seed, index),
                    prompt_logprobs=None if index else ask.prompt_logprobs,
                ),
                Detokenizer(self._text.pieces, continues_text=ask.messages is None),
                stops.again(),
                ends,
                deadline,
                index,
                now,
            )
            for index in range(ask.n)
        ]

    def _banned(self, words: tuple[str, ...]) -> tuple[NDArray[np.uint32] | None, list[NDArray[np.uint32]]]:
        """Return what `bad_words` are, at the beginning of a text and behind a blank: tokens, and words of several.

        Raises `TextError`.
        """
        length = sum(map(len, words))
        if length > MOST_CHARACTERS:
            raise TextError(
                f"the bad words have {length} characters, at most {MOST_CHARACTERS} are allowed", at_fault="bad_words"
            )
        forms: set[tuple[int, ...]] = set()
        for word in words:
            require_unicode(word, "a bad word", at_fault="bad_words")
            if not word:
                raise TextError("a bad word is empty", at_fault="bad_words")
            own = {tuple(self._text.tokenizer.encode(form, add_special=False)) for form in (word, f" {word.lstrip()}")}
            if (longest := max(map(len, own))) > MOST_BAD_WORD_TOKENS:
                raise TextError(
                    f"bad_words: {shown(word)} is {longest} tokens, at most {MOST_BAD_WORD_TOKENS} are allowed",
                    at_fault="bad_words",
                )
            forms |= own
        # What ends with a form that is banned itself cannot come anyhow.
        several = sorted(form for form in forms if not any(form[at:] in forms for at in range(1, len(form))))
        several = [form for form in several if len(form) > 1]
        tokens = sum(map(len, several))
        if len(several) > MOST_BAD_WORDS or tokens > MOST_BAD_TOKENS:
            raise TextError(
                f"bad_words: {len(several)} of several tokens, {tokens} in all, at the beginning of a text and behind "
                f"a blank; at most {MOST_BAD_WORDS} of {MOST_BAD_TOKENS} tokens are allowed",
                at_fault="bad_words",
            )
        single = sorted(form[0] for form in forms if len(form) == 1)
        return np.array(single, "<u4") if single else None, [np.array(form, "<u4") for form in several]


def _characters(content: Any) -> int:
    """Return how long the text of a chat's message is, whatever may stand there: nobody has looked at it yet."""
    if isinstance(content, list | tuple):
        return sum(_characters(part.get("text")) for part in content if isinstance(part, dict))
    return len(content) if isinstance(content, str) else 0


def _given(ask: Generate) -> str:
    """Return which of its fields a request has its prompt in."""
    return next(name for name in ("prompt", "messages", "token_ids") if getattr(ask, name) is not None)


def _check_list(what: str, ids: NDArray[np.uint32] | None, vocab_size: int, *, at_fault: str) -> None:
    if ids is None:
        return
    if len(ids) > MOST_TOKEN_IDS:
        raise TextError(f"{len(ids)} token ids in {what}, at most {MOST_TOKEN_IDS} are allowed", at_fault=at_fault)
    _check_ids(what, ids, vocab_size, at_fault=at_fault)


def _check_ids(what: str, ids: NDArray[np.uint32], vocab_size: int, *, at_fault: str) -> None:
    if len(ids) and (highest := int(ids.max())) >= vocab_size:
        raise TextError(
            f"token id {highest} in {what} is not below the vocabulary's size of {vocab_size}", at_fault=at_fault
        )
