"""Every parameter comes from the right tensor of the file, in the right order, or an error names the tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checkpoint import CheckpointError, load_config, locate
from gpu_worker.loading import choose_dtype, load_weights
from gpu_worker.weights import destinations, empty_weights
from tests.paged_model import CPU, PagedModel
from tests.tiny_gguf import write_gguf
from tests.tiny_models import VARIANTS, change_json, reference_logits, save, tiny_model

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def loaded(path: Path, **options: Any) -> dict[str, Tensor]:
    """Return the parameters of a model by their names in the checkpoint."""
    config = load_config(path)
    return destinations(load_weights(path, config, torch.float32, CPU, **options), config)


def logits_of(path: Path) -> Tensor:
    return PagedModel(locate(str(path))).step((0, TOKENS))[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_element_of_every_parameter_is_in_exactly_one_view(variant: str, tmp_path: Path) -> None:
    config = load_config(save(tiny_model(variant), tmp_path))
    weights = empty_weights(config, torch.float32, CPU)
    own = [weights.embedding, weights.norm] + ([] if config.tie_word_embeddings else [weights.head])
    own += [x for layer in weights.layers for x in (getattr(layer, n) for n in layer.__slots__) if x is not None]
    for parameter in own:
        parameter.zero_()
    for view in destinations(weights, config).values():
        view.add_(1)
    assert all(bool((parameter == 1).all()) for parameter in own)


# ------------------------------------------------------------------------------------------------------- safetensors


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "60KB"}], ids=["one file", "shards"])
def test_safetensors_are_loaded_as_they_are(options: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_model("biases everywhere")
    save(model, tmp_path, **options)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 2) == bool(options)
    ours = loaded(tmp_path)
    assert ours.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(ours[name], value), name


def test_tied_and_untied_heads(tmp_path: Path) -> None:
    model = tiny_model("tied embeddings")
    expected = reference_logits(model, TOKENS)
    tied, with_head, untied = (save(model, tmp_path / name) for name in ("tied", "with head", "untied"))
    tensors = load_file(tied / "model.safetensors")
    assert "lm_head.weight" not in tensors
    head = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors | {"lm_head.weight": head}, with_head / "model.safetensors")
    save_file(tensors | {"lm_head.weight": -head}, untied / "model.safetensors")
    change_json(untied / "config.json", tie_word_embeddings=False)
    torch.testing.assert_close(logits_of(tied), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits_of(with_head), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits_of(untied), -expected, rtol=1e-4, atol=1e-4)
    save_file(tensors, untied / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        logits_of(untied)


def _delete_a_shard(folder: Path) -> str:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    return shard.name


def _cut_a_shard(folder: Path) -> str:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    return shard.name


def _empty_a_shard(folder: Path) -> str:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.write_bytes(b"")
    return shard.name


def _change_a_tensor(folder: Path, name: str, change: Callable[[Tensor], Tensor | None], *, index: bool = True) -> str:
    path = folder / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    shard = folder / content["weight_map"][name]
    tensors = load_file(shard)
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed
    elif index:
        del content["weight_map"][name]
        path.write_text(json.dumps(content))
    save_file(tensors, shard)
    return name


def _drop_a_tensor(folder: Path) -> str:
    return _change_a_tensor(folder, "model.layers.1.mlp.up_proj.weight", lambda _: None)


def _drop_a_tensor_that_the_index_has(folder: Path) -> str:
    return _change_a_tensor(folder, "model.layers.2.input_layernorm.weight", lambda _: None, index=False)


def _misshape_a_tensor(folder: Path) -> str:
    return _change_a_tensor(folder, "model.layers.0.self_attn.k_proj.weight", lambda x: x[:-1].clone())


def _quantise_a_tensor(folder: Path) -> str:
    return _change_a_tensor(folder, "model.layers.0.self_attn.q_proj.weight", lambda x: x.to(torch.int8))


def _add_a_tensor(folder: Path) -> str:
    save_file(
        load_file(shard := sorted(folder.glob("*.safetensors"))[0]) | {"model.layers.0.adapter": torch.ones(3)}, shard
    )
    return "model.layers.0.adapter"


def _repeat_a_tensor(folder: Path) -> str:
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    tensors = load_file(first)
    name = min(tensors)
    save_file(load_file(second) | {name: tensors[name]}, second)
    return name


@pytest.mark.parametrize(
    "damage",
    [
        _delete_a_shard,
        _cut_a_shard,
        _empty_a_shard,
        _drop_a_tensor,
        _drop_a_tensor_that_the_index_has,
        _misshape_a_tensor,
        _quantise_a_tensor,
        _add_a_tensor,
        _repeat_a_tensor,
    ],
)
def test_damage_is_named_and_nothing_is_loaded(damage: Callable[[Path], str], tmp_path: Path) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path, max_shard_size="60KB")
    name = damage(folder)
    with pytest.raises(CheckpointError) as caught:
        loaded(folder)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parameters_that_do_not_fit_into_memory_are_told_by_their_size(tmp_path: Path) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path)
    change_json(folder / "config.json", hidden_size=2**24, vocab_size=2**24)
    config = load_config(folder)
    with pytest.raises(CheckpointError, match="GB of parameters do not fit into memory") as caught:
        load_weights(folder, config, torch.float32, CPU, "dummy")
    assert "\n" not in str(caught.value)


def test_a_head_that_does_not_divide_says_so(tmp_path: Path) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path)
    change_json(folder / "config.json", num_key_value_heads=3)
    with pytest.raises(CheckpointError, match="4 attention heads are no multiple of 3 key-value heads"):
        load_config(folder)


# -------------------------------------------------------------------------------------------------------------- GGUF


@pytest.mark.parametrize("storage", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_gguf_storage_types_are_unpacked(storage: str, tmp_path: Path) -> None:
    unpacked = write_gguf(tiny_model("grouped queries"), tmp_path / "model.gguf", "llama", storage)
    ours = loaded(tmp_path / "model.gguf")
    assert ours.keys() == unpacked.keys()
    for name, value in unpacked.items():
        assert torch.equal(ours[name], torch.from_numpy(value)), name


@pytest.mark.parametrize(
    ("variant", "architecture"),
    [
        ("grouped queries", "llama"),
        ("a wide head with biases", "llama"),
        ("tied embeddings", "llama"),
        ("llama3 rope", "llama"),
        ("Mistral", "llama"),
        ("Qwen2", "qwen2"),
        ("Qwen3", "qwen3"),
    ],
)
def test_logits_of_a_gguf_equal_those_of_the_model_it_was_made_from(
    variant: str, architecture: str, tmp_path: Path
) -> None:
    model = tiny_model(variant)
    write_gguf(model, tmp_path / "model.gguf", architecture)
    torch.testing.assert_close(logits_of(tmp_path), reference_logits(model, TOKENS), rtol=1e-4, atol=1e-4)


def test_a_gguf_without_a_tensor_or_with_one_too_many_says_which(tmp_path: Path) -> None:
    model = tiny_model("grouped queries")
    write_gguf(model, tmp_path / "model.gguf", "llama", keys={"llama.block_count": 4})
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.input_layernorm\.weight is missing"):
        loaded(tmp_path / "model.gguf")
    write_gguf(model, tmp_path / "model.gguf", "llama", keys={"llama.block_count": 2})
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.\S+ is not part of llama"):
        loaded(tmp_path / "model.gguf")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
def test_the_default_model_is_read_as_transformers_reads_it(default_model_path: Path) -> None:
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        default_model_path.parent, gguf_file=default_model_path.name, dtype=torch.float32
    )
    ours = loaded(default_model_path)
    state = theirs.state_dict()
    assert state.keys() - ours.keys() == {"lm_head.weight"}
    for name, value in ours.items():
        assert torch.equal(value, state[name]), name
    tokens = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    (logits,) = PagedModel(default_model_path).step((0, tokens))
    expected = reference_logits(theirs, tokens)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    assert logits.argmax(dim=-1).tolist() == expected.argmax(dim=-1).tolist()


# ------------------------------------------------------------------------------------------------- random, and dtypes


def test_dummy_weights_follow_from_the_seed_and_need_no_files(tmp_path: Path) -> None:
    save(tiny_model("biases everywhere"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    folder = locate(str(tmp_path), need_weights=False)
    first, again, other = (loaded(folder, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert value.isfinite().all()
        assert name.endswith("norm.weight") or not torch.equal(value, other[name])


def test_an_unknown_load_format_or_dtype_is_refused(tmp_path: Path) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path)
    with pytest.raises(CheckpointError, match="load format npcache"):
        loaded(folder, load_format="npcache")
    with pytest.raises(CheckpointError, match="dtype float8"):
        choose_dtype("float8", load_config(folder))


@pytest.mark.parametrize(
    ("stored", "wanted", "chosen"),
    [
        ("bfloat16", "auto", torch.bfloat16),
        ("float16", "auto", torch.bfloat16),
        ("float32", "auto", torch.float32),
        ("bfloat16", "float32", torch.float32),
        ("float32", "bfloat16", torch.bfloat16),
    ],
)
def test_the_dtype_goes_by_the_checkpoint_and_is_never_float16(
    stored: str, wanted: str, chosen: torch.dtype, tmp_path: Path
) -> None:
    folder = save(tiny_model("grouped queries").to(getattr(torch, stored)), tmp_path)
    config = load_config(folder)
    assert config.dtype == stored
    assert choose_dtype(wanted, config) == chosen
