"""The default model for tests: from the cache, fetched by the first test that wants it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from checkpoint import fetch_default_model


@cache
def default_model() -> Path:
    """Return the path of the default model's GGUF file."""
    return fetch_default_model()


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    return default_model()
