"""What part of a run is drawn, what each moment of it was, and what a user is told who asks for what can't be drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from protocol.messages import SpanKind
from tests.made_traces import (
    FORWARD,
    IDLE,
    PLAN,
    SAMPLE,
    SETTLE,
    STAGE,
    WAIT,
    Process,
    lockstep_run,
    made_trace,
    overlapped_run,
    span,
    write_trace,
)
from timeline.__main__ import main
from timeline.colours import BOTH, DEVICE_IDLE, DEVICE_ONLY, MOMENT_NAMES, NO_WORK, OF_KIND, OF_MOMENT
from timeline.flow import Flow, flows
from timeline.reckoning import report
from timeline.rows import rows
from timeline.strip import strips
from timeline.window import STEPS, Window, side_by_side, telling, whole

US = 1000


def moments(*processes: Process) -> list[tuple[float, float, int]]:
    (strip,) = strips(made_trace(*processes))
    edges = (strip.edges / US).tolist()
    return list(zip(edges[:-1], edges[1:], strip.moments.tolist(), strict=True))


# ---------------------------------------------------------------- the strip


def test_a_moment_is_named_by_who_works_in_it() -> None:
    worker = Process(
        "worker 0",
        "worker",
        "cpu",
        [span(FORWARD, 10, 40, 1), span(FORWARD, 50, 60, 2), span(STAGE, 20, 30, 2), span(WAIT, 30, 60)],
    )
    scheduler = Process("scheduler", "scheduler", "", [span(PLAN, 25, 45, 2), span(SETTLE, 58, 70, 1)])
    assert moments(scheduler, worker) == [
        (10, 20, DEVICE_ONLY),
        (20, 40, BOTH),
        (40, 50, DEVICE_IDLE),
        (50, 58, DEVICE_ONLY),
        (58, 60, BOTH),
    ]


def test_no_moment_is_idle_while_there_is_no_work() -> None:
    worker = Process("worker 0", "worker", "cpu", [span(FORWARD, 0, 10, 1), span(FORWARD, 100, 110, 2)])
    scheduler = Process("scheduler", "scheduler", "", [span(IDLE, 12, 80), span(PLAN, 80, 90, 2)])
    assert moments(scheduler, worker) == [
        (0, 10, DEVICE_ONLY),
        (10, 80, NO_WORK),
        (80, 100, DEVICE_IDLE),
        (100, 110, DEVICE_ONLY),
    ]


@pytest.mark.parametrize("run", [lockstep_run, overlapped_run])
def test_the_strip_has_the_shares_of_the_report(run) -> None:  # type: ignore[no-untyped-def]
    trace = made_trace(*run(50))
    (strip,), together = strips(trace), report(trace).together
    assert together is not None
    assert strip.times(DEVICE_IDLE).total == together.idle_ns
    assert strip.times(BOTH).total + strip.times(DEVICE_ONLY).total == together.busy_ns
    assert strip.times(NO_WORK).total == together.no_work_ns
    assert strip.edges[-1] - strip.edges[0] == together.steady_ns + together.no_work_ns
    assert (strip.moments[1:] != strip.moments[:-1]).all()


def test_each_worker_has_a_strip_of_its_own_below_its_device() -> None:
    scheduler, first = lockstep_run(3)
    second = Process("worker 1", "worker", "cuda:1", [span(FORWARD, 0, 10, 1, session=2)])
    found = rows(made_trace(first, Process("frontend", "frontend", "", [span(WAIT, 0, 1)]), second, scheduler))
    assert [row.label for row in found] == [
        "frontend", "scheduler", "worker 0", "device: copy in", "device: compute", "device: copy out", "overlap",
        "device: compute", "overlap",
    ]  # fmt: skip
    assert [row.label for row in found if row.opens] == ["frontend", "scheduler", "worker 0", "device: compute"]


def test_each_worker_is_below_the_scheduler_that_plans_for_it() -> None:
    def pair(number: int) -> tuple[Process, Process]:
        plan, forward = span(PLAN, 0, 1, 1, session=number), span(FORWARD, 2, 3, 1, session=number)
        return Process(f"scheduler {number}", "scheduler", "", [plan]), Process(
            f"worker {number}", "worker", "", [forward]
        )

    (first, its), (second, others), (_, unknown) = pair(1), pair(2), pair(3)
    order = [row.shows.process for row in rows(made_trace(first, second, unknown, others, its)) if row.opens]
    assert order == ["scheduler 1", "worker 1", "scheduler 2", "worker 2", "worker 3"]


# ---------------------------------------------------------------- windows


def test_a_telling_window_has_some_steps_of_the_middle() -> None:
    trace = made_trace(*overlapped_run(100))
    window = telling(trace)
    begun = [flow.step for flow in flows(trace, window) if window.start <= flow.began and flow.ended <= window.end]
    assert len(begun) == STEPS
    assert 20 < begun[0] < 80


def test_a_telling_window_is_ordinary_though_the_middle_is_not() -> None:
    steps, at = [], 0.0
    for step in range(1, 101):
        length = 10_000 if 45 <= step <= 55 else 100
        steps.append(span(FORWARD, at, at + length, step))
        at += length
    window = telling(made_trace(Process("worker 0", "worker", "cpu", steps)))
    assert window.end - window.start <= 100 * US * (STEPS + 1)


def test_a_short_run_opens_on_its_steps() -> None:
    scheduler, worker = lockstep_run(3)
    started = Process(scheduler.name, scheduler.role, "", [span(IDLE, -90_000, 0), *scheduler.spans])
    window = telling(made_trace(started, worker))
    assert -100 * US < window.start < 0
    assert window.end == 200 * US + 2850 * US


def test_a_short_run_opens_on_the_longest_row_of_ordinary_steps() -> None:
    starts = [0, 9000, 9100, 9200, 9300, 9400, 50_000, 50_100]  # a first step that compiles, and a pause
    steps = [span(FORWARD, at, at + (8990 if at == 0 else 95), step) for step, at in enumerate(starts, 1)]
    window = telling(made_trace(Process("worker 0", "worker", "cpu", steps)))
    assert [flow.step for flow in flows(made_trace(Process("worker 0", "worker", "cpu", steps)), window)][1:] == [
        2,
        3,
        4,
        5,
        6,
    ]
    assert window.end - window.start < 600 * US


def test_where_nothing_was_computed_all_is_seen() -> None:
    trace = made_trace(Process("scheduler", "scheduler", "", [span(PLAN, 5, 6, 1)]))
    assert telling(trace) == whole(trace)


def test_runs_beside_each_other_are_on_one_time_scale() -> None:
    lockstep, overlapped = side_by_side([made_trace(*lockstep_run(60)), made_trace(*overlapped_run(60))])
    assert lockstep.end - lockstep.start == overlapped.end - overlapped.start


def test_runs_beside_each_other_begin_with_a_step() -> None:
    traces = made_trace(*lockstep_run(60)), made_trace(*overlapped_run(60))
    windows = side_by_side(traces)
    before = [
        min(flow.began for flow in flows(trace, whole(trace)) if flow.began >= window.start) - window.start
        for trace, window in zip(traces, windows, strict=True)
    ]
    assert before == [250 * US, 250 * US]


# ---------------------------------------------------------------- a step's way


def test_a_step_is_followed_from_its_plan_to_where_it_is_settled() -> None:
    trace = made_trace(*overlapped_run(10))
    found = flows(trace, Window(1000 * US, 1800 * US))
    assert found == [
        Flow(1, 2, 1, 2, 300 * US, 1000 * US, 1800 * US, 1820 * US),
    ]
    assert flows(trace, Window(0, 100 * US)) == []


def test_what_no_span_says_of_a_step_is_unknown() -> None:
    trace = made_trace(Process("worker 0", "worker", "cpu", [span(FORWARD, 1, 8, 4), span(SAMPLE, 8, 9, 4)]))
    (flow,) = flows(trace, whole(trace))
    assert flow == Flow(1, 4, None, 1, None, 1 * US, 9 * US, None)


# ---------------------------------------------------------------- colours


def lightness(colour: str) -> float:
    """CIE L*, from 0 to 100."""
    linear = ((int(colour[at : at + 2], 16) / 255) ** 2.2 for at in (1, 3, 5))
    luminance = sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return float(116 * np.cbrt(luminance) - 16)


def test_who_sees_no_hues_can_tell_the_moments_apart() -> None:
    dark, middle, light = sorted(lightness(colour) for colour in OF_MOMENT.values())
    assert middle - dark > 20
    assert light - middle > 20
    assert MOMENT_NAMES.keys() == OF_MOMENT.keys()


def test_every_kind_of_span_has_a_colour_of_its_own() -> None:
    assert set(OF_KIND) == set(SpanKind)
    assert len(set(OF_KIND.values())) == len(OF_KIND)


# ---------------------------------------------------------------- mistakes


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "run.json.gz", *overlapped_run(40))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--out", "x.gif"], "x.gif: what is drawn ends in .html, .png, .pdf or .svg"),
        (["--out", "x"], "x: what is drawn ends in .html, .png, .pdf or .svg"),
        (
            ["--out", "x.html", "--from", "100"],
            "run.json.gz: nothing is there to draw: the run is from 0.000 s to 0.032 s",
        ),
        (["--out", "x.html", "--from", "0.02", "--to", "0.01"], "--to 0.01 is not after --from 0.02"),
        (["--out", "/no/such/folder/x.html"], "/no/such/folder/x.html: No such file or directory"),
        (["--out", "/no/such/folder/x.png"], "/no/such/folder/x.png: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    recorded: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recorded.parent)
    assert main(["draw", str(recorded), *arguments]) == 2
    assert capsys.readouterr().err == f"timeline: {says}\n"
    assert {path.name for path in recorded.parent.iterdir()} == {"run.json.gz"}


@pytest.mark.parametrize("seconds", ["nan", "-1", "inf", "soon", "1e300"])
def test_a_window_is_given_in_seconds(recorded: Path, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["draw", str(recorded), "--out", "x.html", f"--from={seconds}"])
    assert exit_.value.code == 2
    assert f"{seconds!r} is no number of seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--from", "0.004", "--to", "0.005"], "0.004 s to 0.005 s"),
        (["--from", "0.030"], "0.030 s to 0.032 s"),
        ([], "0.006 s to 0.014 s"),
    ],
)
@pytest.mark.parametrize(("name", "opens"), [("x.html", "opens on"), ("x.svg", "shows")])
def test_what_is_drawn_is_said(
    recorded: Path, options: list[str], says: str, name: str, opens: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = recorded.parent / name
    assert main(["draw", str(recorded), "--out", str(out), *options]) == 0
    said = f"{out} {opens} {says} since the recording began (--from, --to); the run is from 0.000 s to 0.032 s"
    assert capsys.readouterr().out.splitlines() == [said]


def test_an_empty_run_can_not_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = write_trace(tmp_path / "empty.json", Process("scheduler", "scheduler", "", []))
    assert main(["draw", str(empty), "--out", str(tmp_path / "x.html")]) == 2
    assert capsys.readouterr().err == "timeline: empty.json: there are no spans to draw\n"


def test_without_matplotlib_a_picture_is_refused_and_a_page_is_drawn(
    recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name.startswith(("matplotlib.", "timeline.picture"))]:
        monkeypatch.delitem(sys.modules, name)
    picture, page = recorded.parent / "x.png", recorded.parent / "x.html"
    assert main(["draw", str(recorded), "--out", str(picture)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "matplotlib, which is not installed: pip install 'stepahead[draw]'" in said
    assert main(["draw", str(recorded), "--out", str(page)]) == 0
    assert page.exists()


def test_a_comparison_is_drawn_beside_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_trace(tmp_path / "a.json", *lockstep_run(20))
    b = write_trace(tmp_path / "b.json", *overlapped_run(20))
    out = tmp_path / "both.html"
    assert main(["compare", str(a), str(b), "--out", str(out)]) == 0
    assert "device idle, steady state" in capsys.readouterr().out
    assert "<title>a · b</title>" in out.read_text()
    assert main(["compare", str(a), str(b), "--out", str(tmp_path / "both.txt")]) == 2
    assert capsys.readouterr().out == ""
