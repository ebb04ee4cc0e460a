"""Pieces of an answer, on a terminal as they come."""

from __future__ import annotations

import io
import sys

from client.client import BlockingStream


def print_stream(stream: BlockingStream) -> None:
    """Print an answer to standard output as it comes; its line ends however the stream does.

    A character that the output can't show becomes a question mark.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    with stream:
        begun = False
        try:
            for piece in stream:
                print(piece.text, end="", flush=True)
                begun = True
        finally:
            if begun:
                print(flush=True)
