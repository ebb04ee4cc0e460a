"""Parameters of OpenAI's API, or of vLLM's, that can't be served yet and would change what is answered, or how.

None of them is passed over: who asks for something must not take it that it was done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frontend.http.errors import ApiError
from frontend.text_error import shown

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_embeds": (),
    "reasoning_effort": ("none",),
    "request_id": (),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "web_search_options": (),
}
"""What each may be all the same, beside null: that which asks for nothing."""

INSTEAD = {
    "background": "answers are waited for",
    "conversation": "nothing is kept here, so all that was said must come as input",
    "max_completion_tokens": "it is called max_output_tokens here",
    "max_tokens": "it is called max_output_tokens here",
    "previous_response_id": "nothing is kept here, so all that was said must come as input",
    "truncation": "what is too long is refused, and nothing is left out of it",
}
"""What there is in place of some, where it is not obvious."""


def refuse_unsupported(document: Mapping[str, Any], neutral_here: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise `ApiError` if a request asks for what can't be served yet; `neutral_here` is its endpoint's own."""
    known = {**NEUTRAL, **neutral_here}
    for name, value in document.items():
        neutral = known.get(name)
        if neutral is not None and value is not None and not any(_same(value, each) for each in neutral):
            also = "".join(f" or {shown(each)}" for each in neutral)
            instead = f": {INSTEAD[name]}" if name in INSTEAD else ""
            raise ApiError(
                400,
                f"{name}: {shown(value)} is not supported{instead}; leave it out, or send null{also}",
                param=name,
                code="unsupported_parameter",
            )


def _same(value: Any, neutral: Any) -> bool:
    """Whether they are equal in JSON, where true is not 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
