"""What a timeline's options are refused for, before anything starts that takes long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timeline.config import TimelineConfig
from timeline.errors import TraceError


def test_a_pipe_that_nobody_reads_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "run.json")
    with pytest.raises(TraceError, match=r"^--timeline .*run.json: No such device or address$"):
        TimelineConfig(timeline=str(path)).check()
