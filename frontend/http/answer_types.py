"""What is answered, as types: the published schema is made of them, and tests hold the answers to it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_Count = Annotated[int, Field(ge=0)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Never = Annotated[list[Any], Field(max_length=0)]


class Told(BaseModel):
    """An answer, or a part of one: all that is named is there, and nothing else."""

    model_config = ConfigDict(extra="forbid")


class ErrorTold(Told):
    """What is wrong."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class Error(Told):
    """The body of every status from 400 on but those of /health and /ready."""

    error: ErrorTold


class Counts(Told):
    """Tokens of one choice so far."""

    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count


class PromptDetails(Told):
    """Tokens of prompts that were not computed."""

    cached_tokens: _Count


class Usage(Counts):
    """Tokens of all choices."""

    prompt_tokens_details: PromptDetails


class TokenLogprob(Told):
    """A token and how likely it was."""

    token: str
    logprob: float
    bytes: list[Annotated[int, Field(ge=0, le=255)]]


class TokenLogprobs(TokenLogprob):
    """A token of an answer with the likeliest in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Told):
    """Tokens of a chat's choice."""

    content: list[TokenLogprobs]
    refusal: None


class CompletionLogprobs(Told):
    """Tokens of a completion's choice; of the first of a prompt that it begins with nobody says anything."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[_Count]


class PromptToken(Told):
    """A token of a prompt, or one of the likeliest in its place."""

    logprob: float
    rank: Annotated[int, Field(ge=1)]
    decoded_token: str


_PromptLogprobs = list[dict[str, PromptToken] | None]


_Reason = Literal["stop", "length"]


class _Choice(Told):
    index: _Count
    finish_reason: _Reason | None


class CompletionPiece(_Choice):
    """A piece of one text."""

    text: str
    logprobs: CompletionLogprobs | None


class CompletionChoice(CompletionPiece):
    """One text."""

    prompt_logprobs: _PromptLogprobs = []


class ChatAnswer(Told):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Choice):
    """One answer."""

    message: ChatAnswer
    logprobs: ChatLogprobs | None


class Delta(Told):
    """A piece of what the assistant says; nothing at the end."""

    role: Literal["assistant"] = "assistant"
    content: str = ""


class ChatPiece(_Choice):
    """A piece of one answer."""

    delta: Delta
    logprobs: ChatLogprobs | None


class _Frame(Told):
    id: str
    created: int
    model: str


class Completion(_Frame):
    """The answer of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(_Frame):
    """An event of its streams."""

    object: Literal["text_completion"]
    choices: list[CompletionPiece]
    usage: Usage | Counts | None = None


class ChatCompletion(_Frame):
    """The answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: _PromptLogprobs = []


class ChatCompletionChunk(_Frame):
    """An event of its streams."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatPiece]
    usage: Usage | Counts | None = None


class OutputText(Told):
    """The text of a response, or what there is of it."""

    type: Literal["output_text"]
    annotations: _Never
    logprobs: list[TokenLogprobs]
    text: str


class OutputMessage(Told):
    """The message of a response."""

    id: str
    type: Literal["message"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"]
    content: Annotated[list[OutputText], Field(max_length=1)]


class OutputDetails(Told):
    """There is no reasoning."""

    reasoning_tokens: Literal[0]


class ResponseUsage(Told):
    """Tokens of a response."""

    input_tokens: _Count
    input_tokens_details: PromptDetails
    output_tokens: _Count
    output_tokens_details: OutputDetails
    total_tokens: _Count


class ResponseError(Told):
    """Why a response failed."""

    code: Literal["server_error"]
    message: str


class Incomplete(Told):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class NoReasoning(Told):
    """There is no reasoning."""

    effort: None
    summary: None


class PlainFormat(Told):
    """That of all text here."""

    type: Literal["text"]


class PlainText(Told):
    """What a response's text is."""

    format: PlainFormat


class Response(Told):
    """The answer of /v1/responses."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: Annotated[list[OutputMessage], Field(max_length=1)]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: NoReasoning
    store: Literal[False]
    temperature: float | None
    text: PlainText
    tool_choice: Literal["none", "auto"]
    tools: _Never
    top_logprobs: _Count
    top_p: float | None
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None


class _Event(Told):
    sequence_number: _Count


class ResponseStatusEvent(_Event):
    """A response begins or ends."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: Response


class OutputItemEvent(_Event):
    """Its message begins or ends."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: Literal[0]
    item: OutputMessage


class _InMessage(_Event):
    item_id: str
    output_index: Literal[0]
    content_index: Literal[0]


class ContentPartEvent(_InMessage):
    """Its text begins or ends."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText


class TextDeltaEvent(_InMessage):
    """A piece of its text."""

    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprobs]


class TextDoneEvent(_InMessage):
    """All of its text."""

    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprobs]


class ErrorEvent(_Event):
    """It fails."""

    type: Literal["error"]
    code: str | None
    message: str
    param: str | None
    error: ErrorTold


ResponseEvent = ResponseStatusEvent | OutputItemEvent | ContentPartEvent | TextDeltaEvent | TextDoneEvent | ErrorEvent


class Model(Told):
    """What is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["stepahead"]
    max_model_len: Annotated[int, Field(ge=1)]


class Models(Told):
    """All that is."""

    object: Literal["list"]
    data: Annotated[list[Model], Field(min_length=1, max_length=1)]


class Health(Told):
    """All is well."""

    status: Literal["ok"]


class Illness(Told):
    """Something is not."""

    status: Literal["unavailable"]
    reason: str


class Version(Told):
    """Which one this is."""

    version: str


class Tokens(Told):
    """The tokens of a text."""

    count: _Count
    max_model_len: Annotated[int, Field(ge=1)]
    tokens: list[_Count]
    token_strs: list[str | None] | None


class Text(Told):
    """The text of tokens."""

    prompt: str


class Blocks(Told):
    """How many blocks were forgotten."""

    blocks: _Count


class Recording(Told):
    """The recording that runs, or the last one."""

    recording: bool
    file: str | None
    seconds: Annotated[float, Field(ge=0)]
    spans: _Count
    bytes: _Count
    problem: str | None


class View(Told):
    """The last seconds; columns are base64 of a byte a bin."""

    start_ms: float
    bin_ms: float
    known: _Count
    devices: _Count
    device: str
    scheduler: str
    worker: str
    both: str
    busy: _Share
    step_ms: Annotated[float, Field(ge=0)]
    tokens_per_second: Annotated[float, Field(ge=0)]
    running: _Count
    waiting: _Count
    blocks_used: _Count
    blocks: _Count


class Live(Told):
    """What the live page shows."""

    view: View | None
