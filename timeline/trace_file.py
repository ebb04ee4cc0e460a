"""A trace file that is complete at every moment: after a kill, on a full disk, while it is being written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import zlib
from pathlib import Path
from typing import Protocol

_HEAD = b'{"displayTimeUnit":"ms","otherData":%s,"traceEvents":[\n'
_TAIL = b"\n]}\n"

_GZIP = 16 + zlib.MAX_WBITS
_FAST = 1


class _Coder(Protocol):
    """Turns text into what stands in the file. It never changes: a write that fails has not been."""

    def put(self, text: bytes) -> tuple[bytes, _Coder]:
        """Return the bytes of more text, and the coder for what follows them."""

    def ending(self, text: bytes) -> bytes:
        """Return the bytes of the last text."""


class _Plain:
    def put(self, text: bytes) -> tuple[bytes, _Coder]:
        return text, self

    def ending(self, text: bytes) -> bytes:
        return text


class _Gzip:
    def __init__(self, state: zlib._Compress | None = None) -> None:
        self._state = state or zlib.compressobj(_FAST, wbits=_GZIP)

    def put(self, text: bytes) -> tuple[bytes, _Coder]:
        state = self._state.copy()
        return state.compress(text) + state.flush(zlib.Z_SYNC_FLUSH), _Gzip(state)

    def ending(self, text: bytes) -> bytes:
        state = self._state.copy()
        return state.compress(text) + state.flush()


class TraceFile:
    """Events are appended; behind them the file's end stands at all times, and moves.

    head │ events │ more events │ ]}
                                ▲ here the next ones are written, and then the end again
    """

    def __init__(self, path: Path, about: bytes, most_bytes: int) -> None:
        """Make the file, in place of one that is there; `about` is JSON for "otherData". Raises `OSError`."""
        self.path = path
        self._most_bytes = most_bytes
        self._coder: _Coder = _Gzip() if path.suffix == ".gz" else _Plain()
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        self._at = 0  # where the end begins
        self._separator = b""
        try:
            self._take_over()
            self._write(_HEAD % about)
        except OSError:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Bytes, the end not counted."""
        return self._at

    @property
    def full(self) -> bool:
        """Whether it has reached its bound."""
        return self._at >= self._most_bytes

    def append(self, events: list[str]) -> None:
        """Write events, JSON objects without a line break each. Raises `OSError`; then the file is as it was."""
        if events:
            self._write(self._separator + ",\n".join(events).encode())
            self._separator = b",\n"

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _take_over(self) -> None:
        """Empty the file, unless another one writes it: two would leave nothing that can be read."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "another recording is being written to it") from None
        except OSError:
            pass  # this file system knows no locks
        if stat.S_ISREG(os.fstat(self._file).st_mode):
            os.ftruncate(self._file, 0)

    def _write(self, text: bytes) -> None:
        """Write over the end, then the end; if that fails, the old end. Room for it there was."""
        data, coder = self._coder.put(text)
        old_end = os.pread(self._file, 2**16, self._at)
        try:
            _write_all(self._file, data + coder.ending(_TAIL), self._at)
        except OSError:
            with contextlib.suppress(OSError):  # what is told is why the writing failed
                os.ftruncate(self._file, self._at)
                _write_all(self._file, old_end, self._at)
            raise
        self._at += len(data)
        self._coder = coder


def _write_all(file: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written
