"""What an event loop is woken by: ZeroMQ sockets, a signal, and whoever says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import zmq

from protocol.stop_signal import StopSignal


class Wake:
    """Wakes one waiter. Several reasons at once are one.

    The descriptor of a ZeroMQ socket tells only that something may have changed since the socket was last used, not
    that something is there. So after each turn, which used them, `look_again` asks the sockets themselves.
    """

    def __init__(self, stop: StopSignal) -> None:
        """Be ready to watch for `stop`."""
        self._stop = stop
        self._event = asyncio.Event()
        self._sockets: dict[zmq.Socket[bytes], int] = {}  # with the events that each is watched for

    @contextlib.contextmanager
    def watching(self, sockets: Sequence[zmq.Socket[bytes]]) -> Iterator[None]:
        """Watch, on the running loop, for the signal and for messages on `sockets`."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._stop.fileno(), self._stopped)
        for socket in sockets:
            self.watch(socket)
        try:
            yield
        finally:
            loop.remove_reader(self._stop.fileno())
            for socket in self._sockets:
                loop.remove_reader(socket.FD)

    def watch(self, socket: zmq.Socket[bytes]) -> None:
        """Watch for messages on another socket, too."""
        self._sockets[socket] = zmq.POLLIN
        asyncio.get_running_loop().add_reader(socket.FD, self.set)
        self.set()

    def want_room(self, socket: zmq.Socket[bytes], wanted: bool) -> None:
        """Watch for room in a socket's queue as well, or no longer."""
        self._sockets[socket] = zmq.POLLIN | (zmq.POLLOUT if wanted else 0)

    def set(self) -> None:
        """Wake the waiter."""
        self._event.set()

    def look_again(self) -> None:
        """Wake the waiter if a socket has something already: its descriptor would not tell."""
        if any(int(socket.get(zmq.EVENTS)) & events for socket, events in self._sockets.items()):
            self.set()

    async def wait(self, seconds: float) -> None:
        """Wait to be woken, for `seconds` at most; other tasks get a turn in any case."""
        if self._event.is_set():
            await asyncio.sleep(0)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._event.wait()
        self._event.clear()

    def _stopped(self) -> None:
        self._stop.hush()
        self.set()
