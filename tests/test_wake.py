"""An event loop is woken by sockets, signals and others: never too late, and never for nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from frontend.wake import Wake
from protocol.messages import Ping
from protocol.sockets import bind_router, connect_dealer, receive, send, send_to_peer
from protocol.stop_signal import BROKEN, StopSignal

LONG = 20.0


class Pair:
    """A dealer that is watched, and the router that it talks to."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = bind_router(self.context, address)
        self.dealer = connect_dealer(self.context, address)
        assert send(self.dealer, Ping())
        self.peer, _ = self.router.recv_multipart()

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(f"ipc://{tmp_path / 'socket'}")
    yield pair
    pair.close()


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, BROKEN, signal.SIGINT, signal.SIGHUP)}
    yield StopSignal()
    for number, handler in before.items():
        signal.signal(number, handler)


async def seconds_until_woken(wake: Wake, patience: float = LONG) -> float:
    began = time.monotonic()
    await wake.wait(patience)
    return time.monotonic() - began


async def sleeps(wake: Wake) -> bool:
    return await seconds_until_woken(wake, 0.1) >= 0.1


async def test_a_message_wakes_and_what_was_left_of_it_wakes_again(pair: Pair, stop: StopSignal) -> None:
    wake = Wake(stop)
    with wake.watching([pair.dealer]):
        await wake.wait(0)
        assert receive(pair.dealer) is None
        wake.look_again()
        assert await sleeps(wake)
        for _ in range(2):
            assert send_to_peer(pair.router, pair.peer, Ping())
        while pair.dealer.getsockopt(zmq.EVENTS) != zmq.POLLIN | zmq.POLLOUT:
            await asyncio.sleep(0)
        wake.look_again()
        assert await seconds_until_woken(wake) < 5.0
        assert receive(pair.dealer) is not None  # a turn that took one of two
        wake.look_again()
        assert await seconds_until_woken(wake) < 5.0
        while receive(pair.dealer) is None:
            await asyncio.sleep(0)
        assert receive(pair.dealer) is None
        wake.look_again()
        await wake.wait(0.1)  # one more for what the descriptor had said meanwhile
        wake.look_again()
        assert await sleeps(wake)


async def test_room_wakes_only_those_who_want_it(pair: Pair, stop: StopSignal) -> None:
    wake = Wake(stop)
    with wake.watching([pair.dealer]):
        await wake.wait(0)
        assert receive(pair.dealer) is None
        wake.look_again()
        assert await sleeps(wake)
        wake.want_room(pair.dealer, True)
        wake.look_again()
        assert await seconds_until_woken(wake) < 5.0
        wake.want_room(pair.dealer, False)
        wake.look_again()
        assert await sleeps(wake)


async def test_each_signal_wakes_once(pair: Pair, stop: StopSignal) -> None:
    wake = Wake(stop)
    with wake.watching([]):
        assert await sleeps(wake)
        for times in (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)
            assert await seconds_until_woken(wake) < 5.0
            assert stop.times == times
            assert await sleeps(wake)


async def test_whoever_says_so_wakes_and_others_get_a_turn(stop: StopSignal) -> None:
    wake, turns = Wake(stop), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with wake.watching([]):
        task = asyncio.create_task(other())
        for _ in range(10):
            wake.set()
            assert await seconds_until_woken(wake) < 5.0
        task.cancel()
        assert turns >= 9
