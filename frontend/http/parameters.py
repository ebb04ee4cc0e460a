"""What may be asked: the parameters of both endpoints, checked strictly before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from frontend.chat import Role
from frontend.http.errors import INVALID_TYPE, INVALID_VALUE, ApiError
from frontend.http.prompts import Prompts
from frontend.http.unsupported import refuse_unsupported
from frontend.http.wrong import WrongError, not_a, too_many
from frontend.model_text import ModelText
from frontend.text_error import shown
from protocol.fields import INT64_MAX, INT64_MIN
from protocol.logprobs import MOST_LOGPROBS
from protocol.messages import (
    BIAS_MAX,
    COUNT_MAX,
    MOST_MESSAGES,
    MOST_SALT,
    MOST_SAMPLES,
    MOST_STOP_TOKENS,
    MOST_STOPS,
    MOST_TOKEN_IDS,
    MOST_USER,
    PENALTY_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    REPETITION_MAX,
    REPETITION_MIN,
    TEMPERATURE_MAX,
    TIMEOUT_MAX,
    TIMEOUT_MIN,
    Generate,
)

MOST_CHOICES = 256
"""Choices of one answer, over all of its prompts: each is a request of its own to the scheduler."""

TOKEN_ID_MAX = 2**32 - 1
"""The highest number of a token that any model may have; the served one has fewer."""

_DIGITS = 20
"""More of them no token's number has."""

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for completions. A chat may go on to the end of the context."""

_Asked = TypeVar("_Asked", bound="Asked")

_Words = Annotated[str, Field(min_length=1)]
_TokenId = Annotated[int, Field(ge=0, le=TOKEN_ID_MAX)]
TokenIds = list[_TokenId]
_Prompt = Annotated[TokenIds, Field(min_length=1)]
_Prompts = (
    _Words
    | _Prompt
    | Annotated[list[_Words], Field(min_length=1, max_length=MOST_CHOICES)]
    | Annotated[list[_Prompt], Field(min_length=1, max_length=MOST_CHOICES)]
)
_TokenName = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")]
_Bias = Annotated[float, Field(ge=-BIAS_MAX, le=BIAS_MAX)]
_OnlyThose = Field(max_length=MOST_TOKEN_IDS, json_schema_extra={"additionalProperties": False})
_Biases = Annotated[dict[_TokenName, _Bias], _OnlyThose] | None
_Allowed = Annotated[TokenIds, Field(min_length=1, max_length=MOST_TOKEN_IDS)] | None
_BadWords = Annotated[list[_Words], Field(max_length=MOST_TOKEN_IDS)] | None
_Stop = _Words | Annotated[list[_Words], Field(max_length=MOST_STOPS)] | None
_StopTokens = Annotated[TokenIds, Field(max_length=MOST_STOP_TOKENS)] | None
_Salt = Annotated[str, Field(min_length=1, max_length=MOST_SALT)] | None
_User = Annotated[str, Field(max_length=MOST_USER)] | None
"""What the checks below take, as types: the published schema says what they say."""


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message, as the chat template takes it; what else it may hold is for the template to know."""

    role: Role
    content: str | list[TextPart] | None = None


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]


def _prompts(value: Any) -> tuple[str | list[int], ...]:
    """Return one prompt or many as many."""
    if not isinstance(value, str | list):
        raise not_a("a string, a list of token ids, or a list of either", value)
    one = isinstance(value, str) or (bool(value) and all(type(each) is int for each in value))
    prompts: Any = [value] if one else value
    if len(prompts) > MOST_CHOICES:
        raise too_many(prompts, MOST_CHOICES, "prompts")
    if not prompts:
        raise WrongError("must not be empty")
    if {type(each) for each in prompts} not in ({str}, {list}):
        raise not_a("all strings, all token ids, or all lists of token ids", value)
    for index, each in enumerate(prompts):
        at = "" if one else f"[{index}]"
        if not each:
            raise WrongError("must not be empty", at=at)
        if isinstance(each, list):
            token_ids(each, at)
    return tuple(prompts)


def token_ids(value: Any, at: str = "") -> list[int]:
    """Return a list of numbers that may be token ids; `at` is where in the parameter it stands."""
    if not isinstance(value, list):
        raise not_a("a list of token ids", value, at)
    for index, token in enumerate(value):
        if type(token) is not int:
            raise not_a("a token id", token, f"{at}[{index}]")
        if not 0 <= token <= TOKEN_ID_MAX:
            raise WrongError(f"must be from 0 to {TOKEN_ID_MAX}, got {token}", at=f"{at}[{index}]")
    return value


