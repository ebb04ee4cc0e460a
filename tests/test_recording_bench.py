"""The recording benchmark switches a real system's timeline on and off, and says what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import recording
from bench.__main__ import main as bench_main
from tests.word_model import write_word_model


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(150)
def test_steps_are_timed_with_recording_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_word_model(tmp_path / "model", "one", "two")
    options = ["--dtype=float32", "--requests=2", "--steps=4", "--pairs=2", "--json"]
    launch = ["--load-format=dummy", "--threads=1", "--max-model-len=1024", "--kv-cache-blocks=200"]
    monkeypatch.setattr("sys.argv", ["bench", "recording", f"--model={model}", *options, "--", *launch])
    assert bench_main() == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["ratio"]["pairs"]) == 2
    for each in ("off", "on"):
        assert all(0 < seconds < 10 for seconds in report["seconds_a_step"][each])
    assert "2 pairs" in recording.text(report)


def test_a_count_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "recording", "--pairs=0"])
    assert bench_main() == 2
    assert "--pairs must be at least 1" in capsys.readouterr().err
