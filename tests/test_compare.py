"""Two timelines side by side: each figure of both, and how the second relates to the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.made_traces import FORWARD, TOKENIZE, Process, lockstep_run, made_trace, overlapped_run, span, write_trace
from timeline.__main__ import main
from timeline.comparison import Figure, Unit, compare, text
from timeline.reckoning import report

TURNS = report(made_trace(*lockstep_run(3)))
AHEAD = report(made_trace(*overlapped_run(3)))


def figures() -> dict[str, Figure]:
    return {figure.name: figure for figure in compare(TURNS, AHEAD)}


@pytest.mark.parametrize(
    ("name", "unit", "a", "b", "relative"),
    [
        ("whole run", Unit.NS, 3_050_000, 2_650_000, 2650 / 3050),
        ("steady state", Unit.NS, 2_800_000, 2_400_000, 6 / 7),
        ("device active, steady state", Unit.SHARE, 6 / 7, 1.0, 1 / 7),
        ("device idle, steady state", Unit.SHARE, 1 / 7, 0.0, -1 / 7),
        ("device idle, steady state, time", Unit.NS, 400_000, 0, 0.0),
        ("device idle, whole run", Unit.SHARE, 650 / 3050, 250 / 2650, 250 / 2650 - 650 / 3050),
        ("gain if it were never idle", Unit.RATIO, 7 / 6, 1.0, 6 / 7),
        ("idle gaps", Unit.COUNT, 2, 0, 0.0),
        ("idle gap, p50", Unit.NS, 200_000, None, None),
        ("idle gap, p99", Unit.NS, 200_000, None, None),
        ("idle gap, longest", Unit.NS, 200_000, None, None),
        ("decode steps", Unit.COUNT, 3, 3, 1.0),
        ("decode step, p50", Unit.NS, 800_000, 800_000, 1.0),
        ("decode step, p99", Unit.NS, 800_000, 800_000, 1.0),
        ("tokens", Unit.COUNT, 12, 12, 1.0),
        ("tokens a second, steady state", Unit.PER_SECOND, 12 / 2.8e-3, 12 / 2.4e-3, 7 / 6),
        ("wasted rows", Unit.SHARE, 0.0, 0.0, 0.0),
        ("CPU time of schedulers", Unit.NS, 330_000, 330_000, 1.0),
        ("hidden CPU time of schedulers", Unit.SHARE, 0.0, 200 / 330, 200 / 330),
        ("CPU time of workers", Unit.NS, 210_000, 210_000, 1.0),
        ("hidden CPU time of workers", Unit.SHARE, 0.0, 140 / 210, 140 / 210),
    ],
)
def test_a_figure_is_that_of_both_and_their_relation(
    name: str, unit: Unit, a: float, b: float | None, relative: float | None
) -> None:
    found = figures()[name]
    assert found.unit is unit
    for value, expected in ((found.a, a), (found.b, b), (found.relative, relative)):
        assert value == (None if expected is None else pytest.approx(expected))


def test_every_figure_is_judged_above_and_what_neither_has_is_left_out() -> None:
    assert len(figures()) == 21
    assert not any("prefill" in name or "mixed" in name for name in figures())


def test_what_only_the_second_has_keeps_its_place() -> None:
    prompt = Process("worker 0", "worker", "cpu", [span(FORWARD, 0, 5, 1, rows=1, tokens=9)])
    names = [figure.name for figure in compare(TURNS, report(made_trace(prompt)))]
    assert names.index("decode steps") < names.index("prefill steps") < names.index("tokens")


def test_a_timeline_without_a_device_is_compared_as_far_as_it_goes() -> None:
    frontend = report(made_trace(Process("frontend", "frontend", "", [span(TOKENIZE, 0, 5)])))
    found = {figure.name: figure for figure in compare(TURNS, frontend)}
    assert (found["whole run"].b, found["device idle, steady state"].b) == (5000, None)
    assert found["CPU time of schedulers"].b is None
    shown = text("a", "b", TURNS, frontend)
    assert "NOTE: b: There is no span of a device" in shown


def test_nothing_is_divided_by_nothing() -> None:
    nothing = report(made_trace())
    assert {figure.relative for figure in compare(nothing, TURNS)} == {None}


def test_the_comparison_is_a_table_headed_by_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = write_trace(tmp_path / "turns.json", *lockstep_run(3))
    ahead = write_trace(tmp_path / "ahead.json.gz", *overlapped_run(3))
    assert main(["compare", str(turns), str(ahead)]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["", str(turns), str(ahead), "change"]
    assert ["steady state", "2.80 ms", "2.40 ms", "0.86×"] in rows
    assert ["device idle, steady state", "14.3 %", "0 %", "−14.3 pp"] in rows
    assert ["idle gap, p50", "200 µs", "–", "–"] in rows
    assert ["tokens a second, steady state", "4,286", "5,000", "1.17×"] in rows
    assert main(["compare", "--json", str(turns), str(ahead)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["a"]["name"] == "turns.json"
    assert printed["b"]["devices"][0]["idle_ns"] == 0
    assert printed["figures"][0]["name"] == "whole run"
    assert printed["figures"][0]["unit"] == "ns"


def test_a_mistake_with_either_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = write_trace(tmp_path / "turns.json", *lockstep_run(1))
    assert main(["compare", str(turns), str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"timeline: {tmp_path}: Is a directory\n"
