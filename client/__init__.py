"""The Python client of a Stepahead server, for asyncio and for everybody else."""

from client.async_client import AsyncClient
from client.client import BlockingStream, Client
from client.completion import Completion, Piece, PromptToken, TokenLogprob
from client.errors import (
    BatchError,
    RequestFailedError,
    RequestRefusedError,
    ServerBusyError,
    ServerLostError,
    StepaheadError,
)
from client.text_stream import TextStream

__all__ = [
    "AsyncClient",
    "BatchError",
    "BlockingStream",
    "Client",
    "Completion",
    "Piece",
    "PromptToken",
    "RequestFailedError",
    "RequestRefusedError",
    "ServerBusyError",
    "ServerLostError",
    "StepaheadError",
    "TextStream",
    "TokenLogprob",
]
