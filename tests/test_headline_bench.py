"""The headline benchmark: many tokens for a few requests, step by step, beside others."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bench import headline
from bench.__main__ import main as bench_main
from bench.contestant import BenchmarkError
from bench.continuous_peer import SYNC, Batcher, ContinuousPeer, watched
from bench.flash_stand_in import put_in, with_kvcache
from bench.shapes import SHAPES, shape_of
from bench.step_times import StepTimes, from_timeline
from checkpoint import ModelConfig, describe
from tests.word_model import write_word_model

RECORDED = ("lockstep-2", "lockstep-4", "overlap-1", "overlap-3")
"""A warm-up each, and a run each."""


@pytest.mark.processes
@pytest.mark.slow
def test_everybody_does_the_workload_in_turns_and_their_steps_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, kept = write_word_model(tmp_path / "model", "one", "two"), tmp_path / "kept"
    sizes = ["--requests=3", "--prompt-tokens=5", "--tokens=12", "--runs=1", f"--timelines={kept}"]
    compare = ["--compare", "lockstep", "transformers", "--json", "--", "--threads=1"]
    options = [f"--model={model}", "--device=cpu", "--dtype=float32", *sizes, *compare]
    monkeypatch.setattr("sys.argv", ["bench", "headline", *options])
    assert bench_main() == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    names = ["stepahead", "stepahead --lockstep", "transformers, sync"]
    assert list(report["runs"]) == names
    assert report["output_tokens"] == 36
    for (one,) in report["runs"].values():
        assert one["steps"] >= 6
        assert one["tokens_per_second"] == pytest.approx(36 / one["first_to_last_seconds"])
        for part in (one["early"], one["late"]):
            assert part["milliseconds_a_step"] > 0
            assert 0 <= part["idle_share"] < 1
    speeds = [report["runs"][name][0]["tokens_per_second"] for name in names]
    assert report["ratios"] == {
        f"stepahead / {name}": [speeds[0] / speed] for name, speed in zip(names[1:], speeds[1:], strict=True)
    }
    assert sorted(file.name.partition("-")[0] for file in kept.iterdir()) == [
        "lockstep",
        "lockstep",
        "overlap",
        "overlap",
    ]
    shown = headline.text(report)
    assert f"stepahead / transformers, sync: {speeds[0] / speeds[2]:.3f}" in shown
    assert "3 requests, 5 tokens in and 12 out each" in shown


def test_what_lies_between_steps_is_idle_and_windows_are_early_and_late() -> None:
    start = np.linspace(0.0, 20.0, 2001)
    start[1000:] += 1.0
    end = start + np.where(np.arange(2001) < 1000, 0.009, 0.006)
    steps = StepTimes(start, end)
    assert (steps.early.first, steps.early.steps) == (100, 500)
    assert (steps.late.first, steps.late.steps) == (1500, 500)
    assert steps.early.milliseconds_a_step == pytest.approx(10.0)
    assert steps.early.idle_share == pytest.approx(0.1)
    assert steps.late.idle_share == pytest.approx(0.4)
    busy = 1000 * 0.009 + 1001 * 0.006
    assert steps.idle_share == pytest.approx(1 - busy / (end[-1] - start[0]))


def test_of_a_short_run_a_quarter_is_a_window() -> None:
    start = np.arange(9, dtype=np.float64)
    steps = StepTimes(start, start + 0.5)
    assert (steps.early.first, steps.early.steps) == (1, 2)
    assert (steps.late.first, steps.late.steps) == (6, 2)
    two = StepTimes(start[:2], start[:2] + 0.25)
    assert two.early == two.late
    assert two.early.idle_share == pytest.approx(0.75)


def test_what_is_no_timeline_gives_no_idle_share(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(BenchmarkError, match="the timeline cannot be read"):
        from_timeline(tmp_path / "run.json")


@pytest.mark.parametrize(("name", "billions"), [("llama-3.1-8b", 8.03), ("qwen3-0.6b", 0.596)])
def test_named_shapes_are_those_of_the_models(name: str, billions: float) -> None:
    with shape_of(name) as folder:
        model = describe(folder)
        assert isinstance(model, ModelConfig)
        assert len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]) == model.vocab_size
    assert not folder.exists()
    head = 1 if model.tie_word_embeddings else 2
    attention = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim * model.hidden_size
    layer = attention + 3 * model.hidden_size * model.intermediate_size
    total = head * model.vocab_size * model.hidden_size + model.num_layers * layer
    assert total / 1e9 == pytest.approx(billions, rel=1e-3)


def test_transformers_uses_the_kernels_that_are_put_in(tmp_path: Path) -> None:
    model = write_word_model(tmp_path / "model", "one", "two")
    batcher = Batcher(model, "float32", "cpu", 0, 512)
    seen: list[int] = []

    def varlen(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:
        assert causal
        seen.append(len(q))
        return torch.zeros_like(q)

    put_in(batcher._model, varlen, with_kvcache(_attend, _append, _slots("cpu")))
    answer = batcher.run(SYNC, False, [[1] * 5, [2] * 3], [4, 6])
    assert len(answer["start"]) == len(answer["end"]) >= 6
    assert answer["first"] < answer["last"]
    assert sum(seen) >= 5 + 3 + 3 + 5


def test_no_batch_is_watched_any_more_when_a_run_is_over() -> None:
    from transformers.generation.continuous_batching.model_runner import ModelRunner

    own = ModelRunner.compute_batch
    with watched(False, lambda: None):
        assert ModelRunner.compute_batch is not own
    assert ModelRunner.compute_batch is own


def _append(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, new_lengths: Tensor
) -> None:
    """As `append_paged.append`."""
    size = keys.shape[1]
    new_lengths.copy_(lengths + 1)
    for row, length in enumerate(lengths.tolist()):
        if length >= 0:
            block = int(tables[row, length // size])
            keys[block, length % size], values[block, length % size] = k[row], v[row]


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, lengths: Tensor, window: int
) -> Tensor:
    """As `PagedDecode.attend`."""
    out = torch.zeros_like(q)
    for row, length in enumerate(lengths.tolist()):
        if length:
            own = tables[int(slots[row])].long().clamp(min=0)
            begin = max(0, length - window) if window else 0
            k, v = (each[own].flatten(0, 1)[begin:length].transpose(0, 1) for each in (keys, values))
            out[row] = torch.nn.functional.scaled_dot_product_attention(
                q[row].unsqueeze(1), k, v, enable_gqa=True
            ).squeeze(1)
    return out


def _slots(device: str) -> Tensor:
    return torch.arange(5, dtype=torch.int32, device=device)


def _decode_step(device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return what flash_attn_with_kvcache is called with: rows of 0, 7 and 300 tokens, and one of padding."""
    generator = torch.Generator(device).manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=generator).to(dtype)

    tables = torch.tensor([[3, -1], [5, -1], [1, 4], [-1, -1]], dtype=torch.int32, device=device)
    return {
        "q": random(4, 1, 8, 64), "k": random(4, 1, 2, 64), "v": random(4, 1, 2, 64),
        "k_cache": random(7, 256, 2, 64), "v_cache": random(7, 256, 2, 64),
        "cache_seqlens": torch.tensor([0, 7, 300, -1], dtype=torch.int32, device=device), "block_table": tables,
    }  # fmt: skip


