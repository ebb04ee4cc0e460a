"""What a process writes to standard error, line by line: text for people, or JSON for programs that gather it."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

from protocol.options import option

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""What the request that is being served is called by whoever asked. It is a label: two may share it."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How lines on standard error are written."""

    log_format: Literal["text", "json"] = option(
        "what lines on standard error are: text for people, or a JSON object each, with time, level and process", "text"
    )

    @property
    def json(self) -> bool:
        """Whether each line is a JSON object."""
        return self.log_format == "json"


TEXT = LogConfig()


def about_request(name: str, **fields: Any) -> dict[str, Any]:
    """Return `extra` for a line that is about a request, with whatever else a JSON object shall say of it."""
    return {"request": name, "fields": fields}


def json_line(process: str, message: str, level: str = "info", *, at: float | None = None, **more: Any) -> str:
    """Return an object as a line; `at` is in seconds since 1970, now if None."""
    moment = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    shown = moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    return json.dumps({"time": shown, "level": level, "process": process, "message": message, **more}, default=str)


class _TextFormatter(logging.Formatter):
    """`worker: what happened`, and behind it whose request it happened to."""

    def __init__(self, process: str) -> None:
        super().__init__(f"{process.replace('%', '%%')}: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        name = _request(record)
        return super().formatMessage(record) + (f" (request {name})" if name else "")


class _JsonFormatter(logging.Formatter):
    """One object, in one line, exceptions and all."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        more: dict[str, Any] = {}
        if name := _request(record):
            more["request"] = name
        more |= getattr(record, "fields", {})
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            more["error"] = f"{type(error).__name__}: {error}"
            more["trace"] = "".join(traceback.format_exception(error))
        level = record.levelname.lower()
        return json_line(self._process, record.getMessage(), level, at=record.created, **more)


def _request(record: logging.LogRecord) -> str:
    return str(getattr(record, "request", "") or REQUEST.get())


def set_up_logs(process: str, logs: LogConfig) -> None:
    """Have what this process logs come to standard error as `logs` says: ours from `info` on, others' from `warning`.

    As JSON, what would else be a traceback or a warning of several lines is one, too: uncaught exceptions, those of
    threads, and Python's warnings.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(process) if logs.json else _TextFormatter(process))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("stepahead").setLevel(logging.INFO)
    if logs.json:
        logging.captureWarnings(True)
        sys.excepthook = _uncaught
        threading.excepthook = _uncaught_in_thread


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("stepahead").critical("an exception that nobody caught", exc_info=(kind, error, trace))


def _uncaught_in_thread(said: threading.ExceptHookArgs) -> None:
    if said.exc_value is not None:
        _uncaught(said.exc_type, said.exc_value, said.exc_traceback)
