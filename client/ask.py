"""From what a caller writes to the message that asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from client.errors import RequestRefusedError
from protocol.codec import encode
from protocol.errors import FieldError, ProtocolError
from protocol.messages import BIAS_MAX, Generate

Prompt = str | Sequence[int] | NDArray[Any]
"""Text, or the token ids that it would become."""


class Settings(TypedDict, total=False):
    """How to answer. What is absent or None is the server's choice.

    max_tokens: at most so many new tokens; the server's choice is what the context has room for.
    temperature: 0 always takes the most likely token.
    top_k, top_p, min_p: sample among the k most likely tokens; among the fewest that hold a probability of p; among
    those at least p times as likely as the most likely one.
    repetition_penalty: above 1, tokens of prompt and answer become less likely to come again; 1 is off.
    presence_penalty, frequency_penalty: from -2 to 2, taken from the logits of tokens that the answer has: once, or for
    each time. 0 is off.
    logit_bias: numbers from -100 to 100 that are added to logits, by token id.
    allowed_token_ids: no other tokens come. bad_words: strings that do not come.
    min_tokens: nothing ends the answer before it has so many.
    logprobs: with each token how likely it was, and so many of the likeliest in its place, at most 20.
    prompt_logprobs: the same of each token of the prompt, with its rank. With max_tokens=0 nothing else is answered.
    seed: in [-2**63, 2**63); the same seed and prompt give the same tokens. Of several answers each has a seed of its
    own, made of this one and its index; the first has this one itself.
    stop: strings that end the answer, and are no part of it unless include_stop.
    stop_token_ids: tokens that end it. ignore_eos: the model's own end tokens do not.
    cache_salt: what is kept of the prompt for later ones serves those of the same salt alone.
    priority: lower ones go first, where the server's --scheduling-policy is priority; elsewhere only 0 is served.
    user: for whom this is, where the server lets users take turns (--scheduling-policy round-robin).
    timeout: seconds after which the answer ends with what there is of it, `finish_reason` "timeout".
    """

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    min_tokens: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool
    include_stop: bool
    cache_salt: str | None
    priority: int | None
    user: str | None
    timeout: float | None


def ask(
    request: int,
    prompt: Prompt | None,
    messages: Iterable[Mapping[str, Any]] | None,
    *,
    stream: bool,
    settings: Settings,
    n: int = 1,
) -> bytes:
    """Return the frame of a request for `n` answers to one of `prompt` and `messages`; raises `RequestRefusedError`."""
    fields: dict[str, Any] = dict(settings)
    unknown = fields.keys() - Settings.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown settings: {', '.join(sorted(unknown))}")
    stop, stop_token_ids = fields.pop("stop", None), fields.pop("stop_token_ids", None)
    if stop is not None:
        fields["stop"] = _texts("stop", stop)
    if stop_token_ids is not None:
        fields["stop_token_ids"] = _ids("stop_token_ids", stop_token_ids)
    if (allowed := fields.pop("allowed_token_ids", None)) is not None:
        fields["allowed_token_ids"] = _ids("allowed_token_ids", allowed)
    if biases := fields.pop("logit_bias", None):
        fields["bias_token_ids"] = _ids("logit_bias", list(biases))
        fields["bias"] = _biases(list(biases.values()))
    if (words := fields.pop("bad_words", None)) is not None:
        fields["bad_words"] = _texts("bad_words", words)
    for name in ("presence_penalty", "frequency_penalty", "min_tokens", "cache_salt", "priority", "user"):
        if fields.get(name, "") is None:
            del fields[name]
    if isinstance(prompt, str):
        fields["prompt"] = prompt
    elif prompt is not None:
        fields["token_ids"] = _ids("the prompt", prompt)
    if messages is not None:
        fields["messages"] = tuple(dict(message) for message in messages)
    try:
        return encode(Generate(request=request, stream=stream, n=n, **fields))
    except FieldError as error:
        raise RequestRefusedError(f"{error.field}: {error.why}") from None
    except ProtocolError as error:
        raise RequestRefusedError(str(error)) from None


def _texts(what: str, texts: Any) -> tuple[Any, ...]:
    if isinstance(texts, str):
        return (texts,)
    if not isinstance(texts, Iterable):
        raise RequestRefusedError(f"{what}: {texts!r} is neither a text nor a list of texts")
    return tuple(texts)


def _biases(numbers: list[Any]) -> NDArray[np.float32]:
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float | np.integer | np.floating):
            raise RequestRefusedError(f"logit_bias: {number!r} is no number")
        if not -BIAS_MAX <= number <= BIAS_MAX:
            raise RequestRefusedError(f"logit_bias: {number!r} is not from {-BIAS_MAX:g} to {BIAS_MAX:g}")
    return np.array(numbers, "<f4")


def _ids(what: str, ids: Any) -> NDArray[np.uint32]:
    """Return token ids as a column; nothing is rounded or wrapped on the way there."""
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()
    if not isinstance(ids, Iterable):
        raise RequestRefusedError(f"{what}: {ids!r} is no list of token ids")
    for token in ids:
        if type(token) is not int and not isinstance(token, np.integer):
            raise RequestRefusedError(f"{what}: {token!r} is no token id")
        if not 0 <= token < 2**32:
            raise RequestRefusedError(f"{what}: token id {token} is outside of any vocabulary")
    return np.array(ids, "<u4")
