"""What may be asked: the parameters of both endpoints, checked strictly before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from frontend.http.errors import ApiError
from frontend.http.unsupported import refuse_unsupported
from protocol.fields import INT64_MAX, INT64_MIN
from protocol.messages import COUNT_MAX, MOST_MESSAGES, MOST_STOP_TOKENS, MOST_STOPS, TEMPERATURE_MAX, Generate

MOST_PROMPTS = 256
"""Prompts of one request: each is a request of its own to the scheduler."""

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for completions. A chat may go on to the end of the context."""

_Parameters = TypeVar("_Parameters", bound="Parameters")


def _prompts(value: Any) -> tuple[str | list[int], ...]:
    """Return one prompt or many as many."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of token ids, or a list of either")
    if value and all(type(each) is int for each in value):
        value = [value]
    if not value or any(each in ("", []) for each in value):
        raise ValueError("must not be empty")
    if len(value) > MOST_PROMPTS:
        raise ValueError(f"holds {len(value)} prompts, at most {MOST_PROMPTS} are allowed")
    for each in value:
        if not isinstance(each, str):
            _token_ids(each)
    if len({type(each) for each in value}) > 1:
        raise ValueError("must not mix strings and token ids")
    return tuple(value)


def _token_ids(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise ValueError("must be a list of token ids")
    for token in value:
        if type(token) is not int or not 0 <= token < 2**32:
            raise ValueError(f"{str(token)[:40]!r} is no token id")
    return value


def _stop_token_ids(value: Any) -> list[int]:
    ids = [] if value is None else _token_ids(value)
    if len(ids) > MOST_STOP_TOKENS:
        raise ValueError(f"holds {len(ids)} ids, at most {MOST_STOP_TOKENS} are allowed")
    return ids


def _stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MOST_STOPS:
        raise ValueError(f"holds {len(stops)} strings, at most {MOST_STOPS} are allowed")
    if "" in stops:
        raise ValueError("a stop string must not be empty")
    return tuple(stops)


def _messages(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError("must be a list of messages")
    if not 1 <= len(value) <= MOST_MESSAGES:
        raise ValueError(f"must hold 1 to {MOST_MESSAGES} messages")
    return tuple(value)


_Limit = Annotated[int | None, Field(ge=1, le=COUNT_MAX)]


class StreamOptions(BaseModel):
    """How a stream is told."""

    model_config = ConfigDict(strict=True, frozen=True)
    include_usage: bool | None = None
    continuous_usage_stats: Literal[False] | None = None


class Parameters(BaseModel):
    """What both endpoints know. Names that nobody knows are passed over; null is the server's choice."""

    model_config = ConfigDict(strict=True, frozen=True)
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]]
    model: str | None = None
    max_tokens: _Limit = None
    max_completion_tokens: _Limit = None
    temperature: Annotated[float | None, Field(ge=0, le=TEMPERATURE_MAX, allow_inf_nan=False)] = None
    top_k: Annotated[int | None, Field(ge=-1, le=COUNT_MAX)] = None
    top_p: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    seed: Annotated[int | None, Field(ge=INT64_MIN, le=INT64_MAX)] = None
    stop: Annotated[tuple[str, ...], PlainValidator(_stop)] = ()
    stop_token_ids: Annotated[list[int], PlainValidator(_stop_token_ids)] = []
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _only_streams_have_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed with stream")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def limit(self) -> int | None:
        """At most so many tokens; of the two names the newer one wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def generate(self, request: int, limit: int | None, **what: Any) -> Generate:
        """Return the message that asks the core for one answer to `what`: prompt, messages or token_ids."""
        return Generate(
            request=request,
            **what,
            stream=bool(self.stream),
            max_tokens=limit,
            temperature=self.temperature,
            top_k=0 if self.top_k == -1 else self.top_k,  # -1 is vLLM's word for off
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            ignore_eos=bool(self.ignore_eos),
            stop=self.stop,
            stop_token_ids=np.array(self.stop_token_ids, "<u4"),
            include_stop=bool(self.include_stop_str_in_output),
        )


class CompletionParameters(Parameters):
    """POST /v1/completions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_special_tokens": (True,)}
    prompt: Annotated[tuple[str | list[int], ...], PlainValidator(_prompts)]

    def generates(self) -> list[Generate]:
        """Return a message for each prompt, numbered as its choice is."""
        limit = DEFAULT_MAX_TOKENS if self.limit is None else self.limit
        return [
            self.generate(index, limit, prompt=prompt)
            if isinstance(prompt, str)
            else self.generate(index, limit, token_ids=np.array(prompt, "<u4"))
            for index, prompt in enumerate(self.prompt)
        ]


class ChatParameters(Parameters):
    """POST /v1/chat/completions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_special_tokens": (False,)}
    messages: Annotated[tuple[dict[str, Any], ...], PlainValidator(_messages)]

    def generates(self) -> list[Generate]:
        """Return the one message."""
        return [self.generate(0, self.limit, messages=self.messages)]


def parameters(kind: type[_Parameters], document: Mapping[str, Any]) -> _Parameters:
    """Return the checked parameters; raises `ApiError`, which names the first that is wrong."""
    refuse_unsupported(document, kind.neutral)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise _explained(error) from None


def _explained(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    text = str(cause) if isinstance(cause, ValueError) else first["msg"]
    if not first["loc"]:  # it speaks of several, and names them
        return ApiError(400, text, param=text.partition(":")[0])
    return ApiError(400, f"{'.'.join(map(str, first['loc']))}: {text}", param=str(first["loc"][0]))
