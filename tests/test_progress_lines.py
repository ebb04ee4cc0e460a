"""What is said stays, what goes on is redrawn on a terminal and is rare in a log."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from protocol.progress_lines import LOG_SECONDS, ProgressLines
from stepahead.family import Family
from stepahead.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The rows of a terminal that shows all that was written."""
        rows = [""]
        for piece in (
            self.getvalue().replace("\r", "\0\r").replace("\n", "\0\n").replace("\x1b[K", "\0\x1b").split("\0")
        ):
            if piece.startswith("\n"):
                rows.append(piece[1:])
            elif piece.startswith("\r"):
                rows[-1] = piece[1:] + rows[-1][len(piece) - 1 :]
                at = len(piece) - 1
            elif piece.startswith("\x1b"):
                rows[-1] = rows[-1][:at] + piece[1:]
            else:
                rows[-1] += piece
        return rows


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.usefixtures("columns")
def test_a_terminal_shows_what_goes_on_below_what_was_said() -> None:
    terminal = Terminal()
    lines = ProgressLines(terminal)
    lines.say("worker", "loading")
    lines.show("worker", 0.25, "a quarter is done, and that is a long line")
    assert terminal.screen() == ["loading", "a quarter is done, and that is a long line [######..................]"]
    lines.show("worker", 0.5, "half")
    assert terminal.screen() == ["loading", "half [############............]"]
    lines.say("frontend", "ready")
    assert terminal.screen() == ["loading", "ready", "half [############............]"]
    lines.say("worker", "loaded")
    assert terminal.screen() == ["loading", "ready", "loaded", ""]


@pytest.mark.usefixtures("columns")
def test_several_share_the_last_row_of_a_terminal_and_it_never_wraps() -> None:
    terminal = Terminal()
    lines = ProgressLines(terminal)
    lines.show("one", 0.0, "first")
    lines.show("two", 1.0, "second")
    assert terminal.screen() == [f"first [{'.' * 24}] | second [{'#' * 24}]"]
    lines.show("one", 2.0, "x" * 1000)
    assert [len(row) for row in terminal.screen()] == [99]
    lines.end()
    assert terminal.screen() == [""]


def test_a_log_gets_a_line_now_and_then() -> None:
    log, now = io.StringIO(), [50.0]
    lines = ProgressLines(log, lambda: now[0])
    lines.say("worker", "loading")
    for step in range(24):
        lines.show("worker", step / 24, f"{step} of 24")
        now[0] += LOG_SECONDS / 8
    lines.say("worker", "loaded")
    lines.show("worker", 0.1, "the next thing begins")
    lines.end()
    assert log.getvalue().splitlines() == ["loading", "8 of 24", "16 of 24", "loaded"]


@pytest.mark.processes
@pytest.mark.usefixtures("columns")
def test_the_launcher_shows_how_far_its_children_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    family, tell = Family(), Progress()
    family.start("worker", "tests.share_child", [])
    try:
        while family.listen(10.0, tell) is None:
            pass
    finally:
        family.stop()
    assert [row[11:] for row in terminal.screen()] == ["worker: begins", "worker: ready", ""]
    drawn = terminal.getvalue()
    assert f"worker: half of it [{'#' * 12}{'.' * 12}]\x1b[K\r" in drawn
    assert f"worker: more of it [{'#' * 18}{'.' * 6}]\x1b[K\r\x1b[K" in drawn


def test_a_terminal_that_is_gone_stops_nobody() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "input/output error")

    lines = ProgressLines(Gone())
    lines.say("worker", "loading")
    lines.show("worker", 0.5, "half")
    lines.end()
