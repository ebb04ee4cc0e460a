"""File descriptors: a connection of ZeroMQ costs some, and running out of them ends the process, inside libzmq."""

from __future__ import annotations

import contextlib
import resource


def allow_many_descriptors() -> None:
    """Raise this process's soft limit of open files, 1,024 by default, to what it may raise it to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a system may not let us, and then the old limit holds
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
