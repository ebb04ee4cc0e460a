"""What `start`, `stop` and `status` say, and what they refuse before a server is asked."""

from __future__ import annotations

from types import ModuleType

import pytest

from protocol.messages import AskTimeline, StartTimeline, StopTimeline, TimelineState
from timeline import start, status, stop
from timeline.__main__ import main
from timeline.config import MOST_NAME_BYTES, wrong_name

Question = StartTimeline | StopTimeline | AskTimeline

RECORDED = TimelineState(1, False, "timelines/a.json.gz", 12.3, 4567, 45_100, "", "")


def answering(monkeypatch: pytest.MonkeyPatch, command: ModuleType, state: TimelineState) -> list[Question]:
    """Have a command's questions answered so; return what is asked."""
    asked: list[Question] = []

    def ask(address: str, question: Question) -> TimelineState:
        asked.append(question)
        return state

    monkeypatch.setattr(command, "ask", ask)
    return asked


def test_stop_says_what_there_is_and_what_can_be_done_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, stop, RECORDED)
    assert main(["stop"]) == 0
    assert capsys.readouterr().out == (
        "stopped: timelines/a.json.gz: 12.3 s, 4,567 spans, 45.1 KB; python -m timeline report timelines/a.json.gz\n"
    )


def test_stop_gives_a_command_that_a_shell_takes_and_why_a_recording_had_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, stop, TimelineState(1, False, "a run.json", 0.5, 12, 200, "", "the disk is full"))
    assert main(["stop"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "stopped: a run.json: 500 ms, 12 spans, 200 B; python -m timeline report 'a run.json'"
    assert second == "the disk is full"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (RECORDED, "timelines/a.json.gz was the last recording: 12.3 s, 4,567 spans, 45.1 KB\n"),
        (TimelineState(1, True, "a.json", 2.0, 9, 900, "", ""), "a.json is being recorded: 2.00 s, 9 spans, 900 B\n"),
        (TimelineState(1, False, "", 0.0, 0, 0, "", ""), "nothing is recorded, and nothing was\n"),
    ],
)
def test_status_says_what_is_recorded_or_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: TimelineState, said: str
) -> None:
    answering(monkeypatch, status, state)
    assert main(["status"]) == 0
    assert capsys.readouterr().out == said


LONGEST = "x" * (MOST_NAME_BYTES - 5) + ".json"


@pytest.mark.parametrize("name", ["a.json", "a run.json.gz", "größer.json", LONGEST])
def test_a_plain_name_is_sent(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked = answering(monkeypatch, start, RECORDED)
    assert main(["start", name]) == 0
    assert asked == [StartTimeline(1, name)]


PLAIN = "must be a plain name: no folders, no control characters, no dot at the beginning"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x" + LONGEST, "the name has 201 bytes, at most 200 are allowed"),
        ("ö" * 100 + ".json", "the name has 205 bytes, at most 200 are allowed"),
        ("foo", "the name must end with .json or .json.gz"),
        ("a.html", "the name must end with .json or .json.gz"),
        ("a/b.json", PLAIN),
        (".json", PLAIN),
        ("\udcff.json", PLAIN),  # bytes that are no text
    ],
)
def test_another_name_is_refused_in_one_line_and_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    asked = answering(monkeypatch, start, RECORDED)
    assert main(["start", name]) == 2
    assert capsys.readouterr().err == f"timeline: file: {why}\n"
    assert asked == []
    assert wrong_name(name) == why
