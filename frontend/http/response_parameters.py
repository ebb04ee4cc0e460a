"""What may be asked of POST /v1/responses: a chat, in the words of OpenAI's newer API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from frontend.http.parameters import Limit, Parameters, chat_messages
from frontend.http.wrong import WrongError, not_a, too_many
from frontend.text_error import shown
from protocol.logprobs import MOST_LOGPROBS
from protocol.messages import MOST_MESSAGES, Generate

Role = Literal["user", "assistant", "system", "developer"]

TextPart = Literal["input_text", "output_text"]
"""What a part of a message may be: what was asked, and what was answered before."""

LOGPROBS: Final = "message.output_text.logprobs"

Includable = Literal[
    "message.output_text.logprobs",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""What OpenAI's API can be told to include. All but the first belong to what no answer of this server has."""

MOST_METADATA, MOST_METADATA_NAME, MOST_METADATA_VALUE = 16, 64, 512
"""OpenAI's limits: entries, and characters of a name and of a value."""


class InputPart(BaseModel):
    """A part of a message."""

    type: TextPart
    text: str


class InputMessage(BaseModel):
    """A message of the conversation so far; what else it holds is not looked at."""

    type: Literal["message"] = "message"
    role: Role
    content: str | list[InputPart]


class TextFormat(BaseModel):
    """That of plain text."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]


class TextSettings(BaseModel):
    """What the answer's text must be."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(BaseModel):
    """None."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"type": "null"}})
    effort: Literal["none"] | None = None


_Input = str | Annotated[list[InputMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
_Include = list[Includable] | None
_MetadataName = Annotated[str, Field(max_length=MOST_METADATA_NAME)]
_MetadataValue = Annotated[str, Field(max_length=MOST_METADATA_VALUE)]
_Metadata = Annotated[dict[_MetadataName, _MetadataValue], Field(max_length=MOST_METADATA)] | None
_Reasoning = Reasoning | None
"""What the checks below take, as types: the published schema says what they say."""


def _input(value: Any) -> tuple[dict[str, Any], ...]:
    """Return what was said, as messages that a chat template reads."""
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if not isinstance(value, list):
        raise not_a("a string or a list of messages", value)
    return tuple(_message(item, f"[{index}]") for index, item in enumerate(chat_messages(value)))


def _message(item: dict[str, Any], at: str) -> dict[str, Any]:
    if (kind := item.get("type", "message")) != "message":
        raise _unserved('"message", which is all that is read here', kind, f"{at}.type")
    if (role := item.get("role")) not in get_args(Role):
        raise WrongError(f"must be one of {', '.join(get_args(Role))}, got {shown(role)}", at=f"{at}.role")
    return {"role": role, "content": _content(item.get("content"), f"{at}.content")}


def _content(content: Any, at: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise not_a("a string or a list of text parts", content, at)
    return [_part(part, f"{at}[{index}]") for index, part in enumerate(content)]


def _part(part: Any, at: str) -> dict[str, str]:
    if not isinstance(part, dict):
        raise not_a("an object", part, at)
    if (kind := part.get("type")) not in get_args(TextPart):
        raise _unserved(
            f"{' or '.join(map(shown, get_args(TextPart)))}, which is all that is read here", kind, f"{at}.type"
        )
    if not isinstance(text := part.get("text"), str):
        raise not_a("a string", text, f"{at}.text")
    return {"type": "text", "text": text}


def _include(value: Any) -> tuple[str, ...]:
    names = [] if value is None else value
    if not isinstance(names, list):
        raise not_a("a list of strings", value)
    for index, name in enumerate(names):
        if name not in get_args(Includable):
            raise WrongError(f"must be one of {', '.join(get_args(Includable))}, got {shown(name)}", at=f"[{index}]")
    return tuple(names)


def _metadata(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise not_a("an object of strings", value)
    if len(value) > MOST_METADATA:
        raise too_many(value, MOST_METADATA, "entries")
    for name, text in value.items():
        at = f"[{shown(name)}]"
        if len(name) > MOST_METADATA_NAME:
            raise WrongError(f"must have a name of at most {MOST_METADATA_NAME} characters, got {len(name)}", at=at)
        if not isinstance(text, str):
            raise not_a("a string", text, at)
        if len(text) > MOST_METADATA_VALUE:
            raise WrongError(f"must have at most {MOST_METADATA_VALUE} characters, got {len(text)}", at=at)
    return value


def _text(value: Any) -> None:
    """Take what asks for plain text."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise not_a("an object", value)
    form = value.get("format")
    if form not in (None, {"type": "text"}):
        raise _unserved('{"type": "text"} or null', form, ".format")
    if (verbosity := value.get("verbosity")) not in (None, "medium"):
        raise _unserved('"medium" or null', verbosity, ".verbosity")


def _reasoning(value: Any) -> None:
    """Take what asks for no reasoning."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise not_a("an object", value)
    for name, wish in value.items():
        if wish is not None and (name, wish) != ("effort", "none"):
            raise _unserved("null, for there is no reasoning here apart from the answer", wish, f".{name}")


def _unserved(rule: str, value: Any, at: str) -> WrongError:
    return WrongError(f"must be {rule}, got {shown(value)}", at=at, code="unsupported_parameter")


class ResponseParameters(Parameters):
    """POST /v1/responses. What OpenAI does not have there, such as `top_k` and `stop`, is as in a chat."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "background": (False,),
        "best_of": (1,),
        "context_management": ([],),
        "conversation": (),
        "echo": (False,),
        "max_completion_tokens": (),
        "max_tokens": (),
        "n": (1,),
        "previous_response_id": (),
        "prompt": (),
        "prompt_logprobs": (),
        "truncation": ("disabled",),
    }
    called: ClassVar[Mapping[str, str]] = {**Parameters.called, "messages": "input"}

    input: Annotated[tuple[dict[str, Any], ...], PlainValidator(_input, json_schema_input_type=_Input)]
    instructions: str | None = None
    max_output_tokens: Limit = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MOST_LOGPROBS)] = None
    include: Annotated[tuple[str, ...], PlainValidator(_include, json_schema_input_type=_Include)] = ()
    metadata: Annotated[dict[str, str], PlainValidator(_metadata, json_schema_input_type=_Metadata)] = {}
    text: Annotated[None, PlainValidator(_text, json_schema_input_type=TextSettings | None)] = None
    reasoning: Annotated[None, PlainValidator(_reasoning, json_schema_input_type=_Reasoning)] = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None

    def mismatch(self) -> tuple[str, str] | None:
        """As for all, and the likeliest tokens go with the ones that came."""
        if self.top_logprobs and LOGPROBS not in self.include:
            return "top_logprobs", f'only allowed with "include": ["{LOGPROBS}"]'
        if self.stream_options is not None and self.stream_options.continuous_usage_stats:
            return "stream_options", "continuous_usage_stats has no place in the events of a response"
        return super().mismatch()

    def generates(self) -> list[Generate]:
        """Return the one message."""
        told = ({"role": "system", "content": self.instructions},) if self.instructions else ()
        logprobs = (self.top_logprobs or 0) if LOGPROBS in self.include else None
        return [self.generate(0, self.max_output_tokens, messages=(*told, *self.input), logprobs=logprobs)]
