"""The benchmark of arrivals asks for each request when it is due, and says what clients and the device saw."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import arrivals
from bench.__main__ import main as bench_main
from bench.arrivals import figures, poisson
from bench.contestant import BenchmarkError
from bench.moments import Moments
from bench.step_times import DeviceTime, device_time
from bench.thin import ThinClient
from bench.workload import Workload
from protocol.endpoints import PrivateDirectory
from protocol.messages import Submit
from tests.stub_scheduler import StubScheduler
from tests.word_model import write_word_model


@pytest.mark.processes
@pytest.mark.slow
def test_requests_arrive_at_a_share_of_the_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, kept = write_word_model(tmp_path / "model", "one", "two"), tmp_path / "kept"
    sizes = ["--requests=3", "--input-lengths", "2", "9", "--output-lengths", "8", "12", "--seconds=0.4", "--share=0.5"]
    options = [f"--model={model}", "--device=cpu", "--dtype=float32", *sizes, f"--timelines={kept}"]
    monkeypatch.setattr("sys.argv", ["bench", "arrivals", *options, "--credit", "3", "--json", "--", "--threads=1"])
    assert bench_main() == 0
    report = json.loads(capsys.readouterr().out)
    peak = report["peak"]
    assert report["requests_per_second"] == pytest.approx(0.5 * peak["tokens_per_second"] / 10)
    assert [one["credit"] for one in report["runs"]] == [3]
    assert {file.name.rpartition("-")[0] for file in kept.iterdir()} == {"warm-up", "peak", "credit-3"}
    for one in report["runs"]:
        assert one["tokens_per_second"] == pytest.approx(report["output_tokens"] / one["seconds"])
        assert one["active_share"] == pytest.approx(one["busy_seconds"] / (one["busy_seconds"] + one["idle_seconds"]))
        assert 0 < one["active_share"] <= 1
        assert one["steps"] >= 8
        assert 0 < one["ttft_ms"]["p50"] <= one["ttft_ms"]["p99"]
        assert 0 < one["itl_ms"]["p50"] <= one["itl_ms"]["p99"] <= one["itl_ms"]["max"]
    assert f"{report['runs'][0]['active_share']:.2%}" in arrivals.text(report)


def test_a_request_is_asked_for_when_it_is_due_and_the_others_are_heard_meanwhile() -> None:
    directory = PrivateDirectory()
    try:
        with (
            StubScheduler(directory.address("stub"), lambda ask: [1] * ask.max_tokens) as scheduler,
            ThinClient(directory.address("stub")) as client,
        ):
            moments = client.arrive(Workload(((5, 6), (7,)), (3, 4)), np.array([0.0, 0.5]))
            asked = [scheduler.take(Submit), scheduler.take(Submit)]
    finally:
        directory.remove()
    assert [ask.max_tokens for ask in asked if isinstance(ask, Submit)] == [3, 4]
    assert moments.due[1] - moments.due[0] == pytest.approx(0.5)
    assert moments.last[0] < moments.due[1] < moments.first[1]
    assert (moments.until_first < 0.45).all()
    assert len(moments.between) == 2 + 3
    assert 0 < moments.between.max() < 0.45, "no gap lies between two requests"
    assert moments.seconds == pytest.approx(moments.last[1] - moments.due[0])


def test_what_clients_saw_is_reckoned_by_request() -> None:
    moments = Moments(np.array([10.0, 11.0]))
    moments.take(np.array([0]), 10.5)
    moments.take(np.array([0, 1]), 11.5)
    moments.take(np.array([1]), 13.5)
    assert moments.until_first.tolist() == [0.5, 0.5]
    assert moments.between.tolist() == [1.0, 2.0]
    assert (moments.first_of_all, moments.last_of_all, moments.seconds) == (10.5, 13.5, 3.5)
    told = figures(moments, DeviceTime(steps=3, busy=3.0, idle=1.0, no_work=2.0), Workload(((1,), (2,)), (3, 4)))
    assert told["tokens_per_second"] == pytest.approx(2.0)
    assert told["active_share"] == 0.75
    assert told["itl_ms"]["max"] == pytest.approx(2000.0)
    assert told["ttft_ms"]["p50"] == pytest.approx(500.0)


def test_arrivals_are_random_at_the_rate_that_is_wanted() -> None:
    at = poisson(50.0, 40.0, seed=1)
    assert len(at) == pytest.approx(2000, abs=4 * 2000**0.5)
    assert (np.diff(at) >= 0).all()
    assert at[0] >= 0
    assert at[-1] < 40
    gaps = np.diff(at)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1), "as of a Poisson process"
    assert poisson(50.0, 40.0, seed=1).tolist() == at.tolist()
    assert len(poisson(1e-9, 1.0, seed=1)) == 1


def span(pid: int, tid: int, name: str, start: float, end: float, step: int = 0) -> dict[str, Any]:
    about = {"step": step, "session": 9, "rows": 1, "tokens": 1} if step else {}
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start, "dur": end - start, "args": about}


def named(pid: int, role: str, **more: str) -> list[dict[str, Any]]:
    facts = {"role": role, "about": "", **more}
    return [
        {"ph": "M", "pid": pid, "tid": pid, "name": "process_name", "args": {"name": role}},
        {"ph": "M", "pid": pid, "tid": pid, "name": "stepahead", "args": facts},
    ]


def write_trace(path: Path, *spans: dict[str, Any]) -> Path:
    events = [*named(10, "scheduler"), *named(20, "worker", device="cpu"), *spans]
    head = {"displayTimeUnit": "ms", "otherData": {"stepahead": 1, "started": "2026-11-30T02:00:00Z"}}
    path.write_text(json.dumps(head | {"traceEvents": events}))
    return path


def test_time_without_work_is_neither_active_nor_idle(tmp_path: Path) -> None:
    steps = [
        span(20, 22, "forward", 1_000, 3_000, 1),
        span(20, 22, "forward", 3_500, 4_500, 2),  # 500 µs late
        span(20, 22, "forward", 10_000, 11_000, 3),  # no work until 9,700
    ]
    scheduler = [
        span(10, 10, "plan", 500, 600, 1),
        span(10, 10, "idle", 4_600, 8_000),
        span(10, 10, "idle", 8_001, 9_700),
        span(10, 10, "plan", 9_700, 9_800, 3),
    ]
    time = device_time(write_trace(tmp_path / "run.json", *steps, *scheduler))
    assert time.steps == 3
    assert time.busy == pytest.approx(4e-3)
    assert time.idle == pytest.approx(0.5e-3 + 0.3e-3)
    assert time.no_work == pytest.approx(10e-3 - 4.8e-3)
    assert time.active_share == pytest.approx(4 / 4.8)


def test_of_a_recording_without_steps_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="0 devices that computed"):
        device_time(write_trace(tmp_path / "run.json", span(10, 10, "idle", 0, 10)))
    with pytest.raises(BenchmarkError, match="fewer than two steps"):
        device_time(write_trace(tmp_path / "run.json", span(20, 22, "forward", 0, 10, 1)))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--requests", "0"], "--requests must be at least 1"),
        (["--credit", "1", "0"], "--credit must be at least 1, not 1 0"),
        (["--credit", "65"], "--credit must be at most 64, not 65"),
        (["--share", "0"], "--share must be more than 0, not 0"),
        (["--share", "nan"], "--share must be more than 0, not nan"),
        (["--seconds", "-1"], "--seconds must be more than 0 and at most 3600, not -1"),
        (["--seconds", "1e9"], "--seconds must be more than 0 and at most 3600"),
        (["--input-lengths", "9", "3"], "--input-lengths must be two numbers from 1 on, the larger last; not 9 3"),
        (["--output-lengths", "1", "99999"], "101023 tokens in a request are more than the model's 40960"),
        (["--timelines", "tests"], "--timelines tests: the folder is not empty"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(
    arguments: list[str], word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "arrivals", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert bench_main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line
