"""What requests have to pass: is anybody there, is there room for them, do they ask for the model that is served."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from starlette.requests import Request

from frontend.callers import Callers
from frontend.core import SHUTTING_DOWN, FrontendCore
from frontend.http.body import read_body
from frontend.http.errors import ApiError, unavailable
from frontend.readers import Readers
from frontend.text_error import shown
from protocol.messages import Attached

MOST_CALLS = 4096
"""Requests that arrive or are answered at the same time; more are told to come back."""

LONG_BODY = 2**19
"""Bytes of JSON that are read in some milliseconds."""

_Read = TypeVar("_Read")


class Gate:
    """Lets requests in, their bodies one by one: what takes long to read is read in turn with what others say."""

    def __init__(self, core: FrontendCore, callers: Callers, most_mib: float, readers: Readers | None = None) -> None:
        """Look at the state of `core`; bodies have at most `most_mib`, and long ones are read by `readers`."""
        self._core = core
        self._callers = callers
        self._most_mib = most_mib
        self._readers = readers
        self._arriving = 0  # requests whose bodies are being read

    async def read(self, request: Request, make: Callable[[bytes], _Read], at_once: int = LONG_BODY) -> _Read:
        """Return what `make` makes of a request's body, on another thread if that has more than `at_once` bytes.

        Raises `ApiError`.
        """
        self.check_open()
        if self.full:
            raise unavailable(self.full)
        self._arriving += 1
        try:
            body = await read_body(request, self._most_mib)
            if self._readers is not None and len(body) > at_once:
                return await self._readers.read(len(body), lambda: make(body))
            return await self._callers.in_turn(lambda: make(body))
        except ApiError as error:
            if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                self._core.counters["refused"] += 1
            raise
        finally:
            self._arriving -= 1

    @property
    def full(self) -> str:
        """Why there is no room for one more; nothing if there is."""
        if len(self._callers) + self._arriving < MOST_CALLS:
            return ""
        return f"the server is overloaded: {MOST_CALLS} requests are being answered"

    def check_open(self) -> Attached:
        """Return what is served; raises `ApiError` if no request can be taken now."""
        served = self._core.served
        if self._core.draining:
            raise unavailable(f"{SHUTTING_DOWN} and takes no new requests")
        if served is None:
            raise unavailable("the server is starting: no scheduler is attached yet")
        return served

    def check_model(self, model: str | None, param: str | None = "model") -> Attached:
        """Return what is served, if it is `model` or that is None; raises `ApiError`, also as `check_open` does."""
        served = self.check_open()
        if model is not None and model != served.model:
            raise ApiError(
                404,
                f'there is no model {shown(model)} here; this server serves "{served.model}"',
                param=param,
                code="model_not_found",
            )
        return served
