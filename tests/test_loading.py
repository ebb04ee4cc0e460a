"""Every parameter comes from the right tensor of the file, in the right order, or an error names the tensor."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checkpoint import CheckpointError, load_config, locate, read_index
from gpu_worker import building, load_meter, loading, safetensors_tensors
from gpu_worker.building import build_engine
from gpu_worker.config import EngineConfig
from gpu_worker.engine import Engine
from gpu_worker.kv_cache import KVCache
from gpu_worker.load_meter import SHARE_SECONDS, LoadMeter
from gpu_worker.loading import choose_dtype, load_weights, why_dtype
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


def _repeat_a_tensor_that_the_index_has_not(folder: Path) -> str:
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    tensors = load_file(first)
    name = min(tensors)
    save_file(load_file(second) | {name: tensors[name]}, second)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"][name]
    path.write_text(json.dumps(index))
    return name


def _repeat_a_tensor_in_a_header(folder: Path) -> str:
    shard = sorted(folder.glob("*.safetensors"))[0]
    content = shard.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name: str = max(header)
    again = (json.dumps(header)[:-1] + f", {json.dumps({name: header[name]})[1:-1]}}}").encode()
    shard.write_bytes(len(again).to_bytes(8, "little") + again + content[8 + length :])
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
        _repeat_a_tensor_that_the_index_has_not,
        _repeat_a_tensor_in_a_header,
    ],
)
def test_damage_is_named_and_nothing_is_loaded(damage: Callable[[Path], str], tmp_path: Path) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path, max_shard_size="60KB")
    name = damage(folder)
    with pytest.raises(CheckpointError) as caught:
        loaded(folder)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def _shards(folder: Path) -> tuple[list[Path], dict[str, Tensor]]:
    """Save a model in shards; return these and the tensors in all of them."""
    save(tiny_model("grouped queries"), folder, max_shard_size="60KB")
    shards = sorted(folder.glob("*.safetensors"))
    return shards, {name: tensor for shard in shards for name, tensor in load_file(shard).items()}


def _assert_loaded(folder: Path, expected: dict[str, Tensor]) -> None:
    ours = loaded(Path(locate(str(folder))))
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(ours[name], value), name


def test_a_shard_that_the_index_does_not_name_is_nobodys(tmp_path: Path) -> None:
    _, expected = _shards(tmp_path)
    save_file({name: -tensor for name, tensor in expected.items()}, tmp_path / "model-00099-of-00099.safetensors")
    (tmp_path / "optimizer.safetensors").write_bytes(b"cut off")
    _assert_loaded(tmp_path, expected)


def test_a_tensor_comes_from_the_shard_that_the_index_names(tmp_path: Path) -> None:
    (first, second, *_), expected = _shards(tmp_path)
    one, other = load_file(first), load_file(second)
    save_file(one | {name: -tensor for name, tensor in other.items()}, first)
    save_file(other | {name: -tensor for name, tensor in one.items()}, second)
    _assert_loaded(tmp_path, expected)


def test_an_index_goes_before_a_single_file_unless_its_shards_are_gone(tmp_path: Path) -> None:
    shards, expected = _shards(tmp_path)
    other = {name: -tensor for name, tensor in expected.items()}
    save_file(other, tmp_path / "model.safetensors")
    _assert_loaded(tmp_path, expected)
    shards[0].rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=rf"names the shard '{shards[0].name}', which is missing"):
        locate(str(tmp_path))
    for shard in shards[1:]:
        shard.unlink()
    _assert_loaded(tmp_path, other)


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("piece", [2**24, 1000])
def test_values_are_converted_as_torch_converts_them(
    stored: str, wanted: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_tensors, "_PIECE", piece)
    generator = torch.Generator().manual_seed(1)
    shapes = {"b": (33, 17), "a": (5,), "c": (2, 3)}
    tensors = {name: torch.randn(n, generator=generator).to(getattr(torch, stored)) for name, n in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    views = {name: torch.full(n, torch.nan, dtype=getattr(torch, wanted)) for name, n in shapes.items() if name != "c"}
    filled: list[str] = []
    safetensors_tensors.read_safetensors(read_index(tmp_path), views, filled.append)
    assert sorted(filled) == ["a", "b"]
    for name, view in views.items():
        assert torch.equal(view, tensors[name].to(view.dtype)), name


def test_files_are_read_once_from_the_first_byte_to_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, expected = _shards(tmp_path)
    read: list[tuple[str, int, int]] = []

    class Watched(FileIO):
        def readinto(self, buffer: Any) -> Any:
            at, count = self.tell(), super().readinto(buffer)
            read.append((str(self.name), at, at + (count or 0)))
            return count

    monkeypatch.setattr(safetensors_tensors, "FileIO", Watched)
    _assert_loaded(tmp_path, expected)
    assert read == sorted(read)
    for shard in shards:
        ranges = [(begin, end) for name, begin, end in read if name == str(shard)]
        assert all(end == begin for (_, end), (begin, _) in pairwise(ranges))
        assert ranges[-1][1] == shard.stat().st_size


def test_a_file_that_is_cut_while_it_is_read_is_named(tmp_path: Path) -> None:
    shards, expected = _shards(tmp_path)
    index = read_index(tmp_path)
    shards[1].write_bytes(shards[1].read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=rf"{shards[1].name}: ends in the midst of a tensor"):
        safetensors_tensors.read_safetensors(index, {n: x.clone() for n, x in expected.items()}, lambda _: None)


def test_parameters_that_do_not_fit_into_memory_are_told_by_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path)
    change_json(folder / "config.json", hidden_size=2**24, vocab_size=2**24)
    config = load_config(folder)
    with pytest.raises(CheckpointError, match=r"GB of parameters do not fit into \S+ GB of free memory; --dtype bf"):
        load_weights(folder, config, torch.float32, CPU, "dummy")
    # Where that much is said to be free, the system itself refuses to give it.
    monkeypatch.setattr(loading, "free_memory", lambda _: 2**60)
    with pytest.raises(CheckpointError, match="GB of parameters do not fit into memory: ") as caught:
        load_weights(folder, config, torch.bfloat16, CPU, "dummy")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("mat1 and mat2 differ\nin shape"), r"cannot be loaded \(mat1 and mat2 differ\)$"),
        (MemoryError(), r"the weights do not fit into memory \(MemoryError\)$"),
        (torch.OutOfMemoryError("CUDA out of memory"), r"the weights do not fit into memory \(CUDA out of memory\)$"),
        (None, r"the weights do not fit into memory \(.*DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=str,
)
def test_only_what_is_about_memory_is_said_to_be(
    error: Exception | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        if error is None:
            return torch.empty(2**58)
        raise error

    monkeypatch.setattr("gpu_worker.building.Decoder", fail)
    with pytest.raises(CheckpointError, match=said):
        start(save(tiny_model("grouped queries"), tmp_path), [])


def test_a_kv_cache_that_does_not_fit_says_so_and_another_fault_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path)
    with pytest.raises(CheckpointError, match="does not fit into memory: lower --kv-cache-gib"):
        start(folder, [], kv_cache_gib=2.0**20, kv_cache_blocks=None)

    def fail(*_: Any, **__: Any) -> KVCache:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(KVCache, "allocate", fail)
    with pytest.raises(CheckpointError, match=r"its kernels cannot be made \(no such kernel\)"):
        start(folder, [])


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
        torch.testing.assert_close(ours[name], torch.from_numpy(value), rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("storage", ["Q4_K", "Q6_K"])
def test_super_blocks_are_unpacked_into_their_parameters(storage: str, tmp_path: Path) -> None:
    model = tiny_model("grouped queries", hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    unpacked = write_gguf(model, tmp_path / "model.gguf", "llama", storage)
    ours = loaded(tmp_path / "model.gguf")
    assert ours.keys() == unpacked.keys()
    for name, value in unpacked.items():
        torch.testing.assert_close(ours[name], torch.from_numpy(value), rtol=1e-6, atol=1e-9, msg=name)


def test_a_gguf_without_a_tensor_or_with_one_too_many_says_which(tmp_path: Path) -> None:
    model = tiny_model("grouped queries")
    write_gguf(model, tmp_path / "model.gguf", "llama", keys={"llama.block_count": 4})
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.input_layernorm\.weight is missing"):
        loaded(tmp_path / "model.gguf")
    write_gguf(model, tmp_path / "model.gguf", "llama", keys={"llama.block_count": 2})
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.\S+ is not part of llama"):
        loaded(tmp_path / "model.gguf")


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
    ("stored", "wanted", "chosen", "why"),
    [
        ("bfloat16", "auto", "bfloat16", ""),
        ("float16", "auto", "bfloat16", "the checkpoint is float16, which ends at 65504"),
        ("float32", "auto", "float32", ""),
        ("bfloat16", "float32", "float32", "as asked for; the checkpoint is bfloat16"),
        ("float32", "bfloat16", "bfloat16", "as asked for; the checkpoint is float32"),
        ("float16", "float16", "float16", ""),
        ("bfloat16", "float16", "float16", "as asked for; the checkpoint is bfloat16"),
    ],
)
def test_the_dtype_goes_by_the_checkpoint_unless_it_is_float16(
    stored: str, wanted: str, chosen: str, why: str, tmp_path: Path
) -> None:
    folder = save(tiny_model("grouped queries").to(getattr(torch, stored)), tmp_path)
    config = load_config(folder)
    assert config.dtype == stored
    dtype = choose_dtype(wanted, config)
    assert dtype == getattr(torch, chosen)
    assert why_dtype(wanted, config, dtype).startswith(why)
    assert bool(why_dtype(wanted, config, dtype)) == bool(why)


def test_a_quantised_file_is_computed_in_float32_on_a_cpu_and_bfloat16_on_a_gpu(tmp_path: Path) -> None:
    write_gguf(tiny_model("grouped queries"), tmp_path / "model.gguf", "llama", "Q8_0")
    config = load_config(tmp_path / "model.gguf")
    for device, dtype in ((CPU, torch.float32), (torch.device("cuda"), torch.bfloat16)):
        assert choose_dtype("auto", config, device, quantised=True) == dtype
        assert why_dtype("auto", config, dtype, quantised=True) == "the file is quantised"
        assert choose_dtype("float16", config, device, quantised=True) == torch.float16
    told: list[str] = []
    start(tmp_path / "model.gguf", told).device.close()
    assert told[0] == "loading model.gguf in float32 (the file is quantised)"


def start(model: Path, told: list[str], **options: Any) -> Engine:
    config = EngineConfig(str(model), max_model_len=64, max_num_seqs=1, kv_cache_blocks=8, device="cpu")
    return build_engine(replace(config, **options), told.append)


def test_float16_is_computed_in_float16(tmp_path: Path) -> None:
    model = tiny_model("biases everywhere")
    folder = save(model, tmp_path)
    half = PagedModel(folder, torch.float16)
    assert half.cache.k[0].dtype == torch.float16
    (first,), (more,) = half.step((0, TOKENS[:7])), half.step((0, TOKENS[7:]))
    ours = torch.cat((first, more))
    expected = reference_logits(model, TOKENS)
    scale = expected.abs().max()
    assert (ours - expected).abs().max() < 0.02 * scale
    with torch.inference_mode():
        theirs = model.half()(torch.tensor([TOKENS])).logits[0].float()
    assert (ours - expected).abs().mean() < 2 * (theirs - expected).abs().mean(), "more is lost than float16 loses"
    assert not torch.equal(ours, PagedModel(folder).step((0, TOKENS))[0]), "this is float32"
    engine = start(folder, [], dtype="float16")
    engine.device.close()
    assert engine.dtype == "float16"


def test_a_float16_checkpoint_whose_activations_pass_65504_stays_finite(tmp_path: Path) -> None:
    model = tiny_model("grouped queries")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.up_proj.weight.mul_(300)
            layer.mlp.gate_proj.weight.mul_(300)
    folder = save(model.half(), tmp_path)
    assert not PagedModel(folder, torch.float16).step((0, TOKENS))[0].isfinite().all(), "the fixture does not overflow"
    told: list[str] = []
    engine = start(folder, told)
    engine.device.close()
    assert engine.dtype == "bfloat16"
    assert any("in bfloat16 (the checkpoint is float16, which ends at 65504" in line for line in told)
    assert PagedModel(folder, choose_dtype("auto", load_config(folder))).step((0, TOKENS))[0].isfinite().all()


# ----------------------------------------------------------------------------------------------------------- progress


def test_a_start_tells_what_is_loaded_and_how_fast(tmp_path: Path) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path / "tiny")
    told: list[str] = []
    engine = start(folder, told, threads=3)
    engine.device.close()
    assert (engine.model_name, told[0]) == ("tiny", "loading tiny in float32")
    assert told[1] == "computing on the CPU, with 3 threads"
    assert re.fullmatch(r"read 0\.00 GB of weights in \d+\.\d s \(\d+\.\d\d GB/s\)", told[2])
    engine = start(folder, told, served_model_name="my/model")
    engine.device.close()
    assert engine.model_name == "my/model"


def test_loading_tells_its_share_no_more_often_than_it_can_be_read() -> None:
    now, heard = [100.0], list[tuple[float, str]]()
    meter = LoadMeter(8_000_000_000, lambda done, text: heard.append((done, text)), lambda: now[0])
    for _ in range(100):
        now[0] += 0.04
        meter.add(0.01)
    assert 4.0 / SHARE_SECONDS * 0.8 < len(heard) < 4.0 / SHARE_SECONDS + 1
    assert heard[7][0] == pytest.approx(0.56)
    assert heard[7][1] == "weights  56%, 4.48 of 8.00 GB, 2.00 GB/s, 2 s left"
    assert meter.summary() == "read 8.00 GB of weights in 4.0 s (2.00 GB/s)"


@pytest.mark.parametrize("storage", ["safetensors", "gguf"])
def test_the_shares_of_all_tensors_make_a_whole(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_meter, "SHARE_SECONDS", 0.0)
    model, path = tiny_model("tied embeddings"), tmp_path
    if storage == "gguf":
        path = tmp_path / "model.gguf"
        write_gguf(model, path, "llama", "Q4_1")
    else:
        save(model, tmp_path)
    heard: list[float] = []
    names = loaded(path, share=lambda done, _: heard.append(done))
    assert len(heard) == len(names)
    assert heard == sorted(heard)
    assert heard[-1] == pytest.approx(1.0)


def test_threads_that_no_gpu_uses_are_passed_over_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(building, "CUDADevice", object)
    told: list[str] = []
    building._device(EngineConfig(), told.append)
    assert told == []
    building._device(EngineConfig(threads=2), told.append)
    assert told == ["--threads 2 is passed over: it is for a CPU, and a GPU computes (--device)"]
