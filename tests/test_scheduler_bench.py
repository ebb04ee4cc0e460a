"""What is measured of the scheduler, on a few rows: with and without requests that wait."""

from __future__ import annotations

import json
from typing import Any

import pytest

import bench.scheduler
from bench.__main__ import main as bench_main


def measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    monkeypatch.setattr(bench.scheduler, "_start_seconds", lambda: 0.1)
    monkeypatch.setattr("sys.argv", ["bench", "scheduler", *options])
    code = bench_main()
    told = capsys.readouterr()
    return json.loads(told.out) if "--json" in options else (code, told.out, told.err)


def test_a_queue_is_measured_with_its_memory_and_its_steps_are_not_judged_as_steady_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--rows", "256", "--steps", "5", "--waiting", "3000", "--scheduling-policy", "shortest-prefill-first"]
    report = measured(monkeypatch, capsys, *options, "--json")
    (batch,) = report["batches"]
    assert batch["waiting"] == 3000
    assert batch["waiting_bytes"] < 4000
    assert batch["settle_plan_us"]["p50"] > 0
    assert not [name for name in report["budgets"] if "256" in name]
    code, told, _ = measured(monkeypatch, capsys, *options)
    assert code == 0
    assert "each of 3,000 requests that wait takes" in told


def test_without_a_queue_every_budget_of_its_size_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = measured(monkeypatch, capsys, "--rows", "256", "--steps", "5", "--json")
    assert len([name for name in report["budgets"] if "256" in name]) == 3
    assert report["batches"][0]["waiting_bytes"] == 0


@pytest.mark.parametrize("waiting", ["-1", "9999999999"])
def test_a_queue_that_cannot_be_meant_is_refused(
    waiting: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = measured(monkeypatch, capsys, "--waiting", waiting)
    assert code == 2
    assert "--waiting must be from 0 to 1000000" in told
