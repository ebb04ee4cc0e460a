"""The timeline over HTTP: the live page, the last seconds as it wants them, and the control of recordings."""

from __future__ import annotations

import asyncio
import os
import stat
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import FastAPI
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from frontend.http.body import object_of, read_body
from frontend.http.errors import INVALID_TYPE, INVALID_VALUE, ApiError, unavailable
from frontend.http.own_page import check_own_page
from frontend.http.page_files import PAGE_PATH, PAGE_PATHS, page_file
from frontend.text_error import MOST_SHOWN, shown
from frontend.timeline_desk import Question, TimelineUnavailableError
from protocol.messages import AskTimeline, StartTimeline, StopTimeline, TimelineState, View
from timeline.config import MOST_NAME_BYTES, wrong_name

NUMBERED_BY_THE_DESK = 0

_FRESH = {"cache-control": "no-store"}


class Desk(Protocol):
    """What is wanted of a `TimelineDesk`."""

    @property
    def view(self) -> View | None:
        """The newest view; None until one has come, or if the collector is gone."""

    def watch(self) -> None:
        """Keep views coming for a few seconds."""

    async def ask(self, question: Question) -> TimelineState:
        """Ask the collector; raises `TimelineUnavailableError` if none answers."""


class TimelineApi:
    """Answers of the endpoints."""

    def __init__(self, desk: Desk, most_mib: float) -> None:
        """Answer with what `desk` knows or is told; bodies have at most `most_mib`."""
        self._desk = desk
        self._most_mib = most_mib

    async def live(self) -> Response:
        """Return the last seconds, and have the next ones recorded: somebody looks."""
        self._desk.watch()
        view = self._desk.view
        return JSONResponse({"view": None if view is None else _view(view)}, headers=_FRESH)

    async def start(self, request: Request) -> Response:
        """Start a recording; the body, if there is one, may name the file."""
        check_own_page(request, "control recordings")
        file = _file(await read_body(request, self._most_mib)) if _has_body(request) else ""
        return await self._ask(StartTimeline(NUMBERED_BY_THE_DESK, file))

    async def stop(self, request: Request) -> Response:
        """End the recording."""
        check_own_page(request, "control recordings")
        return await self._ask(StopTimeline(NUMBERED_BY_THE_DESK))

    async def status(self) -> Response:
        """Say whether anything is recorded, or what was recorded last."""
        return await self._ask(AskTimeline(NUMBERED_BY_THE_DESK))

    async def file(self) -> Response:
        """Return the last recording that has ended, a piece at a time; no other file can be asked for."""
        state = await self._state(AskTimeline(NUMBERED_BY_THE_DESK))
        if state.recording:
            raise _conflict(f"{state.file} is still being recorded")
        if not state.file:
            raise ApiError(404, "nothing was recorded yet", code="no_recording")
        path = Path(state.file)
        found = await asyncio.to_thread(_look_at, path)
        if found is None:
            where = "it is gone, or the collector writes its files on another machine or in another folder"
            raise ApiError(404, f"{path} cannot be read here: {where}", code="no_recording")
        kind = "application/gzip" if path.suffix == ".gz" else "application/json"
        headers = _FRESH | {"x-content-type-options": "nosniff"}
        return FileResponse(path, media_type=kind, filename=path.name, stat_result=found, headers=headers)

    async def _ask(self, question: Question) -> Response:
        return JSONResponse(_state(await self._state(question)), headers=_FRESH)

    async def _state(self, question: Question) -> TimelineState:
        try:
            state = await self._desk.ask(question)
        except TimelineUnavailableError as error:
            raise unavailable(str(error)) from None
        if state.refusal:
            raise _conflict(state.refusal)
        return state


def add_timeline(app: FastAPI, desk: Desk, most_mib: float) -> None:
    """Add the live page and the timeline's endpoints, for bodies of at most `most_mib`, to `app`."""
    api = TimelineApi(desk, most_mib)

    async def page(request: Request) -> Response:
        return page_file(request.scope["path"])

    for path in PAGE_PATHS:
        app.get(path, response_model=None, include_in_schema=path == PAGE_PATH)(page)
    app.get("/timeline/live", response_model=None)(api.live)
    app.get("/timeline/status", response_model=None)(api.status)
    app.get("/timeline/file", response_model=None)(api.file)
    app.post("/timeline/start", response_model=None)(api.start)
    app.post("/timeline/stop", response_model=None)(api.stop)


class StartParameters(BaseModel):
    """POST /timeline/start, as far as a schema can say what `_file` checks."""

    model_config = ConfigDict(extra="forbid")
    file: Annotated[str, Field(max_length=MOST_NAME_BYTES, pattern=r"^$|^[^./\\][^/\\]*\.json(\.gz)?$")] | None = None


def _look_at(path: Path) -> os.stat_result | None:
    """Return what is known of a file; None if it can't be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) and os.access(path, os.R_OK) else None


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def _file(body: bytes) -> str:
    """Return the name that a body gives the file, "" if none; raises `ApiError` if it is no plain name."""
    document = object_of(body)
    unknown = next((name for name in document if name != "file"), None)
    if unknown is not None:
        raise ApiError(400, f"{shown(unknown)} is unknown; only file may be given", param=unknown[:MOST_SHOWN])
    file = document.get("file")
    if file is None or file == "":
        return ""
    if not isinstance(file, str):
        raise _bad_file(f"must be a string, got {shown(file)}", INVALID_TYPE)
    problem = wrong_name(file)
    if problem:
        raise _bad_file(problem, INVALID_VALUE)
    return file


def _conflict(text: str) -> ApiError:
    return ApiError(409, text, code="timeline_conflict")


def _bad_file(text: str, code: str) -> ApiError:
    return ApiError(400, f"file: {text}", param="file", code=code)


def _state(state: TimelineState) -> dict[str, Any]:
    return {
        "recording": state.recording,
        "file": state.file or None,
        "seconds": state.seconds,
        "spans": state.spans,
        "bytes": state.bytes,
        "problem": state.problem or None,
    }


def _view(view: View) -> dict[str, Any]:
    """Return a view with times in ms; columns are base64 of a byte a bin."""
    return {
        "start_ms": view.start / 1e6,
        "bin_ms": view.bin / 1e6,
        "known": view.known,
        "devices": view.devices,
        "device": _packed(view.device),
        "scheduler": _packed(view.scheduler),
        "worker": _packed(view.worker),
        "both": _packed(view.both),
        "busy": view.busy,
        "step_ms": view.step_seconds * 1e3,
        "tokens_per_second": view.tokens_per_second,
        "running": view.running,
        "waiting": view.waiting,
        "blocks_used": view.blocks_used,
        "blocks": view.blocks,
    }


def _packed(column: NDArray[Any]) -> str:
    return b64encode(column.tobytes()).decode()
