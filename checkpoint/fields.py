"""Reading a value of the right kind out of a dictionary that someone else wrote."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeGuard

from checkpoint.errors import CheckpointError

LARGEST_SIZE = 2**24
"""No dimension of a model is larger; beyond it lie damaged files, and products that no tensor can have."""

MOST_LAYERS = 10_000


class Fields:
    """A view of `values` that names `source` and the key in every complaint."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source

    def whole(self, key: str, default: int | None = None, most: int = LARGEST_SIZE, least: int = 1) -> int:
        """Return an integer, a positive one unless `least` says otherwise; without a default the key must be there."""
        value = self.values.get(key)
        if value is None and default is not None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            kind = "a positive integer" if least == 1 else f"an integer from {least} on"
            raise CheckpointError(f"{self.source}: {key} must be {kind}, not {value!r}")
        if value > most:
            raise CheckpointError(f"{self.source}: {key} must be at most {most}, not {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number; without a default the key must be there."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not _is_positive(value):
            raise CheckpointError(f"{self.source}: {key} must be a positive number, not {value!r}")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of positive finite numbers; the key must be there."""
        values = self.values.get(key)
        if not isinstance(values, list) or not values or not all(_is_positive(value) for value in values):
            raise CheckpointError(f"{self.source}: {key} must be a list of positive numbers")
        return tuple(float(value) for value in values)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.source}: {key} must be true or false, not {value!r}")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Return one token id or a list of them as a tuple; empty when the key is absent, null or negative."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or i >= 2**32 for i in ids):
            raise CheckpointError(f"{self.source}: {key} must be token ids, not {value!r}")
        return tuple(i for i in ids if i >= 0)


def _is_positive(value: Any) -> TypeGuard[int | float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= sys.float_info.max
