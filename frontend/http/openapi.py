"""GET /openapi.json: every path with what it takes and answers, made of the types that check and describe both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, get_args

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from frontend.http import answer_types as told
from frontend.http.guard import OPEN_PATHS
from frontend.http.page_files import PAGE_PATH
from frontend.http.parameters import Asked, ChatParameters, CompletionParameters
from frontend.http.response_parameters import ResponseParameters
from frontend.http.timeline import StartParameters
from frontend.http.tokens import DetokenizeParameters, TokenizeParameters
from frontend.http.unsupported import NEUTRAL

PATH = "/openapi.json"

_KEY = "key"
_SCHEMAS = "#/components/schemas/"

_WHEN = {
    400: "What is asked can't be served as it is; the message says what to change.",
    401: "The key is missing or wrong, where the server has one.",
    403: "Another site's page asks.",
    404: "There is no such model, path or recording.",
    408: "The body came too slowly.",
    409: "A recording is under way, or none is.",
    413: "The body is too large, or has too many entries.",
    429: "Too many requests wait already.",
    500: "Computing this failed.",
    503: "The server, or what it needs, is not there now.",
    504: "The request's own timeout passed.",
}

_OF_BODIES = (400, 404, 408, 413, 503)
_OF_ANSWERS = (*_OF_BODIES, 429, 500, 504)


@dataclass(frozen=True)
class Operation:
    """What can be done at a path. What is answered is of a type, or else only of a media type."""

    method: str
    path: str
    about: str
    answer: type[BaseModel] | str
    errors: tuple[int, ...] = ()
    body: type[BaseModel] | None = None
    body_required: bool = True
    events: tuple[type[BaseModel], ...] = ()  # what a stream's events hold, if there are streams


OPERATIONS = (
    Operation(
        "post", "/v1/completions", "Continue a text", told.Completion, _OF_ANSWERS, CompletionParameters,
        events=(told.CompletionChunk, told.Error),
    ),
    Operation(
        "post", "/v1/chat/completions", "Answer a chat", told.ChatCompletion, _OF_ANSWERS, ChatParameters,
        events=(told.ChatCompletionChunk, told.Error),
    ),
    Operation(
        "post", "/v1/responses", "Answer a chat, as a response", told.Response, _OF_ANSWERS, ResponseParameters,
        events=get_args(told.ResponseEvent),
    ),
    Operation("get", "/v1/models", "List the one model", told.Models, (503,)),
    Operation("get", "/v1/models/{model}", "Describe a model", told.Model, (404, 503)),
    Operation("get", "/health", "Say whether all processes are well", told.Health),
    Operation("get", "/ready", "Say whether a request that came now would be served", told.Health),
    Operation("get", "/version", "Say which version this is", told.Version),
    Operation("get", "/metrics", "Tell numbers, for Prometheus", "text/plain"),
    Operation("post", "/tokenize", "Tell the tokens of a text or a chat", told.Tokens, _OF_BODIES, TokenizeParameters),
    Operation("post", "/detokenize", "Tell the text of tokens", told.Text, _OF_BODIES, DetokenizeParameters),
    Operation("post", "/reset_prefix_cache", "Forget what was computed for prompts", told.Blocks, (403, 503)),
    Operation("get", PAGE_PATH, "Show the live page", "text/html"),
    Operation("get", "/timeline/live", "Tell the last seconds", told.Live),
    Operation("get", "/timeline/status", "Tell of the recording", told.Recording, (409, 503)),
    Operation("get", "/timeline/file", "Return the last recording", "application/octet-stream", (404, 409, 503)),
    Operation(
        "post", "/timeline/start", "Start a recording", told.Recording, (400, 403, 408, 409, 413, 503), StartParameters,
        body_required=False,
    ),
    Operation("post", "/timeline/stop", "End the recording", told.Recording, (403, 409, 503)),
    Operation("get", PATH, "Return this document", "application/json"),
)  # fmt: skip


def document(version: str) -> dict[str, Any]:
    """Return the document, of OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stepahead",
            "version": version,
            "description": "OpenAI's API, as far as it is served. Integers have no decimal point and 64 bits at most.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {_KEY: {"type": "http", "scheme": "bearer"}},
        },
    }


def add_openapi(app: FastAPI, version: str) -> None:
    """Add the endpoint to `app`."""

    written = _written(version)

    @app.get(PATH, response_model=None)
    async def openapi() -> Response:
        return Response(written, media_type="application/json")


@cache
def _written(version: str) -> bytes:
    return json.dumps(document(version), separators=(",", ":")).encode()


def _operation(it: Operation) -> dict[str, Any]:
    guarded = it.path not in OPEN_PATHS
    described: dict[str, Any] = {"summary": it.about, "responses": {"200": _answered(it)}}
    for status in sorted((*it.errors, *((401,) if guarded else ()))):
        described["responses"][str(status)] = {"description": _WHEN[status], "content": _json(told.Error)}
    if it.answer is told.Health:
        unwell = {"description": "Something is wrong, and what.", "content": _json(told.Illness)}
        described["responses"][str(int(HTTPStatus.SERVICE_UNAVAILABLE))] = unwell
    if it.body is not None:
        described["requestBody"] = {"required": it.body_required, "content": _json(it.body)}
    if "{model}" in it.path:
        described["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    if guarded:
        described["security"] = [{}, {_KEY: []}]
    return described


def _answered(it: Operation) -> dict[str, Any]:
    if isinstance(it.answer, str):
        schema = {} if it.answer == "application/json" else {"type": "string"}
        return {"description": f"{it.about}.", "content": {it.answer: {"schema": schema}}}
    content = _json(it.answer)
    about = f"{it.about}."
    if it.events:
        content["text/event-stream"] = {}  # OpenAPI 3.1 has no words for what its events hold
        about = f"{about} In a stream each event holds one of {', '.join(kind.__name__ for kind in it.events)}."
    return {"description": about, "content": content}


def _json(kind: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _SCHEMAS + kind.__name__}}}


def _types() -> Iterator[type[BaseModel]]:
    for each in OPERATIONS:
        yield from (kind for kind in (each.answer, each.body) if isinstance(kind, type))
        yield from each.events
    yield from (told.Error, told.Illness)


def _schemas() -> dict[str, Any]:
    kinds = list(dict.fromkeys(_types()))
    _, found = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_SCHEMAS + "{model}")
    schemas: dict[str, Any] = _bare(found["$defs"])
    for kind in kinds:
        if issubclass(kind, Asked):
            schemas[kind.__name__]["properties"] |= _unserved(kind)
    return schemas


def _unserved(kind: type[Asked]) -> dict[str, Any]:
    """Return what is known of parameters that may only ask for nothing."""
    about = "Not served: whatever asks for something is refused."
    return {
        name: {"enum": [None, *values], "description": about} for name, values in {**NEUTRAL, **kind.neutral}.items()
    }


def _bare(schema: Any) -> Any:
    """Return a schema without titles, which say nothing new, and without defaults: null is as good as nothing."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _bare(value)
        for name, value in schema.items()
        if name not in ("title", "default") or (isinstance(value, dict) and "type" in value)
    }
