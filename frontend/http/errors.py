"""Errors as OpenAI's API shapes them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse, Response

RETRY_AFTER = {"retry-after": "1"}

INVALID_TYPE, INVALID_VALUE = "invalid_type", "invalid_value"
"""OpenAI's codes for what is wrong with most parameters."""

NO_RETRY = {"x-should-retry": "false"}
"""Keeps OpenAI's client, which tries again at whatever is 408 or at least 500, from that."""


class ApiError(Exception):
    """A request that is answered by an error; the text is for its user."""

    def __init__(
        self,
        status: int,
        text: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Say what is wrong; `param` names the parameter that is, `code` is one of OpenAI's where it has one."""
        super().__init__(text)
        self.status = status
        self.param = param
        self.code = code
        self._headers = headers

    def body(self) -> dict[str, Any]:
        """Return the error as JSON, in an answer or in a stream."""
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "rate_limit_error"
        else:
            kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the answer."""
        return JSONResponse(self.body(), self.status, self._headers)


def timed_out() -> ApiError:
    """Return the error for a request that has had all the time that it asked for."""
    return ApiError(
        504, "the answer was not complete within its timeout", param="timeout", code="timeout", headers=NO_RETRY
    )


def too_many(text: str) -> ApiError:
    """Return the error for a request that comes while too many others wait."""
    return ApiError(429, text, code="rate_limit_exceeded", headers=RETRY_AFTER)


def unavailable(text: str) -> ApiError:
    """Return the error for a request that another server, or this one a little later, may serve."""
    return ApiError(503, text, code="unavailable", headers=RETRY_AFTER)
