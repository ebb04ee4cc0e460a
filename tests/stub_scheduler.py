"""A scheduler for tests of the frontend: real sockets, scripted tokens, and gates that hold them back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import zmq

from protocol.codec import decode
from protocol.identity import new_session
from protocol.logprobs import Logprobs, Scores
from protocol.messages import (
    EXPLAINED,
    Abort,
    AskTotals,
    Attach,
    Attached,
    Deltas,
    Finish,
    Message,
    Ping,
    Pong,
    PrefixCacheReset,
    ResetPrefixCache,
    Submit,
    Unattached,
)
from protocol.sockets import PeerGoneError, bind_router, receive_from_peer, send_to_peer

Script = Callable[[Submit], list[int]]
"""All tokens that a request would get, counted from its original prompt; an end token may be the last."""

TURN_MILLISECONDS = 1
CACHED_BLOCKS = 7


def deltas(
    session: int,
    request: int,
    offset: int,
    tokens: list[int],
    finish: Finish = Finish.RUNNING,
    error: str = "",
    cached: int = 0,
    logprobs: Logprobs | None = None,
    scores: tuple[int, Scores] | None = None,
    timing: Sequence[float] = (-1, -1, -1, -1),
) -> Deltas:
    """Return Deltas of one row; `timing` is that of its end, if it has come.

    `scores` are those of its prompt, and where that of the first stands.
    """
    ended = finish is not Finish.RUNNING
    return Deltas(
        session=session,
        request=np.array([request], "<u8"),
        offset=np.array([offset], "<u4"),
        count=np.array([len(tokens)], "<u4"),
        finish=np.array([finish], "<u1"),
        cached=np.array([cached], "<u4"),
        token=np.array(tokens, "<u4"),
        timing=np.array(timing if ended else (), "<f4"),
        errors=(error,) if finish in EXPLAINED else (),
        listed=None if logprobs is None else logprobs.count,
        listed_token=None if logprobs is None else logprobs.token,
        logprob=None if logprobs is None else logprobs.logprob,
        score_row=None if scores is None else np.array([0, scores[0], len(scores[1])], "<u4"),
        scored=None if scores is None else scores[1].logprobs.count,
        scored_token=None if scores is None else scores[1].logprobs.token,
        scored_logprob=None if scores is None else scores[1].logprobs.logprob,
        scored_rank=None if scores is None else scores[1].rank,
    )


def listing(*entries: Sequence[tuple[int, float]]) -> Logprobs:
    """Return what is known of as many tokens, each as (token id, log probability)."""
    flat = [entry for each in entries for entry in each]
    return Logprobs(
        count=np.array([len(each) for each in entries], "<u1"),
        token=np.array([token for token, _ in flat], "<u4"),
        logprob=np.array([logprob for _, logprob in flat], "<f4"),
    )


def listed(token: int, likeliest: int) -> list[tuple[int, float]]:
    """Return what stubs know of a token: its own, then as many as are wanted from id 32 ("A") on."""
    return [(token, -0.5), *[(32 + rank, -1.0 - rank) for rank in range(likeliest)]]


class _Running:
    def __init__(self, peer: bytes, submit: Submit, tokens: list[int], ended_by_script: bool) -> None:
        self.peer = peer
        self.submit = submit
        self.tokens = tokens
        self.at = len(submit.output)
        self.last_finish = Finish.STOP if ended_by_script else Finish.LENGTH


class StubScheduler:
    """Serves one address on a thread. `heard` has what came, except for Ping; `take` waits for one of a type.

    A request gets one token a turn while `allowance` is above zero; `allow` raises it, `restart` forgets everybody.
    """

    def __init__(
        self,
        address: str,
        script: Script,
        *,
        vocab_size: int = 1000,
        max_model_len: int = 256,
        eos: tuple[int, ...] = (2,),
        allowance: int = 10**9,
    ) -> None:
        """Bind `address` and start; tokens may flow `allowance` times."""
        self.address = address
        self.heard: queue.Queue[Message] = queue.Queue()
        self.session = new_session()
        self._script = script
        self._facts = (vocab_size, max_model_len, eos)
        self._allowance = allowance
        self._deaf = False
        self._known: dict[bytes, int] = {}
        self._running: dict[tuple[bytes, int], _Running] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._context = zmq.Context()
        self._router = bind_router(self._context, address)
        self._thread = threading.Thread(target=self._serve, name="stub scheduler")
        self._thread.start()

    def take(self, *wanted: type[Message], seconds: float = 20.0) -> Message:
        """Return the next message of these types that came, dropping others; fails the test after `seconds`."""
        while True:
            message = self.heard.get(timeout=seconds)
            if isinstance(message, wanted):
                return message

    def allow(self, tokens: int) -> None:
        """Let every request have so many tokens more."""
        with self._lock:
            self._allowance += tokens

    def restart(self) -> None:
        """Forget every peer and request, under a new session, as a new process at this address would."""
        with self._lock:
            self.session = new_session()
            self._known.clear()
            self._running.clear()

    def fall_silent(self) -> None:
        """Neither hear nor speak any more."""
        with self._lock:
            self._deaf = True

    def speak_again(self) -> None:
        """Hear and speak again."""
        with self._lock:
            self._deaf = False

    @property
    def running(self) -> int:
        """How many requests it serves."""
        with self._lock:
            return len(self._running)

    def _serve(self) -> None:
        while not self._closing.is_set():
            # Without work it waits for messages alone; with work, one token a turn.
            self._router.poll(TURN_MILLISECONDS if self._running else 50)
            with self._lock:
                if self._deaf:
                    self._closing.wait(0.05)
                    continue
                while (received := receive_from_peer(self._router)) is not None:
                    told = decode(received.frame, Attach, Submit, Abort, Ping, Pong, AskTotals, ResetPrefixCache)
                    self._hear(received.peer, told)
                if self._allowance > 0 and self._running:
                    self._allowance -= 1
                    for running in list(self._running.values()):
                        self._step(running)

    def _hear(self, peer: bytes, message: Message) -> None:
        if not isinstance(message, Ping | AskTotals):
            self.heard.put(message)
        if isinstance(message, Attach):
            if self._known.get(peer) != message.incarnation:
                self._running = {key: value for key, value in self._running.items() if key[0] != peer}
            self._known[peer] = message.incarnation
            vocab_size, max_model_len, eos = self._facts
            ends = np.array(eos, "<u4")
            attached = Attached(message.incarnation, self.session, "stub", vocab_size, max_model_len, ends)
            self._send(peer, attached)
        elif peer not in self._known:
            self._send(peer, Unattached(self.session))
        elif isinstance(message, Ping):
            self._send(peer, Pong(self.session, 0))
        elif isinstance(message, ResetPrefixCache):
            self._send(peer, PrefixCacheReset(self.session, message.request, CACHED_BLOCKS))
        elif isinstance(message, Submit):
            script = self._script(message)
            tokens = script[: message.max_tokens]
            stops = {*message.stop_token_ids.tolist(), *(() if message.ignore_eos else self._facts[2])}
            running = _Running(peer, message, tokens, bool(tokens) and tokens[-1] in stops)
            self._running[peer, message.request] = running
        elif isinstance(message, Abort):
            for request in message.request.tolist():
                self._running.pop((peer, request), None)

    def _step(self, running: _Running) -> None:
        at = running.at
        tokens = running.tokens[at : at + 1]
        ended = at + 1 >= len(running.tokens)
        finish = running.last_finish if ended else Finish.RUNNING
        likeliest = running.submit.logprobs
        told = None if likeliest is None else listing(*[listed(token, likeliest) for token in tokens])
        # Like the real one, which keeps what a full queue does not take for the next turn.
        news = deltas(self.session, running.submit.request, at, tokens, finish, logprobs=told)
        if not self._send(running.peer, news):
            return
        running.at += 1
        if ended:
            del self._running[running.peer, running.submit.request]

    def _send(self, peer: bytes, message: Message) -> bool:
        try:
            return send_to_peer(self._router, peer, message)
        except PeerGoneError:
            self._known.pop(peer, None)
            self._running = {key: value for key, value in self._running.items() if key[0] != peer}
            return True

    def close(self) -> None:
        """Stop, and let go of the address."""
        self._closing.set()
        self._thread.join(10)
        self._router.close()
        self._context.term()

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
