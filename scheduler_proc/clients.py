"""The scheduler's end of its conversations with clients: frontends, or thin clients that have token ids."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field

import zmq

from protocol.messages import Attach, Attached, Deltas, Message, Opened, Unattached
from protocol.sockets import SILENCE_SECONDS, PeerGoneError, send_to_peer


@dataclass(slots=True)
class Client:
    """One attached client. `number` is what the core calls it; another incarnation gets another."""

    number: int
    incarnation: int
    heard: float
    stalled: deque[Deltas] = field(default_factory=deque)
    """What could not be sent yet, one message of each worker at most: until it is, nothing newer is taken."""


class Clients:
    """Who is attached, and what could not be sent to them yet."""

    def __init__(self, router: zmq.Socket[bytes], session: int) -> None:
        """Talk through `router`; `session` tells clients when the scheduler was restarted."""
        self._router = router
        self._session = session
        self._clients: dict[bytes, Client] = {}
        self._peers: dict[int, bytes] = {}
        self._numbers = 0
        self._early: dict[bytes, int] = {}  # came before there was a worker: incarnations by peer

    def attach(self, peer: bytes, attach: Attach, worker: Opened | None, now: float) -> int | None:
        """Take in a client, and say what can be asked for, as soon as there is a worker.

        Returns the number of the incarnation that this one replaces: its requests are to be dropped.
        """
        if worker is None:
            self._early[peer] = attach.incarnation
            return None
        client = self._clients.get(peer)
        replaced = None
        if client is None or client.incarnation != attach.incarnation:
            replaced = self.forget(peer) if client is not None else None
            self._numbers += 1
            client = self._clients[peer] = Client(self._numbers, attach.incarnation, now)
            self._peers[client.number] = peer
        client.heard = now
        self.say(
            peer,
            Attached(
                incarnation=client.incarnation,
                session=self._session,
                model=worker.model,
                vocab_size=worker.vocab_size,
                max_model_len=worker.max_model_len,
                eos_token_ids=worker.eos_token_ids,
            ),
        )
        return replaced

    def attach_early(self, worker: Opened, now: float) -> None:
        """Take in those who came before the first worker."""
        early, self._early = self._early, {}
        for peer, incarnation in early.items():
            self.attach(peer, Attach(incarnation), worker, now)

    def known(self, peer: bytes, now: float) -> Client | None:
        """Return the client that has just spoken; None if it must attach first, which it is told."""
        client = self._clients.get(peer)
        if client is not None:
            client.heard = now
        elif peer not in self._early:
            self.say(peer, Unattached(self._session))
        return client

    def say(self, peer: bytes, message: Message) -> None:
        """Send what a client will ask for again if it gets lost. One that is gone is forgotten when it is silent."""
        with contextlib.suppress(PeerGoneError):
            send_to_peer(self._router, peer, message)

    def deliver(self, number: int, deltas: Deltas) -> int | None:
        """Send deltas, now or by `retry`; return the number of the client if it is gone."""
        peer = self._peers.get(number)
        if peer is None:
            return None  # it went while this was being written
        self._clients[peer].stalled.append(deltas)
        return self._send_stalled(peer)

    @property
    def stalled(self) -> set[int]:
        """The numbers of clients that read more slowly than tokens come."""
        return {client.number for client in self._clients.values() if client.stalled}

    def retry(self) -> list[int]:
        """Send again what could not be sent; return the numbers of clients that are gone."""
        behind = [peer for peer, client in self._clients.items() if client.stalled]
        return [number for peer in behind if (number := self._send_stalled(peer)) is not None]

    def _send_stalled(self, peer: bytes) -> int | None:
        stalled = self._clients[peer].stalled
        try:
            while stalled and send_to_peer(self._router, peer, stalled[0]):
                stalled.popleft()
        except PeerGoneError:
            return self.forget(peer)
        return None

    def silent(self, now: float) -> list[int]:
        """Forget the clients that have been silent for too long; return their numbers."""
        late = [peer for peer, client in self._clients.items() if now - client.heard > SILENCE_SECONDS]
        return [self.forget(peer) for peer in late]

    def forget_number(self, number: int) -> None:
        """Forget a client by its number."""
        self.forget(self._peers[number])

    def forget(self, peer: bytes) -> int:
        """Forget a client; return its number, whose requests are to be dropped."""
        number = self._clients.pop(peer).number
        del self._peers[number]
        return number
