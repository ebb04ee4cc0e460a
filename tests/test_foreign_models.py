"""Architectures outside of our table run through transformers' code over our cache: its tokens, or a clear refusal."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2LMHeadModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as their_logging

from checkpoint import CheckpointError, ForeignConfig, describe, load_config, locate
from gpu_worker.building import build_engine
from gpu_worker.config import EngineConfig
from gpu_worker.foreign_attention import NAME, UnlikeOursError, attending
from gpu_worker.foreign_check import check_answers
from gpu_worker.foreign_loading import load_foreign_model
from gpu_worker.foreign_model import shape_of
from tests.core_loop import submit
from tests.foreign_models import GPT2, KINDS, SHAPE, VOCAB, foreign_config, foreign_model
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.tiny_models import change_json, save

OPTIONS = {"max_num_seqs": 4, "max_model_len": 64, "block_size": 4, "max_batch_tokens": 12, "kv_cache_blocks": 24}


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """The tokens that transformers generates by itself, with its own cache and attention."""
    with torch.inference_mode():
        tokens = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    produced: list[int] = tokens[0, len(prompt) :].tolist()
    return produced


def prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    dice = random.Random(1)
    return [[dice.randrange(3, VOCAB) for _ in range(length)] for length in lengths]


def served_as_generated(kind: str, folder: Path, lengths: tuple[int, ...], device: str = "cpu") -> RealLoop:
    """Serve prompts of these lengths beside each other; assert that the tokens are those of transformers alone."""
    model = foreign_model(kind)
    asked = prompts(lengths)
    engine = poisoned_engine(save(model, folder), device=device, **OPTIONS)
    loop = RealLoop(engine, 2)
    for request, prompt in enumerate(asked):
        loop.submit(submit(request, prompt, 20, ignore_eos=True))
    loop.drain()
    engine.device.close()
    assert [loop.tokens(request) for request in range(len(asked))] == [greedy(model, prompt, 20) for prompt in asked]
    return loop


# Releases of transformers before 5.20 or so script a function of GPT-BigCode when they import it.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_that_transformers_generates_however_steps_are_cut(kind: str, tmp_path: Path) -> None:
    loop = served_as_generated(kind, tmp_path, (30, 5, 41, 1, 17))
    assert loop.scheduler.counters.preemptions, "the pool was never short"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_on_the_gpu_are_those_of_transformers_on_the_cpu(kind: str, tmp_path: Path) -> None:
    served_as_generated(kind, tmp_path, (30, 5, 41), device="cuda")


def test_two_models_at_work_do_not_mix(tmp_path: Path) -> None:
    kinds = ("learned positions, a tied head", "a parallel residual, partly rotated heads")
    models = [foreign_model(kind) for kind in kinds]
    engines = [poisoned_engine(save(model, tmp_path / str(i)), **OPTIONS) for i, model in enumerate(models)]
    loops = [RealLoop(engine, 2) for engine in engines]
    (prompt,) = prompts((30,))
    for loop in loops:
        loop.submit(submit(1, prompt, 12, ignore_eos=True))
    for _ in range(20):
        for loop in loops:
            loop.step()
    for engine in engines:
        engine.device.close()
    assert [loop.tokens(1) for loop in loops] == [greedy(model, prompt, 12) for model in models]


def test_a_models_end_tokens_end_a_request(tmp_path: Path) -> None:
    model = foreign_model("learned positions, a tied head")
    (prompt,) = prompts((9,))
    expected = greedy(model, prompt, 12)
    change_json(save(model, tmp_path) / "generation_config.json", eos_token_id=[expected[5], 7])
    engine = poisoned_engine(tmp_path, **OPTIONS)
    assert alone(engine, submit(1, prompt, 12)) == expected[: expected.index(expected[5]) + 1]
    engine.device.close()


@pytest.mark.parametrize(
    "kind",
    [
        "a window in two of three layers, a scale of its own",
        "experts beside an expert for all",
        "bounded scores and logits",
        "keys wider than values",
    ],
)
def test_bfloat16_is_served(kind: str, tmp_path: Path) -> None:
    engine = poisoned_engine(save(foreign_model(kind).to(torch.bfloat16), tmp_path), **OPTIONS | {"dtype": "auto"})
    assert engine.dtype == "bfloat16"
    assert len(alone(engine, submit(1, [5, 6, 7], 8, ignore_eos=True))) == 8
    engine.device.close()


def test_dummy_weights_follow_from_the_seed_and_need_no_files(tmp_path: Path) -> None:
    architecture, settings = KINDS["norms behind, not before"]
    foreign_config(architecture, **settings).save_pretrained(tmp_path)
    outputs = []
    for seed in (1, 1, 2):
        before = torch.random.get_rng_state()
        engine = poisoned_engine(tmp_path, load_format="dummy", seed=seed, **OPTIONS)
        assert torch.equal(before, torch.random.get_rng_state())
        outputs.append(alone(engine, submit(1, [5, 6, 7], 10, ignore_eos=True)))
        engine.device.close()
    assert outputs[0] == outputs[1] != outputs[2]


# -------------------------------------------------------------------------------------------------------- the files


def test_a_folder_is_described_without_transformers(tmp_path: Path) -> None:
    folder = save(foreign_model("learned positions, a tied head").to(torch.bfloat16), tmp_path)
    assert describe(locate(str(folder))) == ForeignConfig("GPT2LMHeadModel", VOCAB, 128, "bfloat16", (2,))
    with pytest.raises(CheckpointError, match="architecture GPT2LMHeadModel is not supported; supported are Llama"):
        load_config(folder)


@pytest.mark.parametrize(
    "name",
    ["max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "max_seq_length", "seq_length"],
)
def test_the_longest_sequence_is_found_under_any_name(name: str, tmp_path: Path) -> None:
    values = {"architectures": ["SomeForCausalLM"], "vocab_size": 99, "n_ctx": 12, name: 77}
    change_json(tmp_path / "config.json", **values)
    assert describe(tmp_path).default_model_len == 77
    change_json(tmp_path / "config.json", **{name: None})
    assert describe(tmp_path).longest_model_len == 12
    change_json(tmp_path / "config.json", n_ctx=None)
    with pytest.raises(CheckpointError, match="names no longest sequence"):
        locate(str(tmp_path), need_weights=False)


def _rewritten(folder: Path, **changes: Tensor | None) -> Path:
    tensors = load_file(folder / "model.safetensors") | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("learned positions, a tied head", {"transformer.h.1.mlp.c_fc.bias": None}, "h.1.mlp.c_fc.bias is missing"),
        (
            "learned positions, a tied head",
            {"transformer.h.1.ln_1.weight": torch.ones(63)},
            r"h\.1\.ln_1\.weight has shape \(63,\), expected \(64,\)",
        ),
        (
            "experts, stored apart",
            {"model.layers.1.block_sparse_moe.experts.2.w1.weight": None},
            "transformers can't read the weights",
        ),
    ],
    ids=["missing", "of another shape", "one expert missing"],
)
def test_a_tensor_that_does_not_fit_is_named(
    kind: str, changes: dict[str, Tensor | None], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = _rewritten(save(foreign_model(kind), tmp_path), **changes)
    capfd.readouterr()  # what transformers said while saving
    with pytest.raises(CheckpointError, match=said) as refused:
        poisoned_engine(folder, **OPTIONS)
    assert len(str(refused.value)) < 600
    assert capfd.readouterr() == ("", "")


def test_a_folder_with_two_models_is_refused_for_transformers_reads_the_other_one(tmp_path: Path) -> None:
    model = foreign_model("a window everywhere")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    shard = next(tmp_path.glob("model-*.safetensors"))
    (tmp_path / "model.safetensors").write_bytes(shard.read_bytes())
    with pytest.raises(CheckpointError, match=r"holds model\.safetensors beside the shards of an index"):
        poisoned_engine(tmp_path, **OPTIONS)


QUANTISED = "model.layers.1.mlp.c_fc.weight"


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.uint8], ids=str)
def test_a_quantised_tensor_is_refused_whatever_the_configuration_says(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = save(foreign_model("a window everywhere"), tmp_path)
    _rewritten(folder, **{QUANTISED: torch.ones(96, 64).to(dtype), f"{QUANTISED}_scale": torch.ones(96, 1)})
    with pytest.raises(CheckpointError, match=rf"tensor {QUANTISED} has unsupported dtype (I8|F8_E4M3|U8); supported"):
        poisoned_engine(folder, **OPTIONS)


@pytest.mark.parametrize(
    "name",
    ["lm_head.weight_scale", "model.layers.1.mlp.c_fc.lora_A.weight", "model.layers.0.self_attn.q_norm.weight"],
)
def test_a_tensor_of_a_part_that_would_be_computed_without_it_is_refused(name: str, tmp_path: Path) -> None:
    folder = _rewritten(save(foreign_model("a window everywhere"), tmp_path), **{name: torch.ones(8)})
    with pytest.raises(CheckpointError, match=f"tensor {name} is not part of Starcoder2ForCausalLM"):
        poisoned_engine(folder, **OPTIONS)


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_what_old_files_carry_and_no_computation_reads_is_passed_over(prefix: str, tmp_path: Path) -> None:
    model = foreign_model("learned positions, a tied head")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in model.state_dict().items()}
    tensors |= {"h.0.attn.bias": torch.ones(1, 1, 9, 9).bool(), "h.1.attn.bias": torch.ones(1, 1, 9, 9)}
    tensors |= {"h.0.attn.masked_bias": torch.tensor(-1e4), "position_ids": torch.arange(9)}
    head = tensors.pop("lm_head.weight").clone()
    file = save(model, tmp_path) / "model.safetensors"
    stored = {prefix + name: tensor for name, tensor in tensors.items()} | ({"lm_head.weight": head} if prefix else {})
    save_file(stored, file, metadata={"format": "pt"})
    engine = poisoned_engine(tmp_path, **OPTIONS)
    assert alone(engine, submit(1, [5, 6, 7], 8, ignore_eos=True)) == greedy(model, [5, 6, 7], 8)
    engine.device.close()


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_parameters_that_do_not_fit_into_memory_are_told_before_any_is_there(
    load_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(foreign_model("learned positions, a tied head"), tmp_path)
    size = sum(parameter.nbytes for parameter in foreign_model("learned positions, a tied head").parameters())
    free = "gpu_worker.loading.free_memory"
    monkeypatch.setattr(free, lambda _: size)
    poisoned_engine(folder, load_format=load_format, **OPTIONS).device.close()
    monkeypatch.setattr(free, lambda _: size - 1)
    monkeypatch.setattr(GPT2LMHeadModel, "from_pretrained", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(CheckpointError, match=r"GB of parameters do not fit into 0\.0 GB of free memory; --dtype bf"):
        poisoned_engine(folder, load_format=load_format, **OPTIONS)


def test_a_model_that_meets_the_end_of_memory_is_not_called_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(foreign_model("learned positions, a tied head"), tmp_path)
    for where in ("from_pretrained", "forward"):
        with monkeypatch.context() as patched:
            patched.setattr(GPT2LMHeadModel, where, lambda *_, logits_to_keep=None, **__: torch.empty(2**58))
            with pytest.raises(CheckpointError, match=r"the weights do not fit into memory \(.*can't allocate memory"):
                poisoned_engine(folder, **OPTIONS)


def test_loading_says_in_lines_of_ours_what_is_slow_and_what_is_not_used(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = save(foreign_model("learned positions, a tied head"), tmp_path)
    _rewritten(folder, **{"transformer.h.9.spare": torch.ones(3), "transformer.h.8.spare": torch.ones(3)})
    their_logging.set_verbosity_warning()  # type: ignore[no-untyped-call]
    their_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    capfd.readouterr()  # what it said while saving
    lines: list[str] = []
    config = EngineConfig(model=str(folder), device="cpu", max_num_seqs=1, max_model_len=8, kv_cache_blocks=8)
    build_engine(config, lines.append).device.close()
    assert "GPT2LMHeadModel runs through transformers' own code, which is slower" in lines
    assert "not used: tensor transformer.h.8.spare and 1 others" in lines
    assert not logging.getLogger("transformers").isEnabledFor(logging.WARNING)
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------------------------------------------------ refused

REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "no such class": ("GPT2LMHeadModel", GPT2, {"architectures": ["QWenLMHeadModel"]}, "has no code for it"),
    "another family's class": (
        "GPT2LMHeadModel", GPT2, {"architectures": ["OPTForCausalLM"]}, "its configuration is one for gpt2",
    ),
    "a base class": (
        "GPT2LMHeadModel", GPT2, {"architectures": ["AutoModelForCausalLM"]}, "has no code for it",
    ),
    "no language model": ("GPT2LMHeadModel", GPT2, {"architectures": ["GPT2Model"]}, "no language model called"),
    "an unknown type": ("GPT2LMHeadModel", GPT2, {"model_type": "gpt9"}, "gpt9"),
    "code of its own": (
        "GPT2LMHeadModel", GPT2,
        {"model_type": "gpt9", "auto_map": {"AutoConfig": "configuration_gpt9.GPT9Config"}}, "gpt9|remote|custom",
    ),
    "an encoder": ("T5ForConditionalGeneration", {}, {"vocab_size": 99}, "attends to an encoder"),
    "cross attention": ("GPT2LMHeadModel", GPT2, {"add_cross_attention": True}, "attends to an encoder"),
    "pictures": ("OPTForCausalLM", {}, {"vision_config": {}}, r"more than text \(vision_config\)"),
    "state of another kind": ("MambaForCausalLM", {}, {"n_positions": 64}, "its state is more than keys and values"),
    "a linear layer": (
        "Lfm2ForCausalLM", SHAPE | {"layer_types": ["conv", "full_attention", "conv"]}, {}, "a layer of type conv",
    ),
    "a linear layer that only transformers' defaults name": (
        "Lfm2ForCausalLM", SHAPE, {"layer_types": None, "full_attn_idxs": [1]}, "a layer of type conv",
    ),
    "all logits or none": (
        "FlaubertWithLMHeadModel", {}, {"vocab_size": 99}, "can't leave out logits that nobody asked for",
    ),
    "attention in chunks": (
        "Qwen3MoeForCausalLM", SHAPE, {"layer_types": ["chunked_attention"] * 3}, "a layer of type chunked_attention",
    ),
    "distance as a bias": ("BloomForCausalLM", {}, {"seq_length": 64}, "computes its attention with no place for ours"),
    "alibi": ("FalconForCausalLM", {}, {"alibi": True, "seq_length": 64}, r"biased by distance \(alibi\)"),
    "attention of its own": ("FalconForCausalLM", {}, {"seq_length": 64}, "computes its attention with no place"),
    "looking ahead": ("BertLMHeadModel", SHAPE, {}, "its attention looks ahead"),
    "attending twice": ("DiffLlamaForCausalLM", SHAPE, {}, "not each of its layers attends once|no place for ours"),
    "a mask of its own": ("DogeForCausalLM", SHAPE, {}, "masks attention in a way of its own"),
    "a rotation by length": (
        "OlmoForCausalLM", SHAPE, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "rope type dynamic goes by the longest sequence",
    ),
    "quantised": ("GPT2LMHeadModel", GPT2, {"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    "sense": ("OlmoForCausalLM", SHAPE, {"num_attention_heads": 5}, "OlmoForCausalLM is not supported"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_be_computed_wrongly_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    architecture, settings, changes, said = REFUSED[what]
    foreign_config(architecture, **settings).save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", **changes)
    with pytest.raises(CheckpointError, match=said) as refused:
        poisoned_engine(tmp_path, load_format="dummy", **OPTIONS)
    assert len(str(refused.value).splitlines()) == 1
    assert "is not supported" in str(refused.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_mixes_the_tokens_of_a_step_is_refused(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    plain = GPT2MLP.forward
    monkeypatch.setattr(GPT2MLP, "forward", lambda self, x: plain(self, x + 0.1 * x.roll(1, dims=1)))
    folder = save(foreign_model("learned positions, a tied head"), tmp_path)
    with pytest.raises(CheckpointError, match=r"over a paged cache its logits are off by \d+"):
        poisoned_engine(folder, dtype=dtype, **OPTIONS)


def test_a_model_that_is_wrong_about_some_tokens_of_a_prompt_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = GPT2LMHeadModel.forward

    @wraps(plain)
    def wrong(self: Any, *inputs: Any, **options: Any) -> Any:
        output = plain(self, *inputs, **options)
        if self.config._attn_implementation == NAME and output.logits.shape[1] > 4:  # nothing that is decoded
            output.logits[:, ::4] *= -1
        return output

    monkeypatch.setattr(GPT2LMHeadModel, "forward", wrong)
    folder = save(foreign_model("learned positions, a tied head"), tmp_path)
    with pytest.raises(CheckpointError, match=r"over a paged cache its logits are off by \d+"):
        poisoned_engine(folder, **OPTIONS)


Q, K = torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)


@pytest.mark.parametrize(
    ("tensors", "wishes", "said"),
    [
        ((Q, K, K, torch.zeros(1, 1, 3, 3)), {}, "masks attention in a way of its own"),
        ((Q, K, K, None), {"is_causal": False}, "looks ahead"),
        ((Q, K, K, None), {"dropout": 0.1}, "drops out"),
        ((Q, K, K, None), {"position_bias": torch.ones(1)}, "its attention has position_bias"),
        ((Q, K, K, None), {"s_aux": torch.ones(2)}, "sinks that are not one for each head"),
        ((Q, K.repeat(1, 1, 2, 1), K.repeat(1, 1, 2, 1), None), {}, "attends to something other than its text"),
        ((Q.repeat(2, 1, 1, 1), K.repeat(2, 1, 1, 1), K.repeat(2, 1, 1, 1), None), {}, "something other than its text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_layer_wants_and_ours_can_not_do_is_refused(
    tensors: tuple[Tensor | None, ...], wishes: dict[str, Any], said: str
) -> None:
    layer = torch.nn.Module()
    layer.layer_idx = 0  # type: ignore[assignment]
    attention = ALL_ATTENTION_FUNCTIONS[NAME]
    with attending(lambda layer, q, k, v, ask: q):
        attention(layer, Q, K, K, None, position_ids=torch.ones(1), use_cache=False)  # of no consequence
        with pytest.raises(UnlikeOursError, match=said):
            attention(layer, *tensors, **wishes)
        with pytest.raises(UnlikeOursError, match="does not know the number of its layer"):
            attention(torch.nn.Module(), Q, K, K, None)


@pytest.mark.parametrize(
    ("layers", "widths", "outputs", "said"),
    [
        ((0, 1, 2), (8, 8, 8), 99, None),
        ((0, 2), (8, 8), 99, "not each of its layers attends once"),
        ((), (), 99, "not each of its layers attends once"),
        ((0, 0), (8, 8), 99, "not each of its layers attends once"),
        ((0, 1), (8, 16), 99, "differ in number or size of their key-value heads"),
        ((0, 1), (8, 8), 98, "gives 98 logits for 99 tokens"),
    ],
)
def test_layers_that_no_paged_cache_holds_are_refused(
    layers: tuple[int, ...], widths: tuple[int, ...], outputs: int, said: str | None
) -> None:
    class Model:
        device = torch.device("cpu")
        config = SimpleNamespace(vocab_size=99)

        def __call__(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
            for number, width in zip(layers, widths, strict=True):
                layer = torch.nn.Module()
                layer.layer_idx = number  # type: ignore[assignment]
                q, k = torch.ones(1, 4, 2, width), torch.ones(1, 2, 2, width)
                ALL_ATTENTION_FUNCTIONS[NAME](layer, q, k, k, None)
            return SimpleNamespace(logits=torch.ones(1, 2, outputs))

    model: Any = Model()
    if said is None:
        shape = shape_of(model)
        assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (3, 2, 8)
    else:
        with pytest.raises(UnlikeOursError, match=said):
            shape_of(model)


def test_a_model_that_does_not_tell_us_its_window_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(foreign_model("a window everywhere"), tmp_path)
    config = describe(folder)
    assert isinstance(config, ForeignConfig)
    blind = "gpu_worker.foreign_loading.shape_of"
    monkeypatch.setattr(blind, lambda model: replace(shape_of(model), layer_windows=(0, 0, 0)))
    with pytest.raises(CheckpointError, match="over a paged cache its logits are off"):
        load_foreign_model(folder, config, torch.float32, torch.device("cpu"), 4, "auto", 0, lambda _: None)


def test_rounding_that_a_model_blows_up_by_itself_is_no_reason_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer sends some tokens to other experts over a bit: transformers' own roundings would do as much."""
    model = foreign_model("experts beside an expert for all", num_hidden_layers=16)
    folder = save(model.to(torch.bfloat16), tmp_path)
    config = describe(folder)
    assert isinstance(config, ForeignConfig)

    def load() -> None:
        load_foreign_model(folder, config, torch.bfloat16, torch.device("cpu"), 4, "auto", 0, lambda _: None)

    load()
    monkeypatch.setattr("gpu_worker.foreign_check._NOISES", 0)
    with pytest.raises(CheckpointError, match="over a paged cache its logits are off"):
        load()


def test_the_check_leaves_a_model_as_it_was() -> None:
    model = foreign_model("a window in two of three layers, a scale of its own")
    model.set_attn_implementation(NAME)
    shape = shape_of(model)
    check_answers(model, shape, torch.float32)
    assert shape_of(model) == shape
    assert model.config.sliding_window == 9
    assert model.config._attn_implementation == NAME
    with pytest.raises(LookupError):
        model(torch.tensor([[5]]))  # nobody attends any more