def _stop_token_ids(value: Any) -> list[int]:
    ids = [] if value is None else token_ids(value)
    if len(ids) > MOST_STOP_TOKENS:
        raise too_many(ids, MOST_STOP_TOKENS, "token ids")
    return ids


def _allowed(value: Any) -> list[int] | None:
    if value is None:
        return None
    ids = token_ids(value)
    if not ids:
        raise WrongError("must not be empty")
    if len(ids) > MOST_TOKEN_IDS:
        raise too_many(ids, MOST_TOKEN_IDS, "token ids")
    return ids


def _logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise not_a("an object of token ids and numbers", value)
    if len(value) > MOST_TOKEN_IDS:
        raise too_many(list(value), MOST_TOKEN_IDS, "token ids")
    biases: dict[int, float] = {}
    for name, bias in value.items():
        at = f"[{shown(name)}]"
        if not (name.isascii() and name.isdigit() and str(int(name[:_DIGITS])) == name):
            raise WrongError("must be named by a token id", at=at, code=INVALID_TYPE)
        if int(name) > TOKEN_ID_MAX:
            raise WrongError(f"must be named by a token id of at most {TOKEN_ID_MAX}", at=at)
        if type(bias) is not int and type(bias) is not float:
            raise not_a("a number", bias, at)
        if not -BIAS_MAX <= bias <= BIAS_MAX:
            raise WrongError(f"must be from {-BIAS_MAX:g} to {BIAS_MAX:g}, got {shown(bias)}", at=at)
        biases[int(name)] = float(bias)
    return biases


def _bad_words(value: Any) -> tuple[str, ...]:
    words = [] if value is None else value
    if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
        raise not_a("a list of strings", value)
    if len(words) > MOST_TOKEN_IDS:
        raise too_many(words, MOST_TOKEN_IDS, "strings")
    if "" in words:
        raise WrongError("must not be empty", at=f"[{words.index('')}]")
    return tuple(words)


def _stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise not_a("a string or a list of strings", value)
    if len(stops) > MOST_STOPS:
        raise too_many(stops, MOST_STOPS, "strings")
    if "" in stops:
        raise WrongError("must not be empty", at="" if isinstance(value, str) else f"[{stops.index('')}]")
    return tuple(stops)


