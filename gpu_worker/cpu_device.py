"""The CPU as a device: a thread for each stream, so that one batch computes while the next is queued behind it.

torch computes with a team of OpenMP threads for each thread that calls it. With more threads in all teams than cores,
idle teams included, libgomp puts each to sleep between any two operations instead of letting it wait awake, and waking
takes longer than most operations of a decode step. So there must be one team: that of the compute stream.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

import torch

from gpu_worker.device import Event
from timeline.recorder import nanoseconds

_T = TypeVar("_T")


def compute_with(threads: int) -> None:
    """Let torch use so many threads for what the calling thread asks of it; 1 is no team at all."""
    torch.get_num_threads()  # else the thread's first operation would take the number of whoever set one last
    torch.set_num_threads(threads)


class CPUEvent:
    """Set by the stream's thread when it gets there."""

    def __init__(self, wake: Callable[[], None] | None) -> None:
        """Begin not done; `wake` is called when it is."""
        self._flag = threading.Event()
        self._wake = wake
        self._when = 0

    def done(self) -> bool:
        """Whether the stream has got there."""
        return self._flag.is_set()

    def seconds_since(self, earlier: Event) -> float:
        """Return the time between the two."""
        assert isinstance(earlier, CPUEvent)
        return (self._when - earlier._when) / 1e9

    def when(self) -> int:
        """Return when it was set; the host's clock is the device's."""
        return self._when

    def fire(self) -> None:
        """Be done."""
        self._when = nanoseconds()
        self._flag.set()
        if self._wake is not None:
            self._wake()

    def block(self) -> None:
        """Wait until it is done; for streams' threads."""
        self._flag.wait()


class CPUStream:
    """One thread that runs what it is given, in order."""

    def __init__(self, name: str, threads: int = 1, wake: Callable[[], None] | None = None) -> None:
        """Start the thread, which computes with `threads`; `wake` is called after each of the stream's events."""
        self._wake = wake
        self._threads = threads
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], None]) -> None:
        """Submit work."""
        self._work.put(work)

    def record(self, *, timed: bool = False) -> CPUEvent:
        """Return an event behind all work submitted so far; here they are all timed."""
        event = CPUEvent(self._wake)
        self._work.put(event.fire)
        return event

    def mark(self) -> CPUEvent:
        """Return an event that is done: it is the stream's thread that asks."""
        event = CPUEvent(None)
        event.fire()
        return event

    def wait(self, event: Event) -> None:
        """Hold up what is submitted from now on until `event` is done."""
        assert isinstance(event, CPUEvent)
        self._work.put(event.block)

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        compute_with(self._threads)
        while (work := self._work.get()) is not None:
            work()


class CPUDevice:
    """Streams on threads; an eventfd tells the poll loop that a result is there."""

    torch_device = torch.device("cpu")
    clock_error = 0

    def __init__(self, threads: int | None = None) -> None:
        """Start the streams; the computing one has `threads` threads, or as many as torch thinks right."""
        own = torch.get_num_threads()  # asked before the streams set theirs, which this thread would take for its own
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.copy_in = CPUStream("copy-in")
        self.compute = CPUStream("compute", threads or own)
        self.copy_out = CPUStream("copy-out", wake=self._wake)

    def host_buffer(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Return zeroed memory."""
        return torch.zeros(size, dtype=dtype)

    def prepare(self, work: Callable[[], _T]) -> _T:
        """Do `work` on the computing thread, whose team it may use."""
        done: Future[_T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self.compute.run(run)
        return done.result()

    def fileno(self) -> int:
        """Return the eventfd."""
        return self._wakeup

    def clear_wakeups(self) -> None:
        """Read the eventfd empty."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)

    def set_clock(self) -> None:
        """Do nothing: it is the host's."""

    def settle(self) -> None:
        """Do nothing: the CPU has done what it was told when the call returns."""

    def close(self) -> None:
        """Finish all work, in the order in which streams wait for each other, and end the threads."""
        self.copy_in.close()
        self.compute.close()
        self.copy_out.close()
        os.close(self._wakeup)

    def _wake(self) -> None:
        os.eventfd_write(self._wakeup, 1)
