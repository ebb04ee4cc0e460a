"""A question to a running server's collector, by way of its frontend."""

from __future__ import annotations

import argparse
import time

import zmq

from protocol.codec import decode
from protocol.endpoints import DEFAULT_ADDRESS
from protocol.errors import ProtocolError
from protocol.messages import AskTimeline, Chunk, Ping, Pong, StartTimeline, StopTimeline, TimelineState
from protocol.sockets import connect_dealer, receive, send
from timeline.errors import TraceError
from timeline.wording import duration, size

ANSWER_SECONDS = 8.0


def add_address(parser: argparse.ArgumentParser) -> None:
    """Declare where the server is."""
    parser.add_argument("--address", default=DEFAULT_ADDRESS, help="where the server's ZeroMQ clients go (%(default)s)")


def ask(address: str, question: StartTimeline | StopTimeline | AskTimeline) -> TimelineState:
    """Return the answer. Raises `TraceError` if there is none, or if it is a refusal."""
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        with zmq.Context() as context, connect_dealer(context, address) as dealer:
            send(dealer, question)
            while (left := deadline - time.monotonic()) > 0 and dealer.poll(int(1000 * left)):
                frame = receive(dealer)
                message = None if frame is None else decode(frame, TimelineState, Ping, Pong, Chunk)
                if isinstance(message, TimelineState):
                    if message.refusal:
                        raise TraceError(message.refusal)
                    return message
    except ProtocolError as error:
        raise TraceError(str(error)) from None
    raise TraceError(f"no server answered at {address} within {ANSWER_SECONDS:g} s; name another by --address")


def told(state: TimelineState) -> str:
    """Return a state in words."""
    if not state.file:
        return "nothing is recorded, and nothing was"
    verb = "is being recorded" if state.recording else "was the last recording"
    return with_problem(f"{state.file} {verb}: {amount(state)}", state)


def amount(state: TimelineState) -> str:
    """Return how much was recorded."""
    return f"{duration(round(1e9 * state.seconds))}, {state.spans:,} spans, {size(state.bytes)}"


def with_problem(text: str, state: TimelineState) -> str:
    """Return a text, and below it why the recording ended by itself, if it did."""
    return "\n".join(filter(None, (text, state.problem)))
