"""From the bytes of a request to a JSON object in which nothing is left that could surprise."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import Request

from frontend.http.errors import ApiError
from frontend.text_error import TextError, require_unicode
from protocol.fields import INT64_MAX, INT64_MIN

DEEPEST = 100
"""Levels of lists and objects within each other."""


BODY_SECONDS = 60.0
"""How long a body may take to arrive."""


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Return the body; raises `ApiError` if it is too large or too slow, or does not even say that it is JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(400, f"the body must be JSON, with content-type: application/json; this one is {kind or 'none'}")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(request, most_bytes)
    except TimeoutError:
        late = f"the body did not arrive within {BODY_SECONDS:g} s"
        raise ApiError(408, late, headers={"connection": "close"}) from None


def object_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is; raises `ApiError` for whatever else it is.

    JSON is taken strictly: UTF-8 (no half surrogate pairs, escaped ones included), no NaN and no Infinity, integers of
    64 bits, `DEEPEST` levels.
    """
    try:
        document = json.loads(body.decode(), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ApiError(400, f"the body nests deeper than {DEEPEST} levels") from None
    except ValueError as error:  # json's, and Python's own for integers of thousands of digits
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ApiError(400, "the body must be a JSON object")
    for name, value in document.items():
        _check(name, value)
    return document


async def _read(request: Request, most_bytes: int) -> bytes:
    too_large = ApiError(413, f"the body is larger than {most_bytes} bytes")
    if int(request.headers.get("content-length", "0")) > most_bytes:
        raise too_large
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most_bytes:
            raise too_large
    return bytes(body)


def _no_number(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is no number")


def _check(name: str, value: Any) -> None:
    """Raise `ApiError` for what `json` lets through; level by level, so that depth costs no stack."""
    try:
        level = [name, value]
        for _ in range(DEEPEST):
            if not level:
                return
            level = _below(level)
    except TextError as error:
        raise ApiError(400, str(error), param=name.encode(errors="replace").decode()) from None
    raise ApiError(400, f"{name}: nests deeper than {DEEPEST} levels", param=name)


def _below(level: list[Any]) -> list[Any]:
    """Return what values hold; raises `TextError` if one is a text or a number that nothing here can carry.

    A body may hold millions of them, and all other clients wait meanwhile.
    """
    below: list[Any] = []
    for value in level:
        kind = type(value)
        if kind is int:
            if not INT64_MIN <= value <= INT64_MAX:
                raise TextError("an integer does not fit into 64 bits")
        elif kind is str:
            require_unicode(value, "a string")
        elif kind is list:
            below += value
        elif kind is dict:
            below += value
            below += value.values()
    return below
