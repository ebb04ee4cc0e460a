"""A stop signal that no signal is needed for."""

from __future__ import annotations

import socket


class Stop:
    """Stands in for the signal: any thread may set it."""

    def __init__(self) -> None:
        self.is_set = False
        self._read, self._write = socket.socketpair()

    def fileno(self) -> int:
        return self._read.fileno()

    def set(self) -> None:
        self.is_set = True
        self._write.send(b"!")

    def close(self) -> None:
        self._read.close()
        self._write.close()
