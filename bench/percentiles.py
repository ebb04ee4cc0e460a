"""Percentiles as reports have them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def percentiles(values: NDArray[np.float64]) -> dict[str, float]:
    """Return the 50th and the 99th percentile of some values; zeros of none."""
    p50, p99 = np.percentile(values, (50, 99)).tolist() if len(values) else (0.0, 0.0)
    return {"p50": p50, "p99": p99}
