"""What a timeline's options are refused for, before anything starts that takes long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timeline.config import TimelineConfig
from timeline.errors import TraceError


def test_a_pipe_that_nobody_reads_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "run.json")
    with pytest.raises(TraceError, match=r"^--timeline .*run.json is there already: name a new file$"):
        TimelineConfig(timeline=str(path)).check()


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("precious")
    with pytest.raises(TraceError, match="is there already"):
        TimelineConfig(timeline=str(path)).check()
    assert path.read_text() == "precious"


def test_a_check_leaves_no_file_behind(tmp_path: Path) -> None:
    TimelineConfig(timeline=str(tmp_path / "run.json")).check()
    assert not list(tmp_path.iterdir())
