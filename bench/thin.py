"""A client that has token ids and is attached to a scheduler itself: no text, no frontend."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import zmq
from numpy.typing import NDArray

from bench.contestant import BenchmarkError
from bench.moments import Moments
from bench.workload import Workload, greedy
from protocol.codec import decode
from protocol.errors import ProtocolError
from protocol.identity import new_session
from protocol.messages import Attach, Attached, Deltas, Finish, Ping, Pong, Submit, Unattached
from protocol.sockets import HEARTBEAT_SECONDS, SILENCE_SECONDS, connect_dealer, receive, send

PATIENCE_SECONDS = 120.0
"""How long nothing at all may come while something is under way."""


@dataclass(frozen=True, slots=True)
class Answered:
    """All of a workload, answered: when the first token came and when the last one, in seconds of one clock."""

    first: float
    last: float
    output_tokens: int

    @property
    def seconds(self) -> float:
        """Return the time from the first token to the last."""
        return self.last - self.first

    @property
    def tokens_per_second(self) -> float:
        """Return output tokens a second of that time."""
        return self.output_tokens / self.seconds


class ThinClient:
    """Attached from construction to `close`."""

    def __init__(self, address: str) -> None:
        """Attach; raises `BenchmarkError` if the scheduler does not answer."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = connect_dealer(self._context, address)
        self._spoke = 0.0
        try:
            self._say(Attach(new_session()))
            while not isinstance(self._hear(), Attached):
                pass
        except BaseException:
            self.close()
            raise

    def run(self, workload: Workload) -> Answered:
        """Ask for everything at once, greedily, and wait for the last token; raises `BenchmarkError`."""
        moments = self.arrive(workload, np.zeros(len(workload.prompts)))
        return Answered(moments.first_of_all, moments.last_of_all, workload.output_tokens)

    def arrive(self, workload: Workload, at: NDArray[np.float64]) -> Moments:
        """Ask for each request when it is due, greedily, and wait for the last token; raises `BenchmarkError`.

        `at`: float64 seconds from now, one for each request, in order.
        """
        prompts = [np.array(prompt, np.uint32) for prompt in workload.prompts]
        wanted = np.array(workload.output_lengths)
        came = np.zeros_like(wanted)
        moments = Moments(time.perf_counter() + at)
        asked, ended, number = 0, 0, len(wanted)
        while ended < number:
            while asked < number and moments.due[asked] <= time.perf_counter():
                self._say(greedy(asked, prompts[asked], workload.output_lengths[asked]))
                asked += 1
            message = self._hear(until=moments.due[asked] if asked < number else None)
            if isinstance(message, Deltas):
                moments.take(message.request[message.count > 0].astype(np.int64), time.perf_counter())
                ended += self._take(message, came)
        if (came != wanted).any():
            wrong = int(np.flatnonzero(came != wanted)[0])
            raise BenchmarkError(f"stepahead: {came[wrong]} tokens came, {wanted[wrong]} were asked for")
        return moments

    def _take(self, deltas: Deltas, came: NDArray[np.int64]) -> int:
        """Count the tokens of a message; return how many requests have ended with it."""
        if deltas.errors:
            raise BenchmarkError(f"stepahead: {deltas.errors[0]}")
        at = deltas.request.astype(np.int64)
        if (deltas.offset != came[at]).any():
            raise BenchmarkError("stepahead: tokens are missing, or came twice")
        came[at] += deltas.count
        return int(np.count_nonzero(deltas.finish != Finish.RUNNING))

    def _hear(self, until: float | None = None) -> Attached | Deltas | None:
        """Return the next message that says anything, or None if none has come when it is `until`."""
        patient = time.perf_counter() + PATIENCE_SECONDS if until is None else until
        while (now := time.perf_counter()) < patient:
            if now - self._spoke >= HEARTBEAT_SECONDS:  # even while tokens come: it must hear from us
                self._say(Ping())
            # The last part of a millisecond is spent awake: nobody can sleep for so little.
            if not self._socket.poll(int(1000 * min(HEARTBEAT_SECONDS, patient - now))):
                continue
            try:
                frame = receive(self._socket)
                message = None if frame is None else decode(frame, Attached, Unattached, Deltas, Ping, Pong)
            except ProtocolError as error:
                raise BenchmarkError(f"stepahead: {error}") from None
            if isinstance(message, Unattached):
                raise BenchmarkError(f"the scheduler did not hear from its client for {SILENCE_SECONDS:g} s")
            if isinstance(message, Attached | Deltas):
                return message
        if until is not None:
            return None
        raise BenchmarkError(f"nothing has come from the scheduler for {PATIENCE_SECONDS:g} s")

    def _say(self, message: Attach | Submit | Ping) -> None:
        while not send(self._socket, message):  # many requests at once are more than the queue holds
            if not self._socket.poll(int(1000 * PATIENCE_SECONDS), zmq.POLLOUT):
                raise BenchmarkError("the scheduler does not read what it is sent")
        self._spoke = time.perf_counter()

    def close(self) -> None:
        """Let go of the scheduler, which drops what is under way."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
