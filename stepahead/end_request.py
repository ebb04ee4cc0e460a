"""What asks a thread to end."""

from __future__ import annotations

import os
import threading


class EndRequest:
    """Set once, by any thread. Its descriptor becomes readable then, so that no selector sleeps through it."""

    def __init__(self) -> None:
        """Begin unset."""
        self.is_set = False
        self._lock = threading.Lock()  # nobody writes to a descriptor that is somebody else's by now
        self._read, self._write = os.pipe()

    def set(self) -> None:
        """Ask."""
        with self._lock:
            self.is_set = True
            if self._write >= 0:
                os.write(self._write, b"!")

    def fileno(self) -> int:
        """Return the descriptor to select on."""
        return self._read

    def close(self) -> None:
        """Let go of the descriptors; nobody listens any more."""
        with self._lock:
            os.close(self._read)
            os.close(self._write)
            self._read = self._write = -1
