"""Parent and child: the parent's death ends the child, and the child tells how its start goes.

Two pipes join them from before anything is loaded. Nobody writes to the first: when the parent is gone, however it
went, the kernel closes the other end, and the child ends at once. On the second the child writes lines: what it is
doing and how much of it is done, then `ready`, or `failed` and why. One that was asked to end, and finishes its work
first, says `drained` then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
from types import TracebackType
from typing import Self

from protocol.logs import TEXT, LogConfig, json_line
from protocol.progress_lines import ProgressLines

FLAG = "--lifeline"
"""The option that hands a child its two descriptors, as READ,WRITE."""

READY = "ready"
FAILED = "failed"
PROGRESS = "progress"
SHARE = "share"
DRAINED = "drained"


class Lifeline:
    """The child's end. A process that was started by hand has no descriptors: it tells its terminal instead."""

    def __init__(self, name: str, descriptors: str | None, logs: LogConfig = TEXT) -> None:
        """Take `READ,WRITE` as given by the parent, or None; from now on the parent's death ends this process.

        `name` is what the process calls itself on a terminal, where lines are as `logs` says.
        """
        self._name = name
        self._json = logs.json
        self._lines = ProgressLines(sys.stderr, redraw=not self._json)
        self._write: int | None = None
        if descriptors is None:
            return
        read, self._write = (int(part) for part in descriptors.split(","))
        os.set_inheritable(read, False)
        os.set_inheritable(self._write, False)
        _let_kernel_end_us(read)
        # Only the parent decides about Ctrl-C: it reaches the whole terminal group, but children end in order.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with_parent, args=(read,), name="lifeline", daemon=True).start()

    def progress(self, text: str) -> None:
        """Tell the parent what the start is busy with."""
        self._tell(PROGRESS, text)

    def share(self, done: float, text: str) -> None:
        """Tell the parent that `done`, from 0 to 1, of what takes long is over; of interest until the next news."""
        if self._write is None:
            self._lines.show(self._name, done, self._line(text))
        else:
            self._tell(SHARE, f"{done:.4f} {text}")

    def ready(self) -> None:
        """Tell the parent that this process serves from now on."""
        self._tell(READY, "")

    def failed(self, text: str) -> None:
        """Tell the parent in one line why this process can't start."""
        self._tell(FAILED, text)

    def drained(self) -> bool:
        """Tell the parent that all work is done; return whether there is one, which ends this process in its turn."""
        self._tell(DRAINED, "")
        return self._write is not None

    def _tell(self, what: str, text: str) -> None:
        if self._write is None:
            self._lines.say(self._name, self._line(text or what, "error" if what == FAILED else "info"))
        else:
            line = f"{what} {' '.join(text.split())}\n"
            with contextlib.suppress(OSError):  # the parent is gone; the other pipe is about to end us
                os.write(self._write, line.encode(errors="replace"))

    def _line(self, text: str, level: str = "info") -> str:
        return json_line(self._name, text, level) if self._json else f"{self._name}: {text}"


def _let_kernel_end_us(read: int) -> None:
    """Ask for SIGIO, whose default is to end the process, when the other end closes.

    The thread that blocks on the pipe needs the interpreter to act, which a long call into C may keep for minutes.
    Where the system has no such signals for pipes, the thread is all there is.
    """
    with contextlib.suppress(OSError):
        fcntl.fcntl(read, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(read, fcntl.F_SETFL, fcntl.fcntl(read, fcntl.F_GETFL) | os.O_ASYNC)


def _end_with_parent(read: int) -> None:
    while os.read(read, 1):
        pass
    os._exit(1)


class ChildPipes:
    """The parent's ends of one child's pipes: a context, so that a failed start leaks nothing."""

    def __init__(self) -> None:
        """Make both pipes."""
        self._child_read, self._keep_alive = os.pipe()
        self.status, self._child_write = os.pipe()

    @property
    def arguments(self) -> list[str]:
        """The command-line arguments that hand the child its ends."""
        return [FLAG, f"{self._child_read},{self._child_write}"]

    @property
    def pass_fds(self) -> tuple[int, int]:
        """The descriptors that the child inherits."""
        return self._child_read, self._child_write

    def started(self) -> None:
        """Close the child's ends here: only then does its death close the status pipe."""
        os.close(self._child_read)
        os.close(self._child_write)
        self._child_read = self._child_write = -1

    def read_status(self) -> bytes:
        """Return what the child has written, at least a byte; nothing means that the child is gone."""
        return os.read(self.status, 2**16)

    def close(self) -> None:
        """Let go of the child; it ends itself if it still runs."""
        for descriptor in (self._child_read, self._child_write, self._keep_alive, self.status):
            if descriptor >= 0:
                os.close(descriptor)
        self._child_read = self._child_write = self._keep_alive = self.status = -1

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what is open."""
        self.close()
