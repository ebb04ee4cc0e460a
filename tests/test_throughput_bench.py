"""The throughput benchmark gives both sides the same work, in turns, and says what it found."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import torch

from bench import throughput
from bench.__main__ import main as bench_main
from bench.contestant import BenchmarkError, Run
from bench.transformers_peer import CONTINUOUS, TransformersPeer, _continuous, _static, mode_names
from bench.workload import Workload, uniform_workload
from stepahead.progress import Progress
from tests.tiny_models import tiny_model


def test_lengths_fill_their_ranges_and_a_seed_repeats_them() -> None:
    work = uniform_workload(400, (3, 5), (7, 9), 50, seed=1)
    assert {len(prompt) for prompt in work.prompts} == {3, 4, 5}
    assert set(work.output_lengths) == {7, 8, 9}
    assert {token for prompt in work.prompts for token in prompt} == set(range(50))
    assert work == uniform_workload(400, (3, 5), (7, 9), 50, seed=1)
    assert work != uniform_workload(400, (3, 5), (7, 9), 50, seed=2)
    assert work.output_tokens == sum(work.output_lengths)


class Clockwork:
    """A contestant whose n-th run takes what it was told, and that writes down who ran."""

    def __init__(self, name: str, log: list[str], seconds: list[float]) -> None:
        self.name, self._log, self._seconds = name, log, seconds

    def run(self, workload: Workload) -> Run:
        self._log.append(self.name)
        seconds = self._seconds.pop(0)
        return Run(seconds, workload.output_tokens, busy_seconds=seconds / 2)

    def close(self) -> None:
        pass


def test_contestants_take_turns_and_each_begins_every_other_time_and_each_run_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log: list[str] = []
    work = uniform_workload(4, (2, 2), (5, 5), 50, seed=0)
    pair = [Clockwork("a", log, [1.0, 2.0, 4.0]), Clockwork("b", log, [2.0, 2.0, 2.0])]
    runs = throughput._take_turns([*pair], work, 3, Progress())
    assert log == ["a", "b", "b", "a", "a", "b"]
    assert [one.tokens_per_second for one in runs["a"]] == [20.0, 10.0, 5.0]
    assert runs["b"][0].idle_share == 0.5
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("] ")[2] for line in told[-2:]] == ["b: run 3 of 3", "b: 10.0 tok/s, in 2.0 s"]


def test_the_report_has_every_pair() -> None:
    one = {"seconds": 1.0, "tokens_per_second": 20.0, "idle_share": 0.015}
    two = {"seconds": 2.0, "tokens_per_second": 10.0, "idle_share": None}
    shown = throughput.text(
        {
            "machine": {"cores": 2},
            "model": "tiny",
            "dtype": "float32",
            "device": "cpu",
            "requests": 4,
            "input_tokens": 8,
            "output_tokens": 20,
            "modes": {"generate": 10.0},
            "runs": {"ours": [one, one], "theirs": [two, two]},
            "ratio": {"of": "ours / theirs", "pairs": [2.0, 1.9], "median": 1.95, "least": 1.9, "most": 2.0},
        }
    )
    for found in (
        "cores 2",
        "20.0 tok/s",
        "idle 1.5%",
        "ours / theirs: 1.950  (2.000, 1.900)",
        "tried: generate: 10.0",
    ):
        assert found in shown


def test_transformers_is_tried_in_batches_of_the_size_that_there_is() -> None:
    assert mode_names(32) == [
        "generate, batches of 32",
        "generate, batches of 16",
        "generate, batches of 8",
        CONTINUOUS,
    ]
    assert mode_names(4) == ["generate, batches of 4", CONTINUOUS]


def test_a_static_batch_goes_on_until_its_longest_request_is_done() -> None:
    model = tiny_model("grouped queries")
    steps: list[int] = []
    model.register_forward_hook(lambda *_: steps.append(1))
    with torch.inference_mode():
        seconds = _static(model, [[5] * 3, [6] * 9, [7] * 4, [8] * 2], [2, 11, 3, 10], size=2)
    assert seconds > 0
    assert len(steps) == 3 + 11, "two batches: of the two short requests, and of the two long ones"


def test_a_model_that_cannot_be_served_is_said_in_words(tmp_path: Path) -> None:
    from bench.served import Served

    with pytest.raises(BenchmarkError, match="holds neither config.json nor"):
        Served("ours", [f"--model={tmp_path}"])


def test_its_continuous_batching_makes_what_was_asked_for() -> None:
    assert _continuous(tiny_model("grouped queries").eval(), [[5] * 3, [6] * 9], [2, 11]) > 0


def test_a_way_that_fails_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    work = uniform_workload(4, (2, 2), (5, 5), 50, seed=0)
    peer = object.__new__(TransformersPeer)

    def run(self: TransformersPeer, workload: Workload) -> Run:
        if self.mode == CONTINUOUS:
            raise BenchmarkError("not on this machine")
        return Run(1.0, workload.output_tokens)

    monkeypatch.setattr(TransformersPeer, "run", run)
    assert peer.best(work, work, Progress()) == {"generate, batches of 4": 20.0, CONTINUOUS: 0.0}
    assert peer.mode == "generate, batches of 4"


class Asked(Exception):  # noqa: N818 - it is no error
    """Stands for a system that would now be started."""


@pytest.mark.parametrize(
    ("arguments", "requests", "most", "launch"),
    [
        ([], 256, 1024, []),
        (["--requests", "3", "--output-lengths", "5", "7", "--", "--max-num-seqs=2"], 3, 7, ["--max-num-seqs=2"]),
    ],
)
def test_a_preset_is_what_other_options_leave_of_it(
    arguments: list[str], requests: int, most: int, launch: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    lengths: list[list[int]] = []

    def serve(name: str, options: list[str]) -> None:
        started.append(options)
        raise Asked

    def drawn(*given: object) -> Workload:
        work = uniform_workload(*given)  # type: ignore[arg-type]
        lengths.append([len(work.prompts), *work.output_lengths])
        return work

    monkeypatch.setattr("bench.throughput.Served", serve)
    monkeypatch.setattr("bench.throughput.uniform_workload", drawn)
    monkeypatch.setattr(sys, "argv", ["bench", "throughput", "--preset", "nano-vllm", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(Asked):
        bench_main()
    ((count, *output),) = lengths
    assert count == len(output) == requests
    assert max(output) <= most
    (options,) = started
    assert options[0].endswith("/qwen3-0.6b")
    assert options[3:] == [
        "--load-format=dummy", "--max-num-seqs=256", "--max-batch-tokens=8192", "--max-model-len=2048", *launch
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("device", "compare", "shared"),
    [("cuda", "lockstep", True), ("cuda", "nothing", False), ("cpu", "lockstep", False)],
)
def test_beside_another_a_contestant_takes_no_more_than_half_of_a_gpu(
    device: str, compare: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(name: str, options: list[str]) -> None:
        assert ("--gpu-memory-utilization=0.45" in options[:-2]) == shared
        assert options[-1] == "--gpu-memory-utilization=0.3", "what is asked for comes last, and holds"
        raise Asked

    own = ["--model=qwen3-0.6b", f"--device={device}", f"--compare={compare}", "--requests=1"]
    monkeypatch.setattr("bench.throughput.Served", serve)
    monkeypatch.setattr(sys, "argv", ["bench", "throughput", *own, "--", "--gpu-memory-utilization=0.3"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(Asked):
        bench_main()


@pytest.mark.parametrize(
    ("benchmark", "words"),
    [
        (
            "throughput",
            ['"continuous batching"', '"generate, batches of N"', "32, 16, 8", "as in -- --max-num"],
        ),
        ("scheduler", ["batch sizes (32 256 1024 4096)", "steps measured for each (600)", "wait meanwhile", "(fcfs)"]),
    ],
)
def test_help_says_what_may_be_given_and_what_is_taken_otherwise(
    benchmark: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", benchmark, "--help"])
    with pytest.raises(SystemExit):
        bench_main()
    told = " ".join(capsys.readouterr().out.split())
    assert [word for word in words if word not in told] == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--way", "generate, batches of 64"], "--way must be one of 'generate, batches of 32'"),
        (["--requests", "0"], "--requests must be at least 1"),
        (["--pairs", "-1"], "--pairs must be at least 1"),
        (["--input-lengths", "9", "3"], "--input-lengths must be two numbers from 1 on"),
        (["--output-lengths", "0", "3"], "--output-lengths must be two numbers from 1 on"),
        (["--model", "/nowhere/at/all"], "no such file or folder"),
        (["--model", "qwen3-0.6b", "--compare", "transformers"], "qwen3-0.6b has no weights to load"),
        (["--preset", "nano-vllm", "--pairs", "0"], "--pairs must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(
    arguments: list[str], word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "throughput", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert bench_main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line
