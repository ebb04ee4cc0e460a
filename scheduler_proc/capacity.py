"""What one worker can hold, and so which workers and which requests make no sense."""

from __future__ import annotations

from protocol.logprobs import MOST_SCORES
from protocol.messages import MOST_STOP_TOKENS, Opened, Submit
from scheduler_proc.adjustments import listed_tokens, nothing_left, wrong_lists


class CapacityError(Exception):
    """The worker can't hold one request of the length that it allows; the text has the numbers."""


def check_capacity(worker: Opened) -> None:
    """Raise `CapacityError` unless the worker's pool holds one request of `max_model_len` tokens.

    The last token of a request is never an input and needs no place.
    """
    positions = worker.max_model_len - 1
    if worker.blocks * worker.block_size < positions:
        raise CapacityError(
            f"the KV cache holds {worker.blocks} blocks of {worker.block_size} = {worker.blocks * worker.block_size} "
            f"tokens, less than one request of --max-model-len {worker.max_model_len}: lower that, or raise the cache"
        )
    if worker.max_batch_tokens < worker.slots:
        raise CapacityError(
            f"--max-batch-tokens {worker.max_batch_tokens} is less than --max-num-seqs {worker.slots}: "
            "a step must have room for one token of every running request"
        )


def refusal(ask: Submit, worker: Opened) -> str:
    """Return why a request can never be served by a worker, or nothing. Too many `max_tokens` are no reason."""
    if not len(ask.prompt):
        return "the prompt is empty"
    if len(ask.prompt) >= worker.max_model_len:
        return f"the prompt has {len(ask.prompt)} tokens; it must be shorter than the context of {worker.max_model_len}"
    if len(ask.stop_token_ids) > MOST_STOP_TOKENS:
        return f"stop_token_ids: {len(ask.stop_token_ids)} of them, at most {MOST_STOP_TOKENS} are allowed"
    if problem := wrong_lists(ask):
        return problem
    if ask.min_tokens > ask.max_tokens:
        return f"min_tokens: {ask.min_tokens} is more than max_tokens {ask.max_tokens}"
    if ask.logprobs is not None and ask.logprobs > worker.vocab_size:
        return f"logprobs: {ask.logprobs} is more than the vocabulary of {worker.vocab_size} has tokens"
    if problem := _wrong_scores(ask, worker):
        return problem
    for tokens in (ask.prompt, ask.output, ask.stop_token_ids, *listed_tokens(ask)):
        if len(tokens) and tokens.max() >= worker.vocab_size:
            return f"token id {tokens.max()} is outside of the vocabulary of {worker.vocab_size}"
    if nothing_left(ask, worker.eos_token_ids, worker.vocab_size):
        return "no token is left that may come: all of them are banned, or would end the answer before min_tokens"
    return ""


def _wrong_scores(ask: Submit, worker: Opened) -> str:
    if ask.prompt_logprobs is None:
        return ""
    if ask.prompt_logprobs > worker.vocab_size:
        return f"prompt_logprobs: {ask.prompt_logprobs} is more than the vocabulary of {worker.vocab_size} has tokens"
    if (scores := len(ask.prompt) * (1 + ask.prompt_logprobs)) > MOST_SCORES:
        return f"prompt_logprobs: {scores} of the prompt's {len(ask.prompt)} tokens together, at most {MOST_SCORES}"
    if ask.scores_told >= len(ask.prompt):
        return f"scores_told is {ask.scores_told}, as if the prompt had more tokens than {len(ask.prompt)}"
    return ""
