"""The routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from frontend.callers import Callers
from frontend.config import ServeConfig
from frontend.core import FAILED, SHUTTING_DOWN, FrontendCore
from frontend.counts import Counts
from frontend.http.answer import Answer, Telling
from frontend.http.body import object_of
from frontend.http.cache import add_cache
from frontend.http.errors import INVALID_VALUE, RETRY_AFTER, ApiError, timed_out, too_many, unavailable
from frontend.http.gate import Gate
from frontend.http.guard import KeyGuard
from frontend.http.metrics import add_metrics
from frontend.http.openapi import add_openapi
from frontend.http.parameters import ChatParameters, CompletionParameters, Parameters, parameters
from frontend.http.request_id import HEADER, RequestId
from frontend.http.response_parameters import ResponseParameters
from frontend.http.response_shape import ResponseShape
from frontend.http.shapes import ChatChoices, CompletionChoices, Shape
from frontend.http.timeline import Desk, add_timeline
from frontend.http.tokens import add_tokens
from frontend.model_text import ModelText
from frontend.readers import Readers
from frontend.text_error import MOST_SHOWN
from protocol.awake_clock import AwakeClock
from protocol.logs import REQUEST
from protocol.messages import Attached, Chunk, Finish, Generate

_Kind = TypeVar("_Kind", bound=Parameters)

_Tell = Callable[[_Kind, str, ModelText], Telling]
"""Says how an answer is told: to what was asked, by the model of that name, which reads and writes text so."""


def _choices(choices: CompletionChoices | ChatChoices) -> _Tell[CompletionParameters | ChatParameters]:
    def shape(asked: CompletionParameters | ChatParameters, model: str, text: ModelText) -> Telling:
        usage = asked.include_usage, asked.continuous_usage
        return Shape(choices, model, *usage, asked.samples, text.pieces, asked.prompts(text))

    return shape


def _response(asked: ResponseParameters, model: str, text: ModelText) -> Telling:
    return ResponseShape(asked, model, text.pieces)


class Api:
    """Answers of the endpoints, each about the state of the core at this moment."""

    def __init__(self, core: FrontendCore, callers: Callers, clock: AwakeClock, gate: Gate) -> None:
        """Answer for `core`; `clock` shows the time of the process's last turn."""
        self._core = core
        self._callers = callers
        self._clock = clock
        self._gate = gate
        self._started = int(datetime.now(UTC).timestamp())

    async def answer(self, request: Request, kind: type[_Kind], tell: _Tell[_Kind]) -> Response:
        """Answer a POST that asks for text, by `kind` of parameters."""
        asks, shape = await self._gate.read(request, lambda body: self._read(body, kind, tell))
        explain = partial(self._explain, called=kind.called, many=len(asks) > 1)
        return Answer(self._callers.join(), asks, shape, explain)  # which leaves again, whatever happens

    async def models(self) -> Response:
        """List the one model."""
        return JSONResponse({"object": "list", "data": [self._model(self._gate.check_open())]})

    async def model(self, model: str) -> Response:
        """Describe a model."""
        return JSONResponse(self._model(self._gate.check_model(model, None)))

    async def health(self) -> Response:
        """Say whether all processes are well, and what is wrong if they are not."""
        return _state(SHUTTING_DOWN if self._core.draining else self._core.trouble(self._clock.now))

    async def ready(self) -> Response:
        """Say whether a request that came now would be served, and why not if it would not be."""
        return _state(self._core.closed(self._clock.now) or self._gate.full)

    async def version(self) -> Response:
        """Say which version this is."""
        return JSONResponse({"version": _version()})

    def _read(self, body: bytes, kind: type[_Kind], tell: _Tell[_Kind]) -> tuple[list[Generate], Telling]:
        asked = parameters(kind, object_of(body))
        served = self._gate.check_model(asked.model)  # and whether it is still open: bodies take their time
        return asked.generates(), tell(asked, served.model, self._core.text)

    def _model(self, served: Attached) -> dict[str, Any]:
        return {
            "id": served.model,
            "object": "model",
            "created": self._started,
            "owned_by": "stepahead",
            "max_model_len": served.max_model_len,
        }

    def _explain(self, chunk: Chunk, *, called: Mapping[str, str], many: bool) -> ApiError:
        """Say what was wrong with a request, or of `many` with which prompt of it.

        `called` has the names of the fields of `Generate` that are another here.
        """
        if chunk.finish == Finish.REFUSED and not self._core.draining:
            param = called.get(chunk.at_fault, chunk.at_fault) or None
            where = f"prompt[{chunk.request}]: " if many and param == "prompt" else ""
            return ApiError(400, where + chunk.error, param=param, code=chunk.code or (param and INVALID_VALUE))
        if chunk.finish == Finish.TIMEOUT:
            return timed_out()
        if chunk.finish == Finish.BUSY and not self._core.draining:
            return too_many(chunk.error)
        text = chunk.error or f"the request ended early: {Finish(chunk.finish).name.lower()}"
        # Where a process is missing, another try may succeed; else it is this request that can't be computed.
        if self._core.draining or self._core.trouble(self._clock.now):
            return unavailable(text)
        return ApiError(500, text)


