"""How long a device takes for one thing that it does again and again, without what the host takes to ask for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpu_worker.device import Device

EVENT_SECONDS = 20e-6
"""How often an event is asked whether it is done."""

TRIES = 20
"""The fastest counts: what a machine can do is asked, not what it does beside others."""


def device_seconds(device: Device, work: Callable[[], object], tries: int = TRIES) -> NDArray[np.float64]:
    """Return how long the device took for each of so many calls of `work`, float64 [tries].

    They are all submitted before the first is over, and one more before them: the device goes from one to the next, and
    does not wait for the host in between.
    """

    def once() -> None:
        work()

    device.settle()
    device.compute.run(once)
    events = [device.compute.record(timed=True)]
    for _ in range(tries):
        device.compute.run(once)
        events.append(device.compute.record(timed=True))
    while not events[-1].done():
        time.sleep(EVENT_SECONDS)
    return np.array([ended.seconds_since(began) for began, ended in pairwise(events)])


def fastest(device: Device, work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes on the device at best."""
    return float(device_seconds(device, work).min())
