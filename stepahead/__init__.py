"""Stepahead, an LLM serving engine whose scheduler runs one step ahead of the GPU."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from client import (
    AsyncClient,
    BatchError,
    Client,
    Completion,
    RequestFailedError,
    RequestRefusedError,
    ServerBusyError,
    ServerLostError,
    StepaheadError,
)
from stepahead.family import StartError

if TYPE_CHECKING:
    from stepahead.llm import LLM

try:
    __version__ = version("stepahead")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncClient",
    "BatchError",
    "Client",
    "Completion",
    "RequestFailedError",
    "RequestRefusedError",
    "ServerBusyError",
    "ServerLostError",
    "StartError",
    "StepaheadError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import LLM when it is asked for: it knows every part of the system, of which a client needs nothing."""
    if name == "LLM":
        from stepahead.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