def make_app(
    core: FrontendCore,
    callers: Callers,
    clock: AwakeClock,
    config: ServeConfig,
    desk: Desk,
    counts: Counts | None = None,
    readers: Readers | None = None,
) -> FastAPI:
    """Return the application: OpenAI's endpoints, those about the server's state, of tokens, cache and timeline.

    `counts` are shared with others at the same address, if there are any. `readers` read long bodies; without them
    that, too, is done in turn.
    """
    gate = Gate(core, callers, config.max_body_mib, readers)
    api = Api(core, callers, clock, gate)
    app = FastAPI(openapi_url=None, redirect_slashes=False)

    @app.post("/v1/completions", response_model=None)
    async def completions(request: Request) -> Response:
        return await api.answer(request, CompletionParameters, _choices(CompletionChoices()))

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: Request) -> Response:
        return await api.answer(request, ChatParameters, _choices(ChatChoices()))

    @app.post("/v1/responses", response_model=None)
    async def responses(request: Request) -> Response:
        return await api.answer(request, ResponseParameters, _response)

    app.get("/v1/models", response_model=None)(api.models)
    app.get("/v1/models/{model:path}", response_model=None)(api.model)
    app.get("/health", response_model=None)(api.health)
    app.get("/ready", response_model=None)(api.ready)
    app.get("/version", response_model=None)(api.version)
    add_metrics(app, core, clock, counts)
    add_tokens(app, core, gate)
    add_cache(app, core, callers, clock, gate)
    add_timeline(app, desk, config.max_body_mib)
    add_openapi(app, _version())
    paths = [
        route.path
        for route in app.routes
        if isinstance(route, Route) and route.include_in_schema and not route.param_convertors
    ]

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        core.request_log.unserved(REQUEST.get(), Finish.REFUSED, error.status, error.param, error.code)
        return error.response()

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        what = error.detail.lower()
        if error.status_code == HTTPStatus.NOT_FOUND:
            what = f"there is no such path here; there are {', '.join(paths)}"
        elif error.headers and "Allow" in error.headers:
            what = f"{what}, only {error.headers['Allow']} is"
        text = f"{request.method} {request.url.path[:MOST_SHOWN]}: {what}"
        return ApiError(error.status_code, text, headers=error.headers).response()

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # to nobody

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return ApiError(500, FAILED, headers={HEADER.decode(): REQUEST.get()}).response()

    if config.api_key is not None:
        app.add_middleware(KeyGuard, key=config.api_key)
    if config.allowed_origin:  # around the key: what a browser asks beforehand comes without
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[HEADER.decode()],
        )
    app.add_middleware(RequestId)
    return app


def _state(trouble: str) -> Response:
    if trouble:
        return JSONResponse({"status": "unavailable", "reason": trouble}, 503, RETRY_AFTER)
    return JSONResponse({"status": "ok"})


def _version() -> str:
    try:
        return version("stepahead")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "0.1.0"
