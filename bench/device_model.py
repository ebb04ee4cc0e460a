"""How long a device takes for a step: what a simulation computes with instead of one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from protocol.messages import Plan


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Seconds of a step, as a sum: weights are read once, each position's KV once a row, each prompt token multiplied.

        seconds = step + row · rows + position · (positions that the rows see) + token · (tokens beyond one a row)

    That is how decode behaves where memory is the limit, and prompts where matrix products are.
    """

    name: str
    step: float
    row: float
    position: float
    token: float

    def seconds(self, plan: Plan) -> float:
        """Return what a step takes."""
        rows, tokens = len(plan.slot), int(plan.count.sum(dtype=np.uint64))
        seen = int(plan.position.sum(dtype=np.uint64)) + tokens
        return self.step + self.row * rows + self.position * seen + self.token * (tokens - rows)


DEVICES = {
    # A loop of CUDA graphs on one H200, bf16, batch 32: 5.24 ms a step at 256 positions, 12.77 ms at 8,192. Prompts at
    # 55 % of 790 TFLOP/s, 2 operations a parameter and token.
    "8b-h200": DeviceModel("8b-h200", step=5.0e-3, row=0.0, position=29.7e-9, token=37e-6),
    # Ours there with Qwen3-0.6B's shapes: 3.0 ms a step at 64 rows of 300 positions.
    "0.6b-h200": DeviceModel("0.6b-h200", step=2.4e-3, row=0.0, position=28e-9, token=3e-6),
}
"""Measured, or reckoned from what was measured."""
