"""The scheduler's end of its conversation with one worker."""

from __future__ import annotations

import logging

import zmq

from protocol.codec import decode, encode
from protocol.identity import new_session
from protocol.messages import Close, Failed, Message, Open, Opened, Ping, Plan, Pong, Refused, Result
from protocol.sockets import (
    HEARTBEAT_SECONDS,
    LATE_SECONDS,
    PULSE_SECONDS,
    SILENCE_SECONDS,
    connect_dealer,
    receive,
    send,
    send_frame,
)

_log = logging.getLogger("stepahead.scheduler")


class WorkerLink:
    """Opens a session with a worker, keeps it alive, and notices when it is over.

        seeking ── Open every second ──► Opened ──► open ── silence, a changed session, a lost answer ──► seeking

    It knows nothing of scheduling: what it hears is handed on, and what a caller says is sent.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, credit: int) -> None:
        """Connect to a worker at `address`; the session is opened by `beat`."""
        self.socket = connect_dealer(context, address)
        self.address = address
        self.opened: Opened | None = None
        self.refusal = ""  # why the worker said no, the last time it did
        self.plan_bytes = 0  # of all plans, in all sessions
        self._busy = 0.0  # what the worker's device has computed in this session, in seconds
        self._busy_before = 0.0  # and in those before it
        self._credit = credit
        self._missed = False  # it was lost before
        self._nonce = 0
        self._heard = 0.0
        self._said = -HEARTBEAT_SECONDS
        self._asked: float | None = None  # when it was first sent a Ping since it was heard, if it was
        self._unanswered = 0  # plans
        self._waits_since = 0.0  # for the answer to the oldest of them

    def receive(self, now: float) -> Message | None:
        """Return the next message that belongs to the session, or None. Opened begins one. Raises `ProtocolError`."""
        while (frame := receive(self.socket)) is not None:
            message = decode(frame, Opened, Refused, Result, Failed, Ping, Pong)
            if isinstance(message, Opened):
                if message.nonce != self._nonce or self.opened is not None:
                    continue  # the answer to an older Open
                self.opened = message
                self.refusal = ""
                self._unanswered = 0
                self._busy_before, self._busy = self.busy, 0.0
                if self._missed:
                    _log.info("the worker at %s is there again", self.address)
                    self._missed = False
            elif isinstance(message, Refused):
                if message.nonce == self._nonce and self.opened is None:
                    if message.reason != self.refusal:
                        _log.warning("the worker at %s refuses: %s", self.address, message.reason)
                    self.refusal = message.reason
                continue
            elif self.opened is None:
                continue
            elif isinstance(message, Result | Failed):
                self._unanswered -= 1
                self._waits_since = now
            elif isinstance(message, Pong) and message.session == self.opened.session:
                self._busy = message.busy
            self._heard = now
            self._asked = None
            return message
        return None

    def send(self, plan: Plan, now: float) -> bool:
        """Send to the worker; False if its queue is full, which credits make impossible as long as it reads."""
        self._said = now
        if not self._unanswered:
            self._waits_since = now
        self._unanswered += 1
        frame = encode(plan)
        self.plan_bytes += len(frame)
        return send_frame(self.socket, frame)

    @property
    def busy(self) -> float:
        """How many seconds the worker's device has computed for us, as it has said last."""
        return self._busy_before + self._busy

    def ask_busy(self) -> None:
        """Ask for that anew: one that computes is not asked for signs of life, which say it, too."""
        if self.opened is not None:
            send(self.socket, Ping())

    def beat(self, now: float) -> bool:
        """Keep the conversation going; False if the session is over because nothing was heard."""
        if self.opened is not None and now - self._heard > SILENCE_SECONDS:
            return False
        if now - self._said >= (HEARTBEAT_SECONDS if self.opened is None else PULSE_SECONDS):
            self._said = now
            if self.opened is not None:
                send(self.socket, Ping())
                self._asked = now if self._asked is None else self._asked
            else:
                self._nonce = new_session()
                send(self.socket, Open(self._nonce, self._credit))
        return True

    def trouble(self, now: float, step_timeout: float) -> str:
        """Return in words why the worker computes nothing; nothing if it does, or would.

        A worker that answers every Ping may hang all the same: then a step takes more than `step_timeout` seconds.
        """
        if self.opened is None:
            return f"the worker at {self.address} has no session"
        if self._asked is not None and now - self._asked > LATE_SECONDS:
            return f"the worker at {self.address} is silent"
        if self._unanswered and now - self._waits_since > step_timeout:
            return f"the worker at {self.address} has not finished a step for more than {step_timeout:g} s"
        return ""

    def lose(self, why: str) -> None:
        """End the session from this side; the next `beat` seeks another."""
        _log.warning("the worker at %s is lost: %s", self.address, why)
        self._missed = True
        self.opened = None
        self._nonce = 0
        self._said = -HEARTBEAT_SECONDS

    def reject(self, why: str, now: float) -> None:
        """Let go of a worker that can't be used; ask it again after a while, when it may be another."""
        _log.error("the worker at %s is not used: %s", self.address, why)
        if self.opened is not None:
            send(self.socket, Close(self.opened.session))
        self.opened = None
        self._nonce = 0
        self._said = now + SILENCE_SECONDS

    def close(self) -> None:
        """Let the worker go and close the socket."""
        if self.opened is not None:
            send(self.socket, Close(self.opened.session))
        # The farewell gets a moment to leave; a worker that misses it would refuse the next scheduler for a while.
        self.socket.close(linger=200)
