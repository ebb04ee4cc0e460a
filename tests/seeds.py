"""Seeds of random workloads: some in every run, the others in long ones."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(always: int, every: int) -> list[Any]:
    """Return 0 … every-1 as parameters, of which those from `always` on are for long runs only."""
    return [seed if seed < always else pytest.param(seed, marks=pytest.mark.long) for seed in range(every)]
