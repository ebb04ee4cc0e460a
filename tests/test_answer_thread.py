"""An answer on standard output, and what becomes of it where that can't take it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stepahead import answer_thread
from stepahead.answer_thread import AnswerThread


@pytest.mark.parametrize(("number", "told"), [(errno.ENOSPC, True), (errno.EPIPE, False)])
def test_a_full_disk_is_told_and_a_reader_who_has_gone_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: bool
) -> None:
    let_go: list[bool] = []

    def refuse(_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(answer_thread, "print_stream", refuse)
    monkeypatch.setattr(answer_thread, "_let_go_of_stdout", lambda: let_go.append(True))
    answer = AnswerThread(f"ipc://{tmp_path / 'nobody'}", "hello", 5)
    answer.start()
    answer.join(20.0)
    assert not answer.is_alive()
    assert os.read(answer.fileno(), 1) == b"!"
    assert let_go == [True]
    assert (answer.error is not None) == told
