"""Texts to token ids and back, as vLLM's /tokenize and /detokenize have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from fastapi import FastAPI
from pydantic import PlainValidator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from frontend.core import FrontendCore
from frontend.http.body import object_of
from frontend.http.errors import INVALID_VALUE, ApiError
from frontend.http.gate import Gate
from frontend.http.parameters import Asked, Messages, TokenIds, chat_messages, parameters, token_ids
from frontend.readers import LONG_CHARACTERS
from frontend.reading import read
from frontend.text_error import TextError
from protocol.messages import Attached


def _some_messages(value: Any) -> tuple[dict[str, Any], ...] | None:
    return None if value is None else chat_messages(value)


_Messages = Messages | None


class TokenizeParameters(Asked):
    """POST /tokenize."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_generation_prompt": (True, False)}
    prompt: str | None = None
    messages: Annotated[
        tuple[dict[str, Any], ...] | None, PlainValidator(_some_messages, json_schema_input_type=_Messages)
    ] = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    def mismatch(self) -> tuple[str, str] | None:
        """As for all, and there is one text."""
        if (self.prompt is None) == (self.messages is None):
            return "prompt", "either it or messages must be given"
        if self.messages is None and self.add_generation_prompt is not None:
            return "add_generation_prompt", "only allowed with messages"
        return super().mismatch()


class DetokenizeParameters(Asked):
    """POST /detokenize."""

    tokens: Annotated[list[int], PlainValidator(token_ids, json_schema_input_type=TokenIds)]


class TokensApi:
    """Answers of both endpoints."""

    def __init__(self, core: FrontendCore, gate: Gate) -> None:
        """Read and write text as `core` does."""
        self._text = core.text
        self._gate = gate

    async def tokenize(self, request: Request) -> Response:
        """Return the ids of a text, or of the prompt that a chat becomes."""
        return JSONResponse(await self._gate.read(request, self._tokenize, LONG_CHARACTERS))

    async def detokenize(self, request: Request) -> Response:
        """Return the text of ids."""
        return JSONResponse(await self._gate.read(request, self._detokenize, LONG_CHARACTERS))

    def _tokenize(self, body: bytes) -> dict[str, Any]:
        asked = parameters(TokenizeParameters, object_of(body))
        served = self._gate.check_model(asked.model)
        try:
            tokens = self._ids(asked, served)
        except TextError as error:
            param = error.at_fault or None
            raise ApiError(400, error.reason, param=param, code=error.code or (param and INVALID_VALUE)) from None
        names = self._text.tokenizer.names(tokens) if asked.return_token_strs else None
        return {"count": len(tokens), "max_model_len": served.max_model_len, "tokens": tokens, "token_strs": names}

    def _ids(self, asked: TokenizeParameters, served: Attached) -> list[int]:
        if asked.messages is None:
            assert asked.prompt is not None
            source, at_fault, special = asked.prompt, "prompt", True
        else:
            opened = asked.add_generation_prompt is not False
            source, at_fault = self._text.chat.render(asked.messages, add_generation_prompt=opened), "messages"
            special = False  # which the template has written
        if asked.add_special_tokens is not None:
            special = asked.add_special_tokens
        return read(self._text, source, served.max_model_len, add_special=special, at_fault=at_fault)

    def _detokenize(self, body: bytes) -> dict[str, Any]:
        asked = parameters(DetokenizeParameters, object_of(body))
        served = self._gate.check_model(asked.model)
        if asked.tokens and (highest := max(asked.tokens)) >= served.vocab_size:
            raise ApiError(
                400,
                f"tokens: token id {highest} is not below the vocabulary's size of {served.vocab_size}",
                param="tokens",
                code=INVALID_VALUE,
            )
        return {"prompt": self._text.tokenizer.decode(asked.tokens)}


def add_tokens(app: FastAPI, core: FrontendCore, gate: Gate) -> None:
    """Add both endpoints to `app`."""
    api = TokensApi(core, gate)
    app.post("/tokenize", response_model=None)(api.tokenize)
    app.post("/detokenize", response_model=None)(api.detokenize)