def test_a_decode_step_appends_and_attends_and_leaves_padding_alone() -> None:
    step = _decode_step("cpu", torch.float32)
    before = step["k_cache"].clone()
    out = with_kvcache(_attend, _append, _slots("cpu"))(**step)
    assert out.shape == (4, 1, 8, 64)
    alone = step["v"][0, 0].repeat_interleave(4, 0)  # a row that had nothing sees its own token only
    assert torch.equal(out[0, 0], alone)
    assert not out[3].any()
    changed = (step["k_cache"] != before).flatten(2).any(2).nonzero().tolist()
    assert changed == [[3, 0], [4, 300 - 256], [5, 7]]
    windowed = with_kvcache(_attend, _append, _slots("cpu"))(**step, window_size=(0, 0))
    assert torch.equal(windowed[2, 0], step["v"][2, 0].repeat_interleave(4, 0))


@pytest.mark.slow
def test_the_kernels_put_into_transformers_do_as_flash_attn_does() -> None:
    from bench.append_paged import append
    from gpu_worker.paged_decode import PagedDecode

    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)  # interpreted
    ours, wanted = _decode_step(device, dtype), _decode_step(device, dtype)
    kernel = PagedDecode(5, 8, 2, 64, 256, None, torch.device(device))
    found = with_kvcache(kernel.attend, append, _slots(device))(**ours)
    torch.testing.assert_close(found, with_kvcache(_attend, _append, _slots(device))(**wanted), atol=1e-2, rtol=1e-2)
    assert torch.equal(ours["k_cache"], wanted["k_cache"])
    assert torch.equal(ours["v_cache"], wanted["v_cache"])


def test_a_peer_that_has_ended_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="needs a folder"):
        ContinuousPeer(tmp_path / "model.gguf", "float32", "cpu", 0, 512)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--requests", "0"], "--requests must be at least 1"),
        (["--prompt-tokens", "0"], "--prompt-tokens must be at least 1"),
        (["--tokens", "1"], "--tokens must be at least 2"),
        (["--runs", "-1"], "--runs must be at least 1"),
        (["--model", "/nowhere/at/all"], "no such file or folder"),
        (["--tokens", "1000000"], "1000016 tokens in a request are more than the model's 131072"),
        (["--timelines", "tests"], "--timelines tests: the folder is not empty"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(
    arguments: list[str], word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "headline", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert bench_main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--compare", "vllm"], "invalid choice: 'vllm'"),
        (["--compile-level", "4"], "invalid choice: 4"),
        (["--", "--max-num-seq=3"], "unrecognized arguments"),
        (["--", "--max-num-seqs=0"], "--max-num-seqs must be from 1"),
    ],
)
def test_an_option_that_there_is_not_ends_it_with_code_2(
    arguments: list[str], word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "headline", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        bench_main()
    assert ended.value.code == 2
    assert word in capsys.readouterr().err.splitlines()[-1]


def test_each_named_shape_is_offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "headline", "--help"])
    with pytest.raises(SystemExit):
        bench_main()
    told = capsys.readouterr().out
    assert [name for name in SHAPES if name not in told] == []
