"""The simulator: times that can be worked out by hand, and the choices it is told to try."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.__main__ import main as bench_main
from bench.device_model import DeviceModel
from bench.simulate import figures, read_trace
from bench.simulation import Arrival, Host, Outcome, Simulation
from protocol.messages import Opened
from scheduler_proc.policy import FIRST_COME, PriorityFirst
from tests.stub_model import EOS

STEP, TOKEN = 1.0, 0.01
HOST = Host(think=0.1, wire=0.05)
PROMPT, OUTPUT = 11, 5


def worker(blocks: int = 100, max_batch_tokens: int = 64) -> Opened:
    return Opened(1, 1, "m", "none", "none", 100, np.array([EOS], np.uint32), 8, blocks, 4, max_batch_tokens, 200)


def arrival(at: float = 0.0, prompt: int = PROMPT, output: int = OUTPUT) -> Arrival:
    return Arrival(at, np.arange(10, 10 + prompt).astype(np.uint32), output)


def simulated(credit: int, arrivals: list[Arrival], workers: int = 1, host: Host = HOST, **of_worker: int) -> Outcome:
    device = DeviceModel("clockwork", step=STEP, row=0.0, position=0.0, token=TOKEN)
    return Simulation(workers, worker(**of_worker), credit, device, host).run(arrivals)


def test_with_a_plan_queued_the_device_waits_for_the_first_one_alone() -> None:
    outcome = simulated(2, [arrival()])
    computed = OUTPUT * STEP + (PROMPT - 1) * TOKEN
    assert outcome.busy == pytest.approx(computed)
    assert outcome.idle == pytest.approx(HOST.think + HOST.wire)
    assert outcome.seconds == pytest.approx(HOST.think + HOST.wire + computed + HOST.wire)
    assert np.concatenate(outcome.gaps) == pytest.approx([STEP] * (OUTPUT - 1))
    assert outcome.ttft[0] == pytest.approx([0.1 + 0.05 + STEP + (PROMPT - 1) * TOKEN + 0.05])


def test_in_lockstep_every_step_waits_for_the_way_there_and_back() -> None:
    outcome = simulated(1, [arrival()])
    between = HOST.think + 2 * HOST.wire
    assert outcome.idle == pytest.approx(HOST.think + HOST.wire + (OUTPUT - 1) * between)
    assert np.concatenate(outcome.gaps) == pytest.approx([STEP + between] * (OUTPUT - 1))


def test_steps_that_are_shorter_than_thinking_leave_the_device_idle_at_any_credit() -> None:
    slow = Host(think=3.0, wire=0.0)
    outcome = simulated(2, [arrival()], host=slow)
    assert np.concatenate(outcome.gaps) == pytest.approx([slow.think] * (OUTPUT - 1), abs=(PROMPT - 1) * TOKEN)
    assert outcome.idle > outcome.busy


def test_a_device_without_requests_is_not_idle() -> None:
    near, far = simulated(2, [arrival(), arrival(8.0)]), simulated(2, [arrival(), arrival(1000.0)])
    assert near.idle == pytest.approx(far.idle) == pytest.approx(2 * (HOST.think + HOST.wire))


def test_two_devices_compute_at_the_same_time() -> None:
    arrivals = [arrival(output=50) for _ in range(2)]
    one, two = (simulated(2, arrivals, workers=n, max_batch_tokens=12) for n in (1, 2))
    assert two.busy > 1.9 * one.busy
    assert two.tokens == one.tokens == 100
    assert two.seconds == pytest.approx(one.seconds, rel=0.1)


def test_a_short_pool_preempts_and_a_request_that_never_fits_is_refused() -> None:
    outcome = simulated(2, [arrival(output=60) for _ in range(4)], blocks=50)
    assert outcome.preemptions
    assert outcome.tokens == 240
    refused = simulated(2, [arrival(prompt=201)])
    assert (refused.refused, refused.tokens, refused.steps) == (1, 0, 0)
    assert figures(refused)["tokens_per_s"] == 0.0


def test_by_priority_the_urgent_ones_wait_less_and_by_arrival_they_do_not() -> None:
    arrivals = [Arrival(0.0, np.full(12, 10 + n, np.uint32), 9, priority=-(n % 2)) for n in range(40)]
    device = DeviceModel("clockwork", step=STEP, row=0.0, position=0.0, token=TOKEN)
    waited = {}
    for policy in (FIRST_COME, PriorityFirst(1e6)):
        ttft = Simulation(1, worker(), 2, device, HOST, policy).run(arrivals).ttft
        assert {priority: len(each) for priority, each in ttft.items()} == {0: 20, -1: 20}
        waited[policy] = np.mean(ttft[-1]) / np.mean(ttft[0])
    assert waited[FIRST_COME] == pytest.approx(1.0, abs=0.1)
    assert waited[PriorityFirst(1e6)] < 0.5


def test_fewer_prompt_tokens_in_a_step_make_gaps_shorter_and_first_tokens_later() -> None:
    arrivals = [arrival(output=40), *[arrival(3.0, prompt=60) for _ in range(6)]]
    device = DeviceModel("clockwork", step=STEP, row=0.0, position=0.0, token=TOKEN)
    loose, tight = (Simulation(1, worker(), 2, device, HOST, max_prefill_tokens=n).run(arrivals) for n in (None, 10))
    assert np.concatenate(tight.gaps).max() < np.concatenate(loose.gaps).max()
    assert max(tight.ttft[0]) > max(loose.ttft[0])


def bench(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr("sys.argv", ["bench", "simulate", *options])
    return bench_main()


def test_all_choices_are_tried_with_each_other_on_the_same_arrivals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--requests=20",
        "--rate=50",
        "--workers=2",
        "--input-lengths",
        "9",
        "40",
        "--output-lengths",
        "3",
        "20",
        "--credit",
        "1",
        "2",
        "--max-batch-tokens",
        "256",
        "2048",
    ]
    assert bench(monkeypatch, *options, "--json") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    chosen = [(run["credit"], run["max_batch_tokens"]) for run in report["runs"]]
    assert chosen == [(1, 256), (1, 2048), (2, 256), (2, 2048)]
    assert len({run["tokens"] for run in report["runs"]}) == 1
    assert report["runs"][3]["active_percent"] > report["runs"][1]["active_percent"]
    assert bench(monkeypatch, *options) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3 + 4 + 1


def test_policies_are_tried_too_and_each_priority_has_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--requests=12", "--rate=0", "--input-lengths", "9", "20", "--output-lengths", "3", "5"]
    options += ["--max-prefill-tokens", "32", "--priorities", "0", "0", "-1", "--scheduling-policy", "fcfs", "priority"]
    options += ["--aging-seconds", "5", "60"]
    assert bench(monkeypatch, *options) == 0
    lines = capsys.readouterr().out.splitlines()[3:-1]
    assert [line.rsplit("  ")[-1].partition(",")[0] for line in lines] == [
        "fcfs",
        "priority -1",
        "priority 0",
        *["priority", "priority -1", "priority 0"] * 2,
    ]


def test_a_trace_is_served_in_the_order_of_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"at": 2.5, "prompt": 3, "output": 2}\n\n{"at": 1, "prompt": 5, "output": 4, "priority": -7, "user": "x"}\n'
    )
    told = [(each.at, len(each.prompt), each.output_tokens, each.priority, each.user) for each in read_trace(trace)]
    assert told == [(1, 5, 4, -7, "x"), (2.5, 3, 2, 0, "")]
    assert bench(monkeypatch, str(trace), "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["tokens"] == 6


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "no arrivals"),
        (b"{", "line 1"),
        (b'{"at": 0, "prompt": 1, "output": 1}\n[]', "line 2"),
        (b'{"at": 0, "prompt": 1}', "line 1"),
        (b'{"at": NaN, "prompt": 1, "output": 1}', "out of range"),
        (b'{"at": 0, "prompt": 0, "output": 1}', "out of range"),
        (b'{"at": 0, "prompt": 1, "output": 1, "priority": 2147483648}', "out of range"),
        (b'{"at": 0, "prompt": 1, "output": 1, "priority": null}', "line 1"),
        (b'{"at": 0, "prompt": 1e999, "output": 1}', "line 1"),
        (b"\xff\xfe", "no text"),
    ],
)
def test_a_trace_that_cannot_be_read_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: bytes, problem: str
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(text)
    assert bench(monkeypatch, str(trace)) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        "--requests=0",
        "--workers=0",
        "--rate=-1",
        "--think-us=nan",
        "--input-lengths=5 2",
        "--credit=0",
        "--blocks=0",
        "--blocks=99999999999",
        "--rate=1e-300",
        "--max-prefill-tokens=0",
        "--priorities=2147483648",
        "--aging-seconds=nan",
    ],
)
def test_choices_that_cannot_be_meant_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    name, _, values = option.partition("=")
    assert bench(monkeypatch, name, *values.split()) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_missing_trace_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(monkeypatch, "nowhere.jsonl") == 2
    assert "nowhere.jsonl: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["simulate", "throughput", "headline", "interference"])
def test_a_negative_seed_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", name, "--seed=-1"])
    with pytest.raises(SystemExit) as ended:
        bench_main()
    assert ended.value.code == 2
    assert "--seed: must be at least 0, not -1" in capsys.readouterr().err
