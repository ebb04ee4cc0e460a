"""What is to be known of a server before it is loaded."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from bench.contestant import BenchmarkError
from bench.serve_mix import WORDS

ANSWER_SECONDS = 30.0

_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""As the clients go, which know of no proxy."""


class ServeTarget:
    """An OpenAI-compatible server."""

    def __init__(self, base_url: str, api_key: str) -> None:
        """Take its address, with or without /v1 at the end; raises `BenchmarkError` if that is none."""
        url = base_url.rstrip("/")
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # such a port
            usable = False
        if not usable or not url.isascii() or not url.isprintable() or " " in url or parts.query or parts.fragment:
            raise BenchmarkError(f"--base-url must be like http://127.0.0.1:8000, not {base_url}")
        if not (api_key.isascii() and api_key.isprintable()):
            raise BenchmarkError("--api-key must be printable ASCII")
        self._root = url.removesuffix("/v1")
        self.base_url = self._root + "/v1"
        self._key = {"authorization": f"Bearer {api_key}"} if api_key else {}

    def model(self) -> str:
        """Return the name of the first model that it serves; raises `BenchmarkError`."""
        try:
            return str(self._ask(self.base_url + "/models")["data"][0]["id"])
        except (IndexError, KeyError, TypeError):
            raise BenchmarkError(f"{self.base_url}/models: no model is listed; say --model") from None
        except OSError as error:
            raise BenchmarkError(f"{self.base_url}/models: {_why(error)}") from None

    def token_pool(self, model: str) -> tuple[int, ...]:
        """Return ids of tokens that it has for common words, if it takes prompts of token ids; else nothing."""
        ids = sorted({*(self.tokens(model, " ".join(WORDS)) or ())})
        if not ids:
            return ()
        try:
            self._ask(f"{self.base_url}/completions", {"model": model, "prompt": ids[:4], "max_tokens": 1})
        except OSError:
            return ()
        return tuple(ids)

    def tokens(self, model: str, text: str) -> Sequence[int] | None:
        """Return a text's tokens, if it has vLLM's /tokenize."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        try:
            tokens = self._ask(f"{self._root}/tokenize", body)["tokens"]
        except (OSError, KeyError, TypeError):
            return None
        return tokens if isinstance(tokens, list) else None

    def _ask(self, url: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"content-type": "application/json", **self._key})
        try:
            with _DIRECTLY.open(request, timeout=ANSWER_SECONDS) as answer:
                return json.load(answer)
        except (ValueError, http.client.HTTPException) as error:
            raise OSError(f"it does not answer as an OpenAI-compatible server does: {error}") from None


def _why(error: OSError) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"status {error.code}"
    return str(error.reason if isinstance(error, urllib.error.URLError) else error)
