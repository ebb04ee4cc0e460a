"""Pieces of an answer, on a terminal as they come."""

from __future__ import annotations

from client.client import BlockingStream


def print_stream(stream: BlockingStream) -> None:
    """Print an answer to standard output as it comes; its line ends however the stream does."""
    with stream:
        begun = False
        try:
            for piece in stream:
                print(piece.text, end="", flush=True)
                begun = True
        finally:
            if begun:
                print(flush=True)
