"""Stepahead, an LLM serving engine whose scheduler runs one step ahead of the GPU."""

from importlib.metadata import PackageNotFoundError, version

from client import (
    AsyncClient,
    Client,
    Completion,
    RequestFailedError,
    RequestRefusedError,
    ServerBusyError,
    ServerLostError,
    StepaheadError,
)

try:
    __version__ = version("stepahead")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "Completion",
    "RequestFailedError",
    "RequestRefusedError",
    "ServerBusyError",
    "ServerLostError",
    "StepaheadError",
    "__version__",
]
