"""What the step pipeline needs of a device: three ordered streams and events between them.

    copy_in    host ─► device │ step N+1's columns
    compute                   │ step N, then N+1 …           everything that lasts on the device is written only here
    copy_out   device ─► host │ step N-1's tokens

A stream runs its work in the order of submission; streams are ordered among each other by events alone. On CUDA the
work launches kernels and returns; on the CPU it is the computation, and a thread per stream runs it. Either way
`run`, `record` and `wait` return at once, so the same pipeline drives both and its tests need no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

_T = TypeVar("_T")


class Event(Protocol):
    """A point in a stream's order."""

    def done(self) -> bool:
        """Whether everything submitted before it has finished. Raises what broke the device, if that happened."""

    def seconds_since(self, earlier: Event) -> float:
        """Return the time between two events of one device that are done and were recorded `timed`."""

    def when(self) -> int | None:
        """Return the moment of a timed event that is done, in ns of the timeline's clock (see `Device.clock_error`).

        None if the device's clock could not be compared with it.
        """


class Stream(Protocol):
    """Work in order."""

    def run(self, work: Callable[[], None]) -> None:
        """Submit work, which must not raise: the pipeline catches what a step raises."""

    def record(self, *, timed: bool = False) -> Event:
        """Return an event that is done once all work submitted so far has finished; `timed` remembers when that was."""

    def mark(self) -> Event:
        """Return a timed event for this very point; only for work that the stream is running."""

    def wait(self, event: Event) -> None:
        """Let all work submitted from now on begin only after `event` of another stream."""


class Device(Protocol):
    """A place to compute."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors that last are."""

    @property
    def copy_in(self) -> Stream:
        """The stream of host-to-device copies."""

    @property
    def compute(self) -> Stream:
        """The one stream that computes."""

    @property
    def copy_out(self) -> Stream:
        """The stream of device-to-host copies."""

    def host_buffer(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Return zeroed host memory, [size], that the copy streams can reach without a detour (pinned, on CUDA)."""

    def prepare(self, work: Callable[[], _T]) -> _T:
        """Do what comes before any step, such as loading; return or raise what it does once it is done."""

    def fileno(self) -> int | None:
        """Return a descriptor that is readable after an event of `copy_out` is done; None if events must be asked."""

    def clear_wakeups(self) -> None:
        """Make the descriptor unreadable until the next event."""

    def set_clock(self) -> None:
        """Compare the device's clock with the host's, which goes on drifting away; takes some microseconds."""

    @property
    def clock_error(self) -> int:
        """By how many ns the moments of events may be off, at most."""

    def settle(self) -> None:
        """Wait for work that was submitted past the streams: what it wrote, all of them see."""

    def close(self) -> None:
        """Finish what was submitted and let go of everything."""
