"""How much memory is left, and whether it was memory that an error is about."""

from __future__ import annotations

from pathlib import Path

import torch

from checkpoint import CheckpointError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int:
    """Return the bytes free on `device` now; on the CPU what this process may still take without swapping.

    Raises `CheckpointError` where the system does not say, as outside Linux: the size must then be given.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    system = _available_on_host()
    inside = _left_in_container()
    return system if inside is None else min(system, inside)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory was refused; torch's allocator on the CPU has no type for it."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def _available_on_host() -> int:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    raise CheckpointError("free memory is unknown on this system: give the size of the KV cache")


def _left_in_container() -> int | None:
    """Return what the control group (version 2) leaves, None when it sets no limit or there is none.

    Files that were read, such as the weights, are charged to it and given up as soon as memory is short.
    """
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used + _files_of_container())


def _files_of_container() -> int:
    try:
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
