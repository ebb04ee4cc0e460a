"""What a process holds that is nobody else's, wherever it lies."""

from __future__ import annotations

from pathlib import Path


def own_bytes(pid: int) -> int:
    """Return it. Mapped files do not count: their pages are its own or shared as other processes come and go."""
    lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(1024 * int(line[1]) for line in lines if line[0] in {"RssAnon:", "VmSwap:"})
