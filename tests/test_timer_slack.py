"""A thread that sleeps for microseconds is woken on time."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest

from gpu_worker.timer_slack import NANOSECONDS, sleep_precisely


def test_the_system_is_told() -> None:
    told = []

    def ask() -> None:
        ctypes.CDLL(None).prctl(29, 50_000, 0, 0, 0)  # PR_SET_TIMERSLACK: what a thread has from whoever began it
        before = slack()
        sleep_precisely()
        told.append((before, slack()))

    def slack() -> int:
        return int(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text())

    thread = threading.Thread(target=ask)  # of its own: it lasts as long as the thread
    thread.start()
    thread.join()
    assert told == [(50_000, NANOSECONDS)]


def test_where_it_cannot_be_told_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    sleep_precisely()
