"""The prefill benchmark computes prompts in chunks, and knows how many operations that takes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench import prefill
from bench.__main__ import main as bench_main
from bench.operations import pairs, prompt_operations
from bench.prefill_steps import Chunk, PrefillSteps, chunks
from bench.shapes import shape_of
from checkpoint import ModelConfig, describe
from gpu_worker.building import build_engine
from gpu_worker.config import EngineConfig
from gpu_worker.engine import Engine
from gpu_worker.pipeline import StepPipeline
from gpu_worker.session import check_plan
from protocol.messages import Plan, RowFlag
from tests.word_model import write_word_model


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    model = write_word_model(tmp_path / "model", "one", "two")
    config = EngineConfig(
        model=str(model), device="cpu", load_format="dummy", threads=1, max_num_seqs=4, max_model_len=51,
        max_batch_tokens=32, kv_cache_blocks=13,
    )  # fmt: skip
    made = build_engine(config, lambda _: None)
    yield made
    made.device.close()


def test_prompts_are_timed_for_each_budget_beside_the_rate_of_matrix_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_word_model(tmp_path / "model", "one", "two")
    sizes = ["--prompts", "2x40", "5x9", "--max-batch-tokens", "16", "64", "--runs=2", "--matrix-size=64"]
    options = [f"--model={model}", "--device=cpu", "--dtype=float32", *sizes, "--json"]
    monkeypatch.setattr("sys.argv", ["bench", "prefill", *options, "--", "--threads=1"])
    assert bench_main() == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    found = [(one["prompts"], one["prompt_tokens"], one["max_batch_tokens"]) for one in report["prompts"]]
    assert found == [(2, 40, 16), (2, 40, 64), (5, 9, 16), (5, 9, 64)]
    assert [one["steps"] for one in report["prompts"]] == [5, 2, 3, 1]
    assert report["matrix_operations_per_second"] > 1e6
    for one in report["prompts"]:
        assert one["seconds"] == pytest.approx(np.median(one["seconds_of_runs"]))
        assert one["tokens_per_second"] == pytest.approx(one["prompts"] * one["prompt_tokens"] / one["seconds"])
        rate = one["operations"] / one["seconds"]
        assert one["operations_per_second"] == pytest.approx(rate)
        assert one["share_of_matrix_rate"] == pytest.approx(rate / report["matrix_operations_per_second"])
        assert 0 < one["device_ms"]["p50"] <= one["device_ms"]["max"]
        assert 1 < one["host_us"]["p50"] <= one["host_us"]["p99"]
        assert 0 <= one["idle_share"] < 1
    assert f"{report['prompts'][2]['tokens_per_second']:,.0f}" in prefill.text(report)


def test_a_step_takes_prompts_in_turn_as_far_as_its_budget_lasts() -> None:
    assert chunks(3, 4, 5) == [
        [Chunk(0, 0, 4), Chunk(1, 0, 1)],
        [Chunk(1, 1, 3), Chunk(2, 0, 2)],
        [Chunk(2, 2, 2)],
    ]
    assert chunks(2, 3, 100) == [[Chunk(0, 0, 3), Chunk(1, 0, 3)]]
    assert chunks(1, 4, 2) == [[Chunk(0, 0, 2)], [Chunk(0, 2, 2)]]


def test_plans_are_such_as_a_worker_takes_and_have_every_token_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []
    in_flight: list[int] = []
    own = StepPipeline.launch

    def launch(self: StepPipeline, plan: Plan) -> None:
        check_plan(plan, engine)
        plan.check()
        own(self, plan)
        plans.append(plan)
        in_flight.append(len(self))

    monkeypatch.setattr(StepPipeline, "launch", launch)
    timed = PrefillSteps(engine).run(3, 50, 20)
    assert len(timed.device_seconds) == len(timed.host_seconds) == len(plans) == 8
    assert max(in_flight) == 2
    assert max(int(plan.count.sum()) for plan in plans) == 20
    assert sum(int(plan.count.sum()) for plan in plans) == 150
    tables = np.concatenate([plan.table_block for plan in plans])
    assert len(np.unique(tables)) == len(tables) == 3 * 4, "each prompt has its own blocks"
    assert np.concatenate([plan.begin_slot for plan in plans]).tolist() == [0, 1, 2]
    sampled = [plan.slot[plan.flags == RowFlag.SAMPLE].tolist() for plan in plans]
    assert sampled == [[], [], [0], [], [1], [], [], [2]], "a prompt's last chunk yields a token"


def test_prompts_that_do_not_fit_into_the_kv_cache_are_left_out(engine: Engine) -> None:
    steps = PrefillSteps(engine)
    assert steps.fits(3, 50)
    assert steps.fits(13, 16)
    assert not steps.fits(4, 50)


def test_a_token_sees_itself_and_what_came_before_or_a_window() -> None:
    assert pairs(4) == 1 + 2 + 3 + 4
    assert pairs(4, 2) == 1 + 2 + 2 + 2
    assert pairs(4, 9) == pairs(4)


def test_operations_are_two_a_parameter_that_multiplies_and_attention() -> None:
    with shape_of("llama-3.1-8b") as folder:
        model = describe(folder)
    assert isinstance(model, ModelConfig)
    embedding, norms = 128256 * 4096, 65 * 4096
    layers = 8_030_261_248 - 2 * embedding - norms
    attention = 32 * 4 * 32 * 128 * (100 * 101 // 2)
    assert prompt_operations(model, 1, 100) == 2 * layers * 100 + 2 * embedding + attention
    assert prompt_operations(model, 7, 100) == 7 * prompt_operations(model, 1, 100)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--max-batch-tokens", "512", "0"], "--max-batch-tokens must be at least 1, not 512 0"),
        (["--runs", "0"], "--runs must be at least 1"),
        (["--matrix-size", "0"], "--matrix-size must be at least 1"),
        (["--prompts", "1x200000"], "200001 tokens in a request are more than the model's 131072"),
        (["--model", "/nowhere/at/all"], "no such file or folder"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_measured(
    arguments: list[str], word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "prefill", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert bench_main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line


@pytest.mark.parametrize("prompts", ["4", "0x5", "5x0", "-1x5", "axb", "100000x5", "4x5x6"])
def test_prompts_are_a_number_and_a_length(
    prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "prefill", f"--prompts={prompts}"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        bench_main()
    assert ended.value.code == 2
    assert f"must be as in 64x512, at most 65536 prompts, not {prompts}" in capsys.readouterr().err.splitlines()[-1]
