"""From the bytes of a request to a JSON object in which nothing is left that could surprise."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from math import isfinite
from typing import Any, NoReturn

from starlette.requests import Request

from frontend.http.errors import INVALID_VALUE, ApiError
from frontend.text_error import MOST_SHOWN, TextError, require_unicode, shown
from protocol.codec import MAX_FRAME_ITEMS
from protocol.fields import INT64_MAX, INT64_MIN

DEEPEST = 100
"""Levels of lists and objects within each other."""

MOST_ENTRIES = MAX_FRAME_ITEMS
"""In all lists and objects of a body together, as in a frame of other clients: each is a few bytes that take long to
read, and all others wait meanwhile."""

LONGEST_INTEGER = 100
"""Digits of an integer that are read. Far fewer fit into 64 bits; what thousands mean takes long to find out."""

BODY_SECONDS = 60.0
"""How long a body may take to arrive."""


async def read_body(request: Request, most_mib: float) -> bytes:
    """Return the body; raises `ApiError` if it is too large or too slow, or does not even say that it is JSON."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        came = f"got {shown(kind)}" if kind else "got none"
        raise ApiError(400, f"the body must be JSON, with content-type: application/json, {came}")
    packed = request.headers.get("content-encoding", "identity")
    if packed.lower() != "identity":
        raise ApiError(400, f"the body must come as it is, without content-encoding, got {shown(packed)}")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(request, most_mib)
    except TimeoutError:
        late = f"the body did not arrive within {BODY_SECONDS:g} s"
        raise ApiError(408, late, headers={"connection": "close"}) from None


def object_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is; raises `ApiError` for whatever else it is.

    JSON is taken strictly: UTF-8 (no half surrogate pairs, escaped ones included), no name twice in an object, no NaN
    and no Infinity, integers of 64 bits, `DEEPEST` levels, `MOST_ENTRIES`.
    """
    if not body:
        raise ApiError(400, "the body must be a JSON object, and is empty")
    if _has_too_many_entries(body):
        raise ApiError(413, f"the body has more than {MOST_ENTRIES} entries in lists and objects: send it in parts")
    try:
        document = json.loads(_text(body), object_pairs_hook=_object, parse_int=_integer, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        what = error.msg[:1].lower() + error.msg[1:].removesuffix(" at")
        where = f"line {error.lineno}, column {error.colno}"
        raise ApiError(400, f"the body is not valid JSON: {what} at {where}") from None
    except RecursionError:
        raise ApiError(400, f"the body nests deeper than {DEEPEST} levels") from None
    if not isinstance(document, dict):
        raise ApiError(400, f"the body must be a JSON object, got {shown(document)}")
    for name, value in document.items():
        _check(name, value)
    return document


async def _read(request: Request, most_mib: float) -> bytes:
    most_bytes = int(most_mib * 2**20)
    too_large = ApiError(413, f"the body is larger than the {most_mib:g} MiB that --max-body-mib allows")
    if int(request.headers.get("content-length", "0")) > most_bytes:
        raise too_large
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most_bytes:
            raise too_large
    return bytes(body)


def _text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8: {error.reason} at byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise ApiError(400, "the body begins with a byte order mark, which JSON does not have: leave it out")
    return text


def _has_too_many_entries(body: bytes) -> bool:
    """Whether a body that is JSON has more than `MOST_ENTRIES`, told without reading it.

    Each entry but the first of a list or object follows a comma, and each has two strings at most, its name and its
    value. Texts may hold as many commas as they like, so strings are left out if it comes to that.
    """
    if _marks(body) <= MOST_ENTRIES:
        return False
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 2 * 2 * MOST_ENTRIES:
        return True
    return _marks(b"".join(plain.split(b'"')[::2])) > MOST_ENTRIES


def _marks(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; which of two values was meant, if a name has them, nobody can know."""
    whole = dict(pairs)
    if len(whole) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ApiError(400, f"the body has {shown(twice)} twice in one object")
    return whole


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise ApiError(400, "an integer in the body does not fit into 64 bits")
    return int(digits)


def _no_number(literal: str) -> NoReturn:
    raise ApiError(400, f"the body is not valid JSON: {literal} is no number")


def _carried(name: str) -> str:
    """Return what of a name an answer can carry and should: no half surrogate pairs, and not megabytes."""
    return name[:MOST_SHOWN].encode(errors="replace").decode()


def _check(name: str, value: Any) -> None:
    """Raise `ApiError` for what `json` lets through; level by level, so that depth costs no stack."""
    try:
        level = [name, value]
        for _ in range(DEEPEST):
            if not level:
                return
            level = _below(level)
        text = f"nests deeper than {DEEPEST} levels"
    except TextError as error:
        text = str(error)
    param = _carried(name)
    raise ApiError(400, f"{param}: {text}", param=param, code=INVALID_VALUE)


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
        elif kind is float:
            if not isfinite(value):
                raise TextError("a number is too large")
        elif kind is str:
            require_unicode(value, "a string")
        elif kind is list:
            below += value
        elif kind is dict:
            below += value
            below += value.values()
    return below
