"""The folder in which fetched models live."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $STEPAHEAD_CACHE, or ~/.cache/stepahead when that is unset; it may not exist yet."""
    chosen = os.environ.get("STEPAHEAD_CACHE")
    return Path(os.path.expanduser(chosen)) if chosen else Path.home() / ".cache" / "stepahead"
