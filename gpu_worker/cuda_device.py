"""An NVIDIA GPU as a device: three CUDA streams and CUDA events, nothing on the default stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from gpu_worker.cuda_clock import CUDAClock
from gpu_worker.device import Event

_T = TypeVar("_T")


class CUDAEvent:
    """A CUDA event that was recorded on a stream."""

    def __init__(self, stream: torch.cuda.Stream, timed: bool, clock: CUDAClock) -> None:
        """Record on `stream`; `clock` dates it."""
        self._clock = clock
        self.event = torch.cuda.Event(enable_timing=timed)
        self.event.record(stream)

    def done(self) -> bool:
        """Whether the GPU has got there. Raises what broke the device."""
        return bool(self.event.query())

    def seconds_since(self, earlier: Event) -> float:
        """Return the time between the two, by the GPU's clock."""
        assert isinstance(earlier, CUDAEvent)
        return float(earlier.event.elapsed_time(self.event)) / 1e3

    def when(self) -> int | None:
        """Return its moment by the host's clock; None before the clocks were compared."""
        return self._clock.when(self.event)


class CUDAStream:
    """Work is launched at once, by the caller's thread, into one CUDA stream."""

    def __init__(self, device: torch.device, clock: CUDAClock) -> None:
        """Make the stream; `clock` dates its events."""
        self._clock = clock
        self._stream = torch.cuda.Stream(device)

    def run(self, work: Callable[[], None]) -> None:
        """Launch what `work` launches into the stream."""
        torch.cuda.set_stream(self._stream)  # `settle` puts it back, not each of a step's runs
        work()

    def record(self, *, timed: bool = False) -> CUDAEvent:
        """Return an event behind all work launched so far."""
        return CUDAEvent(self._stream, timed, self._clock)

    def mark(self) -> CUDAEvent:
        """Return a timed event behind what the running work has launched."""
        return self.record(timed=True)

    def wait(self, event: Event) -> None:
        """Hold up what is launched from now on until `event` is done; the host does not wait."""
        assert isinstance(event, CUDAEvent)
        self._stream.wait_event(event.event)


class CUDADevice:
    """The current GPU. CUDA has no descriptor for its events: who waits asks them in turn with the socket."""

    def __init__(self) -> None:
        """Make the streams."""
        # cuDNN's attention plans anew for every shape, 1.6 ms each on an H200, and a step's lengths are always new.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._clock = CUDAClock(self.torch_device)
        self.copy_in = CUDAStream(self.torch_device, self._clock)
        self.compute = CUDAStream(self.torch_device, self._clock)
        self.copy_out = CUDAStream(self.torch_device, self._clock)

    def host_buffer(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Return zeroed pinned memory: only from there is a copy asynchronous."""
        return torch.zeros(size, dtype=dtype, pin_memory=True)

    def prepare(self, work: Callable[[], _T]) -> _T:
        """Do `work` on the default stream and wait for the GPU."""
        torch.cuda.set_stream(torch.cuda.default_stream(self.torch_device))
        result = work()
        self.settle()
        return result

    def fileno(self) -> None:
        """Return None: events must be asked."""
        return None

    def clear_wakeups(self) -> None:
        """Do nothing: there are none."""

    def set_clock(self) -> None:
        """Take a new anchor between the GPU's clock and the host's."""
        self._clock.set()

    @property
    def clock_error(self) -> int:
        """By how many ns the moments of events may be off, at most."""
        return self._clock.error

    def settle(self) -> None:
        """Wait for all that was launched on any stream; what comes past the streams is the default one's again."""
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.set_stream(torch.cuda.default_stream(self.torch_device))

    def close(self) -> None:
        """Finish what was launched."""
        self.settle()