def _salt(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise not_a("a string", value)
    if not 1 <= len(value) <= MOST_SALT:
        raise WrongError(f"must have 1 to {MOST_SALT} characters, got {len(value)}")
    return value


def _user(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise not_a("a string", value)
    if len(value) > MOST_USER:
        raise WrongError(f"must have at most {MOST_USER} characters, got {len(value)}")
    return value


def chat_messages(value: Any) -> tuple[dict[str, Any], ...]:
    """Return a list of objects as messages; the chat template reads what is in them."""
    if not isinstance(value, list):
        raise not_a("a list of messages", value)
    for index, each in enumerate(value):
        if not isinstance(each, dict):
            raise not_a("an object", each, f"[{index}]")
    if len(value) > MOST_MESSAGES:
        raise too_many(value, MOST_MESSAGES, "messages")
    if not value:
        raise WrongError("must not be empty")
    return tuple(value)


_Penalty = Annotated[float | None, Field(ge=-PENALTY_MAX, le=PENALTY_MAX, allow_inf_nan=False)]
_Logprobs = Annotated[int | None, Field(ge=0, le=MOST_LOGPROBS)]
Limit = Annotated[int | None, Field(ge=1, le=COUNT_MAX)]
_LimitOrNothing = Annotated[int | None, Field(ge=0, le=COUNT_MAX)]
_Samples = Annotated[int | None, Field(ge=1, le=MOST_SAMPLES)]


class StreamOptions(BaseModel):
    """How a stream is told."""

    model_config = ConfigDict(strict=True, frozen=True)
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Asked(BaseModel):
    """What an endpoint knows. Names that nobody knows are passed over; null is the server's choice."""

    model_config = ConfigDict(strict=True, frozen=True)
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    model: str | None = None

    def mismatch(self) -> tuple[str, str] | None:
        """Return a parameter that goes with another one only, and what it wants; None if there is none."""
        return None


class Parameters(Asked):
    """What all endpoints that answer know."""

    called: ClassVar[Mapping[str, str]] = {"token_ids": "prompt", "bias_token_ids": "logit_bias"}
    """What the fields of `Generate` that may be at fault are called here, if not the same."""

    n: _Samples = None
    best_of: _Samples = None
    timeout: Annotated[float | None, Field(ge=TIMEOUT_MIN, le=TIMEOUT_MAX, allow_inf_nan=False)] = None
    max_tokens: Limit = None
    max_completion_tokens: Limit = None
    temperature: Annotated[float | None, Field(ge=0, le=TEMPERATURE_MAX, allow_inf_nan=False)] = None
    top_k: Annotated[int | None, Field(ge=-1, le=COUNT_MAX)] = None
    top_p: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    repetition_penalty: Annotated[float | None, Field(ge=REPETITION_MIN, le=REPETITION_MAX, allow_inf_nan=False)] = None
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None
    logit_bias: Annotated[dict[int, float], PlainValidator(_logit_bias, json_schema_input_type=_Biases)] = {}
    allowed_token_ids: Annotated[list[int] | None, PlainValidator(_allowed, json_schema_input_type=_Allowed)] = None
    bad_words: Annotated[tuple[str, ...], PlainValidator(_bad_words, json_schema_input_type=_BadWords)] = ()
    min_tokens: Annotated[int | None, Field(ge=0, le=COUNT_MAX)] = None
    seed: Annotated[int | None, Field(ge=INT64_MIN, le=INT64_MAX)] = None
    stop: Annotated[tuple[str, ...], PlainValidator(_stop, json_schema_input_type=_Stop)] = ()
    stop_token_ids: Annotated[list[int], PlainValidator(_stop_token_ids, json_schema_input_type=_StopTokens)] = []
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: Annotated[str, PlainValidator(_salt, json_schema_input_type=_Salt)] = ""
    user: Annotated[str, PlainValidator(_user, json_schema_input_type=_User)] = ""
    priority: Annotated[int | None, Field(ge=PRIORITY_MIN, le=PRIORITY_MAX)] = None
    prompt_logprobs: _Logprobs = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether each chunk of a stream has the token counts so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    @property
    def limit(self) -> int | None:
        """At most so many tokens; of the two names the newer one wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def samples(self) -> int:
        """How many choices there are of each prompt."""
        return 1 if self.n is None else self.n

    def mismatch(self) -> tuple[str, str] | None:
        """As for all, and there is a stream or none, and as many choices as samples."""
        if self.prompt_logprobs is not None and self.stream:
            return "prompt_logprobs", 'not available with "stream": true'
        if self.stream_options is not None and not self.stream:
            return "stream_options", 'only allowed with "stream": true'
        if self.best_of is not None and self.best_of != self.samples:
            return "best_of", f"must be n, which is {self.samples}, for all that is sampled is answered"
        return super().mismatch()

    def generates(self) -> list[Generate]:
        """Return the messages that ask the core for all that is wanted."""
        raise NotImplementedError

    def generate(self, request: int, limit: int | None, **what: Any) -> Generate:
        """Return the message that asks the core for one answer; `what` is a prompt, and what the others have not."""
        biased = bool(self.logit_bias)
        return Generate(
            request=request,
            **what,
            stream=bool(self.stream),
            n=self.samples,
            timeout=self.timeout,
            max_tokens=limit,
            temperature=self.temperature,
            top_k=0 if self.top_k == -1 else self.top_k,  # -1 is vLLM's word for off
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            bias_token_ids=np.array(list(self.logit_bias), "<u4") if biased else None,
            bias=np.array(list(self.logit_bias.values()), "<f4") if biased else None,
            allowed_token_ids=None if self.allowed_token_ids is None else np.array(self.allowed_token_ids, "<u4"),
            bad_words=self.bad_words,
            min_tokens=self.min_tokens or 0,
            seed=self.seed,
            ignore_eos=bool(self.ignore_eos),
            stop=self.stop,
            stop_token_ids=np.array(self.stop_token_ids, "<u4"),
            include_stop=bool(self.include_stop_str_in_output),
            cache_salt=self.cache_salt,
            priority=self.priority or 0,
            user=self.user,
        )


class CompletionParameters(Parameters):
    """POST /v1/completions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_special_tokens": (True,), "top_logprobs": (0,)}
    max_tokens: _LimitOrNothing = None
    max_completion_tokens: _LimitOrNothing = None
    logprobs: _Logprobs = None
    echo: bool | None = None
    prompt: Annotated[tuple[str | list[int], ...], PlainValidator(_prompts, json_schema_input_type=_Prompts)]

    def mismatch(self) -> tuple[str, str] | None:
        """As for all, and something is answered, of not too many choices."""
        if self.limit == 0 and not self.echo and self.prompt_logprobs is None:
            name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
            return name, "must be at least 1 without echo or prompt_logprobs, got 0"
        choices = len(self.prompt) * self.samples
        if choices > MOST_CHOICES:
            return (
                "n",
                f"{self.samples} for {len(self.prompt)} prompts each are {choices} choices, more than {MOST_CHOICES}",
            )
        return super().mismatch()

    def generates(self) -> list[Generate]:
        """Return a message for each prompt, numbered in their order."""
        limit = DEFAULT_MAX_TOKENS if self.limit is None else self.limit
        of_prompt = [self.prompt_logprobs, self.logprobs if self.echo else None, None if limit else 0]
        wanted = {
            "logprobs": self.logprobs,
            "prompt_logprobs": max((each for each in of_prompt if each is not None), default=None),
        }
        return [
            self.generate(index, limit, prompt=prompt, **wanted)
            if isinstance(prompt, str)
            else self.generate(index, limit, token_ids=np.array(prompt, "<u4"), **wanted)
            for index, prompt in enumerate(self.prompt)
        ]

    def prompts(self, text: ModelText) -> Prompts:
        """Return what is told of the prompts; ids have the text that they are."""
        echoes = None
        if self.echo:
            echoes = [each if isinstance(each, str) else text.tokenizer.decode(each) for each in self.prompt]
        return Prompts(
            text.pieces,
            echoes=echoes,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            copies=self.samples,
        )


class ChatParameters(Parameters):
    """POST /v1/chat/completions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_special_tokens": (False,), "echo": (False,)}
    logprobs: bool | None = None
    top_logprobs: _Logprobs = None
    messages: Annotated[tuple[dict[str, Any], ...], PlainValidator(chat_messages, json_schema_input_type=Messages)]

    def mismatch(self) -> tuple[str, str] | None:
        """As for all, and the likeliest tokens go with the ones that came."""
        if self.top_logprobs and not self.logprobs:
            return "top_logprobs", 'only allowed with "logprobs": true'
        return super().mismatch()

    def generates(self) -> list[Generate]:
        """Return the one message."""
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return [
            self.generate(
                0, self.limit, messages=self.messages, logprobs=logprobs, prompt_logprobs=self.prompt_logprobs
            )
        ]

    def prompts(self, text: ModelText) -> Prompts:
        """Return what is told of the one prompt."""
        return Prompts(text.pieces, echoes=None, logprobs=None, prompt_logprobs=self.prompt_logprobs, copies=1)


_TYPES = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "model_type": "an object",
    "literal_error": "false",  # of the one literal above
}
"""What pydantic misses, in our words; the rest are bounds."""


def parameters(kind: type[_Asked], document: Mapping[str, Any]) -> _Asked:
    """Return the checked parameters; raises `ApiError`, which names the first that is wrong."""
    refuse_unsupported(document, kind.neutral)
    try:
        asked = kind.model_validate(document)
    except ValidationError as error:
        raise _explained(error.errors(include_url=False)[0]) from None
    if (mismatch := asked.mismatch()) is not None:
        name, wants = mismatch
        raise ApiError(400, f"{name}: {wants}", param=name, code=INVALID_VALUE)
    return asked


def _explained(first: ErrorDetails) -> ApiError:
    where = ".".join(map(str, first["loc"]))
    wrong = _wrong(first)
    return ApiError(400, f"{where}{wrong.at}: {wrong}", param=str(first["loc"][0]), code=wrong.code)


def _wrong(first: ErrorDetails) -> WrongError:
    kind, value, context = first["type"], first["input"], first.get("ctx", {})
    if isinstance(cause := context.get("error"), WrongError):
        return cause
    if kind == "missing":
        return WrongError("must be given", code="missing_required_parameter")
    if kind in _TYPES:
        return not_a(_TYPES[kind], value)
    if "ge" in context:
        return _beyond("at least", context["ge"], value, "below_min_value")
    return _beyond("at most", context["le"], value, "above_max_value")


def _beyond(words: str, bound: float, value: Any, code: str) -> WrongError:
    number = "integer" if isinstance(bound, int) else "decimal"  # as the parameter is
    limit = int(bound) if bound == int(bound) else bound
    return WrongError(f"must be {words} {limit}, got {shown(value)}", code=f"{number}_{code}")
