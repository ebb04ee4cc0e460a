"""Tests marked `alone` run while no other does, and wait for no more than those that run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.turns import Turns

PATIENCE_SECONDS = 20.0


class Visit:
    """A thread's turn: it comes, says that it is there, and goes when it is told to."""

    def __init__(self, turn: AbstractContextManager[None]) -> None:
        self._turn = turn
        self.there, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._visit, daemon=True)
        self._thread.start()

    def _visit(self) -> None:
        with self._turn:
            self.there.set()
            self._go.wait(PATIENCE_SECONDS)

    def comes(self) -> bool:
        return self.there.wait(PATIENCE_SECONDS)

    def waits(self) -> bool:
        return not self.there.wait(0.1)

    def leave(self) -> None:
        self._go.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[list[Turns]]:
    several = [Turns(tmp_path) for _ in range(3)]
    yield several
    for each in several:
        each.close()


def test_several_are_there_at_once_but_nobody_beside_one_that_is_alone(turns: list[Turns]) -> None:
    first, second = Visit(turns[0].beside_others()), Visit(turns[1].beside_others())
    assert first.comes()
    assert second.comes()
    alone = Visit(turns[2].alone())
    first.leave()
    assert alone.waits()
    second.leave()
    assert alone.comes()
    third, other = Visit(turns[0].beside_others()), Visit(turns[1].alone())
    assert third.waits()
    assert other.waits()
    alone.leave()
    for each in (third, other):
        each.leave()


def test_who_wants_to_be_alone_does_not_wait_for_those_that_come_later(turns: list[Turns]) -> None:
    first = Visit(turns[0].beside_others())
    assert first.comes()
    alone = Visit(turns[1].alone())
    assert alone.waits()
    later = Visit(turns[2].beside_others())
    assert later.waits()
    first.leave()
    assert alone.comes()
    assert later.waits()
    alone.leave()
    assert later.comes()
    later.leave()


@pytest.mark.parametrize("turn", [Turns.alone, Turns.beside_others])
def test_a_turn_ends_with_an_error_too(
    turns: list[Turns], turn: Callable[[Turns], AbstractContextManager[None]]
) -> None:
    with pytest.raises(ZeroDivisionError), turn(turns[0]):
        raise ZeroDivisionError
    next_one = Visit(turns[1].alone())
    assert next_one.comes()
    next_one.leave()
