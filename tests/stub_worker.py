"""A worker in a thread of the test: the protocol of the real one around the stub model, with a gate before answers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import zmq

from protocol.codec import decode
from protocol.identity import new_session
from protocol.messages import Close, Message, Open, Opened, Ping, Plan, Pong, Refused, Result
from protocol.sockets import PeerGoneError, bind_router, send_to_peer
from tests.stub_model import NextToken, StubModel, hashed, opened

PATIENCE_SECONDS = 20.0

MayAnswer = Callable[["StubWorker"], bool]
"""Asked again and again while a plan is unanswered: whether the oldest may be answered now."""


@dataclass
class StubWorker:
    """Answers plans in order, each as soon as `may_answer` says so; remembers what happened on the wire."""

    address: str
    worker: Opened = field(default_factory=opened)
    next_token: NextToken = hashed
    may_answer: MayAnswer = lambda stub: True
    unanswered: deque[tuple[Plan, Result]] = field(default_factory=deque)
    plans: list[Plan] = field(default_factory=list)
    most_unanswered: int = 0
    sessions: int = 0
    credit: int = 0
    claim: bytes | None = None
    waited_since: float = 0.0
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stub worker {self.address}", daemon=True)
        self._restart = threading.Event()

    def __enter__(self) -> StubWorker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def restart(self) -> None:
        """Forget everything, as a worker does that was killed and started again."""
        self._restart.set()

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        router = bind_router(context, self.address)
        try:
            while not self._stop.is_set():
                if self._restart.is_set():
                    self._restart.clear()
                    self.claim = None
                    self.unanswered.clear()
                if router.poll(1 if self.unanswered else 20):
                    peer, frame = router.recv_multipart()
                    answer = self._hear(peer, decode(frame))
                    if answer is not None:
                        self._say(router, peer, answer)
                while self.unanswered and self.may_answer(self):
                    assert self.claim is not None
                    _, result = self.unanswered.popleft()
                    self._say(router, self.claim, result)
                    self.waited_since = time.monotonic()
                if self.unanswered and time.monotonic() - self.waited_since > PATIENCE_SECONDS:
                    raise AssertionError("a plan was never allowed its answer")
        except BaseException as error:
            self.error = error
        finally:
            router.close()
            context.term()

    def _say(self, router: zmq.Socket[bytes], peer: bytes, message: Message) -> None:
        try:
            assert send_to_peer(router, peer, message)
        except PeerGoneError:
            self.claim = None
            self.unanswered.clear()

    def _hear(self, peer: bytes, message: Message) -> Message | None:
        if isinstance(message, Open):
            if self.claim not in (None, peer):
                return Refused(message.nonce, "the worker has another scheduler")
            self.claim = peer
            self.sessions += 1
            self.credit = message.plans_in_flight
            self.worker = replace(self.worker, nonce=message.nonce, session=new_session())
            self.model = StubModel(self.worker, self.next_token)
            self.unanswered.clear()
            return self.worker
        if isinstance(message, Ping):
            mine = peer == self.claim
            return Pong(self.worker.session if mine else new_session(), self.model.steps if mine else 0)
        if isinstance(message, Plan) and peer == self.claim and message.session == self.worker.session:
            if not self.unanswered:
                self.waited_since = time.monotonic()
            self.unanswered.append((message, self.model.run(message)))
            self.plans.append(message)
            self.most_unanswered = max(self.most_unanswered, len(self.unanswered))
        elif isinstance(message, Close) and peer == self.claim:
            self.claim = None
            self.unanswered.clear()
        return None
