"""A scheduler that computes nothing: every request gets a token a step, at a pace."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import numpy as np
import zmq
from numpy.typing import NDArray

from bench.contestant import BenchmarkError
from protocol.codec import decode
from protocol.identity import new_session
from protocol.messages import (
    Abort,
    AskTotals,
    Attach,
    Attached,
    Deltas,
    Finish,
    Message,
    Ping,
    Pong,
    Submit,
    Unattached,
)
from protocol.sockets import PeerGoneError, bind_router, receive_from_peer, send_to_peer

IDLE_MILLISECONDS = 5
PATIENCE_SECONDS = 60.0

WORDS = 4096
"""Tokens are drawn from the first so many of the vocabulary: text, too, comes back to the same words."""


class _Running:
    """The requests of one frontend, a column each: its id, how many tokens it has had, how many it will have."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.request = np.zeros(0, "<u8")
        self.came = np.zeros(0, "<u4")
        self.wanted = np.zeros(0, "<u4")
        self.due: Deltas | None = None  # made, but its queue was full

    def add(self, submit: Submit) -> None:
        self.request = np.append(self.request, np.uint64(submit.request))
        self.came = np.append(self.came, np.uint32(len(submit.output)))
        self.wanted = np.append(self.wanted, np.uint32(submit.max_tokens))

    def keep(self, which: NDArray[np.bool_]) -> None:
        self.request, self.came, self.wanted = self.request[which], self.came[which], self.wanted[which]

    def step(self, session: int, token: NDArray[np.uint32]) -> Deltas:
        """Return the next token of each: what a scheduler says of one step. Those that have all of theirs end."""
        ended = self.came + 1 >= self.wanted
        deltas = Deltas(
            session=session,
            request=self.request,
            offset=self.came,
            count=np.ones(len(self.request), "<u4"),
            finish=np.where(ended, np.uint8(Finish.LENGTH), np.uint8(Finish.RUNNING)),
            cached=np.zeros(len(self.request), "<u4"),
            token=token,
            timing=np.full(4 * np.count_nonzero(ended), -1, "<f4"),
            errors=(),
        )
        self.came = self.came + np.uint32(1)
        self.keep(~ended)
        return deltas


class TokenSource:
    """Serves any number of frontends on a thread, from construction to `close`. No token comes before `go`.

    A step has a token for every request that runs, in one message for each frontend. Steps follow each other at `rate`
    tokens a second, or as fast as frontends take them if that is slower.
    """

    def __init__(self, address: str, rate: float, vocab_size: int, max_model_len: int) -> None:
        """Bind `address`."""
        self.session = new_session()
        self.aborted = 0
        self._rate = rate
        self._facts = (vocab_size, max_model_len)
        self._peers: dict[bytes, _Running] = {}
        self._words = np.random.default_rng(0).integers(0, min(WORDS, vocab_size), 2**16).astype("<u4")
        self._at = 0
        self._next = 0.0
        self._going = False
        self._closing = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = bind_router(self._context, address)
        self._thread = threading.Thread(target=self._serve, name="token source", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """How many requests have come and not ended."""
        return sum(len(peer.request) for peer in list(self._peers.values()))

    def wait_for(self, requests: int) -> None:
        """Wait until so many requests run; raises `BenchmarkError` if they do not come."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.running != requests:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{self.running} requests have come to the scheduler, not {requests}")
            time.sleep(0.01)

    def go(self) -> None:
        """Let tokens come."""
        self._next = time.perf_counter()
        self._going = True

    def hold(self) -> None:
        """Let none come any more."""
        self._going = False

    def _serve(self) -> None:
        while not self._closing:
            wait = IDLE_MILLISECONDS / 1e3
            if self._going and (running := self.running):
                wait = self._next - time.perf_counter()
                if wait <= 0:
                    self._next = max(self._next, time.perf_counter() - 0.01) + running / self._rate
                    self._step()
                    wait = 0.0
            if self._router.poll(max(0, int(1e3 * min(wait, IDLE_MILLISECONDS / 1e3)))):
                while (received := receive_from_peer(self._router)) is not None:
                    told = decode(received.frame, Attach, Submit, Abort, Ping, Pong, AskTotals)
                    self._hear(received.peer, told)

    def _step(self) -> None:
        for identity, peer in list(self._peers.items()):
            if peer.due is None and len(peer.request):
                self._at = (self._at + len(peer.request)) % (len(self._words) // 2)
                peer.due = peer.step(self.session, np.resize(self._words[self._at :], len(peer.request)))
            if peer.due is not None and self._send(identity, peer.due):
                peer.due = None

    def _hear(self, identity: bytes, message: Message) -> None:
        peer = self._peers.get(identity)
        if isinstance(message, Attach):
            if peer is None or peer.incarnation != message.incarnation:
                self._peers[identity] = _Running(message.incarnation)
            ends = np.zeros(0, "<u4")
            self._send(identity, Attached(message.incarnation, self.session, "words", *self._facts, ends))
        elif peer is None:
            self._send(identity, Unattached(self.session))
        elif isinstance(message, Ping):
            self._send(identity, Pong(self.session, 0))
        elif isinstance(message, Submit):
            peer.add(message)
        elif isinstance(message, Abort):
            left = ~np.isin(peer.request, message.request)
            self.aborted += int(np.count_nonzero(~left))
            peer.keep(left)

    def _send(self, identity: bytes, message: Message) -> bool:
        try:
            return send_to_peer(self._router, identity, message)
        except PeerGoneError:
            self._peers.pop(identity, None)
            return True

    def close(self) -> None:
        """Stop, and let go of the address."""
        self._closing = True
        self._thread.join()
        self._router.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
