"""Parameters that users of OpenAI's API, or of vLLM's, know, and that can't be served yet: none is passed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frontend.http.errors import ApiError

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""What each may be all the same, beside null: that which asks for nothing."""


def refuse_unsupported(document: Mapping[str, Any]) -> None:
    """Raise `ApiError` if a request asks for what can't be served yet."""
    for name in document.keys() & NEUTRAL.keys():
        value, neutral = document[name], NEUTRAL[name]
        if value is not None and not any(_same(value, each) for each in neutral):
            also = "".join(f" or {each!r}" for each in neutral)
            raise ApiError(
                400,
                f"{name}: this value is not supported; leave it out, or send null{also}",
                param=name,
                code="unsupported_parameter",
            )


def _same(value: Any, neutral: Any) -> bool:
    """Whether they are equal in JSON, where true is not 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
