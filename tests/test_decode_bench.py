"""The decode benchmark drives the engine at any place, and knows what a step must read."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bench import decode, decode_attention
from bench.__main__ import main as bench_main
from bench.bandwidth import bandwidth
from bench.contestant import BenchmarkError
from bench.decode_attention import DecodeAttention, open_device
from bench.decode_steps import WARM_UP_STEPS, DecodeSteps, kv_bytes, weight_bytes
from bench.device_time import device_seconds
from bench.shapes import shape_of
from checkpoint import ModelConfig, describe
from gpu_worker.attention import AttentionStep, TorchAttention
from gpu_worker.building import build_engine
from gpu_worker.config import EngineConfig
from gpu_worker.engine import Engine
from gpu_worker.kv_cache import KVCache
from gpu_worker.pipeline import StepPipeline
from gpu_worker.session import check_plan
from protocol.messages import Failed, Plan, Result
from tests.word_model import write_word_model


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    model = write_word_model(tmp_path / "model", "one", "two")
    config = EngineConfig(
        model=str(model), device="cpu", load_format="dummy", threads=1, max_num_seqs=4, max_model_len=101,
        kv_cache_blocks=20,
    )  # fmt: skip
    made = build_engine(config, lambda _: None)
    yield made
    made.device.close()


def test_each_kind_of_step_is_timed_beside_its_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_word_model(tmp_path / "model", "one", "two")
    sizes = ["--batch", "1", "3", "--context", "1", "40", "--steps=6", "--buffer-mib=4"]
    options = [f"--model={model}", "--device=cpu", "--dtype=float32", *sizes, "--json"]
    monkeypatch.setattr("sys.argv", ["bench", "decode", *options, "--", "--threads=1", "--kv-cache-blocks=7"])
    assert bench_main() == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert [(step["batch"], step["context"]) for step in report["steps"]] == [(1, 1), (1, 40), (3, 1)]
    assert "3 rows of 40 tokens do not fit into the KV cache: left out" in said.err
    fastest = max(report["read_bytes_per_second"], report["copy_bytes_per_second"])
    for step in report["steps"]:
        read = step["weight_bytes"] + step["kv_bytes"]
        assert step["floor_ms"] == pytest.approx(1e3 * read / fastest)
        assert step["times_the_floor"] == pytest.approx(step["device_ms"]["p50"] / step["floor_ms"])
        assert step["bytes_per_second"] == pytest.approx(1e3 * read / step["device_ms"]["p50"])
        assert 0 <= step["idle_share"] < 1
        assert 1 < step["host_us"]["p50"] <= step["host_us"]["p99"] < 1e6
    shown = decode.text(report)
    assert f"{report['steps'][1]['times_the_floor']:.2f}" in shown


def test_plans_are_such_as_a_worker_takes_and_two_are_in_flight(
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
    timed = DecodeSteps(engine).run(4, 70, 3)
    assert len(timed.device_seconds) == 3
    assert (timed.device_seconds > 0).all()
    assert timed.seconds > 0
    assert len(plans) == WARM_UP_STEPS + 3
    assert max(in_flight) == 2
    first = plans[0]
    assert len(np.unique(first.table_block)) == len(first.table_block) == 4 * 5, "each row has its own blocks"
    assert all((plan.position == 69).all() for plan in plans)


def test_keys_and_values_are_random_numbers(engine: Engine) -> None:
    DecodeSteps(engine)
    for each in (*engine.runner.cache.k, *engine.runner.cache.v):
        assert each.float().std() == pytest.approx(1.0, abs=0.1)


def test_a_step_that_fails_is_said_in_words(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    collect = StepPipeline.collect

    def failing(self: StepPipeline) -> Result | Failed:
        answer = collect(self)
        return Failed(1, answer.step, True, "no luck")

    steps = DecodeSteps(engine)
    monkeypatch.setattr(StepPipeline, "collect", failing)
    with pytest.raises(BenchmarkError, match="2 rows of 9 tokens: no luck"):
        steps.run(2, 9, 1)


def test_the_hosts_time_is_what_launching_and_collecting_take(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, collect = StepPipeline.launch, StepPipeline.collect

    def launched(self: StepPipeline, plan: Plan) -> None:
        time.sleep(0.02)
        launch(self, plan)

    def collected(self: StepPipeline) -> Result | Failed:
        time.sleep(0.01)
        return collect(self)

    monkeypatch.setattr(StepPipeline, "launch", launched)
    monkeypatch.setattr(StepPipeline, "collect", collected)
    timed = DecodeSteps(engine).run(2, 9, 3)
    assert len(timed.host_seconds) == 3
    assert 0.03 <= timed.host_seconds.min() < 0.3


def test_a_device_is_timed_from_one_call_to_the_next(engine: Engine) -> None:
    pauses = iter([0.4, 0.01, 0.02])
    first, second = device_seconds(engine.device, lambda: time.sleep(next(pauses)), tries=2)
    assert 0.01 <= first < 0.3, "the call before the first is not timed"
    assert 0.02 <= second < 0.3


def test_bandwidth_is_bytes_over_time(engine: Engine) -> None:
    found = bandwidth(engine.device, 2**22)
    assert 1e7 < found.read < 1e13
    assert found.best == max(found.read, found.copy)


def test_a_step_reads_every_parameter_once_and_all_keys_and_values() -> None:
    with shape_of("llama-3.1-8b") as folder:
        llama = describe(folder)
    with shape_of("qwen3-0.6b") as folder:
        qwen = describe(folder)
    assert isinstance(llama, ModelConfig)
    assert isinstance(qwen, ModelConfig)
    embedding = 128256 * 4096
    assert weight_bytes(llama, "bfloat16", 32) == 2 * (8_030_261_248 - embedding + 32 * 4096)
    assert kv_bytes(llama, "bfloat16", 32, 8192) == 32 * 8192 * 128 * 1024
    assert weight_bytes(qwen, "bfloat16", 1) == 2 * (596_049_920 + 1024), "a tied embedding is the head, too"
    assert kv_bytes(qwen, "float32", 3, 10) == 2 * kv_bytes(qwen, "bfloat16", 3, 10)


def test_a_layer_with_a_window_reads_no_more_than_that() -> None:
    with shape_of("qwen3-0.6b") as folder:
        model = describe(folder)
    assert isinstance(model, ModelConfig)
    whole = kv_bytes(model, "bfloat16", 2, 100)
    object.__setattr__(model, "layer_windows", (0, 25) * (model.num_layers // 2))
    assert kv_bytes(model, "bfloat16", 2, 100) == whole * 5 // 8
    assert kv_bytes(model, "bfloat16", 2, 20) == whole // 5


def test_attention_alone_is_timed_a_layer_beside_the_bandwidth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_word_model(tmp_path / "model", "one", "two")
    monkeypatch.setitem(decode_attention.BYTES_OF_A_ROUND, "cpu", 10_000)
    monkeypatch.setattr(decode_attention, "free_memory", lambda _: 120_000)
    sizes = ["--batch", "1", "3", "--context", "16", "40", "400", "--steps=4", "--buffer-mib=4"]
    options = [f"--model={model}", "--device=cpu", "--dtype=float32", "--attention", *sizes, "--json"]
    monkeypatch.setattr("sys.argv", ["bench", "decode", *options, "--", "--threads=1", "--max-batch-tokens=512"])
    assert bench_main() == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    found = [(one["batch"], one["context"]) for one in report["attention"]]
    assert report["attention_by"] == "torch"
    assert found == [(1, 16), (1, 40), (1, 400), (3, 16), (3, 40)]
    assert "3 rows of 400 tokens do not fit into memory: left out" in said.err
    fastest = max(report["read_bytes_per_second"], report["copy_bytes_per_second"])
    for one in report["attention"]:
        assert one["kv_bytes"] == one["batch"] * one["context"] * 2 * 8 * 4
        assert one["layers"] == max(2, -(-10_000 // one["kv_bytes"]))
        speed = 1e6 * one["kv_bytes"] / one["layer_us"]["p50"]
        assert one["bytes_per_second"] == pytest.approx(speed)
        assert one["share_of_bandwidth"] == pytest.approx(speed / fastest)
        assert one["layer_us"]["p50"] <= one["layer_us"]["p99"]
    assert f"{report['attention'][1]['layer_us']['p50']:.1f}" in decode.text(report)


def test_a_round_of_attention_has_every_layer_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []
    attend = TorchAttention.attend

    def watched(self: TorchAttention, layer: int, q: Tensor, cache: KVCache, step: AttentionStep) -> Tensor:
        out = attend(self, layer, q, cache, step)
        assert bool(out.isfinite().all())
        seen.append((layer, len(q), step.sights[0].decode[0].length))
        return out

    monkeypatch.setattr(TorchAttention, "attend", watched)
    monkeypatch.setitem(decode_attention.BYTES_OF_A_ROUND, "cpu", 3 * 2 * 33 * 2 * 8 * 4)
    model = describe(write_word_model(tmp_path / "model", "one", "two"))
    assert isinstance(model, ModelConfig)
    device = open_device("cpu", 1)
    try:
        times = DecodeAttention(device, model, torch.float32, 16, "torch").run(2, 33, 5)
    finally:
        device.close()
    assert len(times) == 5
    assert seen == [(layer, 2, 33) for _ in range(1 + 5) for layer in range(3)]


def test_the_paged_kernels_attend_to_the_same_as_torch(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    model = describe(write_word_model(tmp_path / "model", "one", "two"))
    assert isinstance(model, ModelConfig)
    model = replace(model, head_dim=16)  # the kernels multiply no less
    device = open_device("cuda" if torch.cuda.is_available() else "cpu", None)
    outs = []
    for backend in ("torch", "triton"):
        torch.manual_seed(5)
        layer = DecodeAttention(device, model, torch.float32, 16, backend).prepared(2, 33, 2)
        outs.append(torch.stack([layer(0), layer(1)]))
    device.close()
    assert not torch.equal(outs[0][0], outs[0][1])
    torch.testing.assert_close(*outs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--batch", "4", "0"], "--batch must be at least 1, not 4 0"),
        (["--context", "-3"], "--context must be at least 1"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--buffer-mib", "0"], "--buffer-mib must be at least 1"),
        (["--context", "200000"], "are more than the model's 131072"),
        (["--model", "/nowhere/at/all"], "no such file or folder"),
        *([] if torch.cuda.is_available() else [(["--batch", "1"], "--device cuda: torch sees no GPU")]),
        *([] if torch.cuda.is_available() else [(["--attention"], "--device cuda: torch sees no GPU")]),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_measured(
    arguments: list[str], word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "decode", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert bench_main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line
