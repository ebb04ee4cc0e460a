"""A signal to end becomes something that a poll wakes up for."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest

from protocol.stop_signal import BROKEN, StopSignal


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, BROKEN, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def is_readable(stop: StopSignal) -> bool:
    return bool(select.select([stop], [], [], 1)[0])


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, BROKEN])
def test_a_signal_sets_it_and_wakes_the_poll(number: signal.Signals) -> None:
    stop = StopSignal()
    assert not stop.is_set
    assert not select.select([stop], [], [], 0)[0]
    os.kill(os.getpid(), number)
    assert is_readable(stop)
    assert (stop.is_set, stop.broken) == (True, number == BROKEN)


@pytest.mark.usefixtures("handlers")
def test_an_ignored_ctrl_c_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = StopSignal()
    os.kill(os.getpid(), signal.SIGINT)
    assert not stop.is_set


@pytest.mark.usefixtures("handlers")
def test_any_number_of_signals_is_no_error() -> None:
    stop = StopSignal()
    for _ in range(70_000):  # more than its pipe has room for
        signal.raise_signal(signal.SIGTERM)
    assert stop.is_set
