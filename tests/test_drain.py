"""How a frontend ends: whoever waits for it hears at once that there is something to wait for."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from frontend.callers import Callers
from frontend.drain import Drain
from protocol.awake_clock import AwakeClock
from protocol.lifeline import Lifeline
from protocol.stop_signal import BROKEN, StopSignal
from tests.frontend_driver import Driver
from tests.word_tokenizer import word_text


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    numbers = (signal.SIGTERM, BROKEN, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield StopSignal()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_caller_who_has_not_asked_yet_is_told_of(stop: StopSignal, capsys: pytest.CaptureFixture[str]) -> None:
    it = Driver(word_text())
    callers = Callers(it.core, AwakeClock(1.0, lambda: it.now), lambda: None)
    caller = callers.join()
    drain = Drain(it.core, callers, stop, Lifeline("frontend", None), 30.0)
    signal.raise_signal(signal.SIGTERM)
    drain.look(it.now)
    assert capsys.readouterr().err == "frontend: draining: 1 request is running\n"
    caller.leave()
    drain.look(it.now)
    assert drain.over


def test_where_another_process_has_died_nobody_waits_for_what_runs(stop: StopSignal) -> None:
    it = Driver(word_text())
    it.generate()
    drain = Drain(
        it.core, Callers(it.core, AwakeClock(1.0, lambda: it.now), lambda: None), stop, Lifeline("x", None), 30
    )
    signal.raise_signal(BROKEN)
    drain.look(it.now)
    (chunk,) = it.chunks()
    assert chunk.error == "the server has broken down: one of its processes has died"
    drain.look(it.now)
    assert drain.over
