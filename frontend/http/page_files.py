"""The live page: files that the server hands out as they are, read once."""

from __future__ import annotations

from importlib.resources import files
from pathlib import PurePath

from starlette.responses import Response

PAGE_PATH = "/timeline"

_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

_HEADERS = {
    "cache-control": "no-cache",  # a newer server's page shows at once
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The page is asked for the API key: it runs and reaches nothing but what this server serves."""


def _read() -> dict[str, tuple[bytes, str]]:
    found = {}
    for file in files("frontend.http").joinpath("page").iterdir():
        media_type = _MEDIA_TYPES.get(PurePath(file.name).suffix)
        if media_type is not None:
            path = PAGE_PATH if file.name == "index.html" else f"{PAGE_PATH}/page/{file.name}"
            found[path] = (file.read_bytes(), media_type)
    return found


_FILES = _read()

PAGE_PATHS = frozenset(_FILES)
"""Paths of the page and what belongs to it. None of them holds a secret: who may not ask for more may have them."""


def page_file(path: str) -> Response:
    """Return the file that is served at one of `PAGE_PATHS`."""
    content, media_type = _FILES[path]
    return Response(content, media_type=media_type, headers=_HEADERS)
