"""From files to parameters: every parameter is filled exactly once, or an error names it before a byte is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from checkpoint import CheckpointError, ForeignConfig, GGUFFile, ModelConfig, first_line, read_index
from gpu_worker.free_memory import free_memory, is_out_of_memory
from gpu_worker.gguf_tensors import gguf_shapes, gguf_tensors
from gpu_worker.load_meter import LoadMeter
from gpu_worker.safetensors_tensors import check_dtype, read_safetensors
from gpu_worker.weights import ModelWeights, destinations, empty_weights

LOAD_FORMATS = ("auto", "dummy")
CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_dtype(
    wanted: str, config: ModelConfig | ForeignConfig, device: torch.device = CPU, *, quantised: bool = False
) -> torch.dtype:
    """Return the dtype to compute in on `device` for --dtype `wanted`; "auto" goes by the checkpoint's own.

    A float16 checkpoint becomes bfloat16, whose range holds every float16 and every activation that a bfloat16-trained
    model can make; float16 does not. A `quantised` file has no dtype of its own. On a GPU it becomes bfloat16: rounding
    to its 8 bits adds little to what 4 or 6 bits have lost, and float32 would take twice the memory and several times
    as long. On a CPU it stays float32, in which requests do not change each other's tokens; `--dtype bfloat16` halves
    the memory there, too. Raises `CheckpointError` for any other name.
    """
    if wanted == "auto":
        if quantised:
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        return torch.float32 if config.dtype == "float32" else torch.bfloat16
    if wanted not in DTYPES:
        raise CheckpointError(f"dtype {wanted} is not supported; supported are auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def why_dtype(wanted: str, config: ModelConfig | ForeignConfig, dtype: torch.dtype, *, quantised: bool = False) -> str:
    """Return in words why `choose_dtype` chose `dtype`, nothing if it is the checkpoint's own."""
    if quantised:
        return "the file is quantised" if wanted == "auto" else "as asked for; the file is quantised"
    if DTYPES[config.dtype] == dtype:
        return ""
    if wanted == "auto":
        return "the checkpoint is float16, which ends at 65504, and activations may pass that; --dtype float16 insists"
    return f"as asked for; the checkpoint is {config.dtype}"


def load_weights(
    path: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    load_format: str = "auto",
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
    share: Callable[[float, str], None] = lambda _, __: None,
) -> ModelWeights:
    """Return the parameters of the model at `path` (as `checkpoint.locate` found it) in `dtype` on `device`.

    With `load_format` "dummy" they are random, the same for the same seed, dtype and kind of device. While files are
    read, `share` hears how much of them, and `tell` in the end how fast it went. Beside the parameters there is at most
    one tensor of a GGUF file in float32. Raises `CheckpointError` naming the tensor or the file that is missing,
    damaged, of another shape or unknown.
    """
    if load_format not in LOAD_FORMATS:
        raise CheckpointError(f"load format {load_format} is unknown; known are {', '.join(LOAD_FORMATS)}")
    if load_format == "dummy":
        weights = _allocated(config, dtype, device, path)
        _randomise(destinations(weights, config), seed)
        return weights
    if path.is_dir():
        index = read_index(path)
        for name, stored in index.items():
            check_dtype(name, stored)
        weights, views = _matched({name: stored.shape for name, stored in index.items()}, config, dtype, device, path)
        total = sum(index[name].nbytes for name in views)
        meter = LoadMeter(total, share)
        read_safetensors(index, views, lambda name: meter.add(index[name].nbytes / total))
    else:
        file = GGUFFile(path)
        weights, views = _matched(gguf_shapes(file), config, dtype, device, path)
        meter = LoadMeter(sum(tensor.nbytes for tensor in file.tensors.values()), share)
        _fill(views, gguf_tensors(file, config), path, meter)
    tell(meter.summary())
    return weights


def _matched(
    found: Mapping[str, tuple[int, ...]], config: ModelConfig, dtype: torch.dtype, device: torch.device, path: Path
) -> tuple[ModelWeights, dict[str, Tensor]]:
    """Allocate the parameters once names and shapes in the files are known to fit them."""
    expected = destinations(empty_weights(config, dtype, torch.device("meta")), config)
    for name, view in expected.items():
        if name not in found:
            raise CheckpointError(f"{path}: tensor {name} is missing")
        if found[name] != tuple(view.shape):
            raise CheckpointError(f"{path}: tensor {name} has shape {found[name]}, expected {tuple(view.shape)}")
    for name in found:
        if name not in expected and not _may_be_ignored(name, config):
            raise CheckpointError(f"{path}: tensor {name} is not part of {config.architecture}")
    weights = _allocated(config, dtype, device, path)
    return weights, destinations(weights, config)


def _allocated(config: ModelConfig, dtype: torch.dtype, device: torch.device, path: Path) -> ModelWeights:
    views = destinations(empty_weights(config, dtype, torch.device("meta")), config)
    size = sum(view.nbytes for view in views.values())
    check_room(size, dtype, device, path)
    try:
        return empty_weights(config, dtype, device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise CheckpointError(f"{path}: {_too_large(size, 'memory', dtype)}: {first_line(error)}") from error


def check_room(size: int, dtype: torch.dtype, device: torch.device, path: Path) -> None:
    """Raise `CheckpointError` if `size` bytes of parameters in `dtype` are more than is free on `device`.

    The system gives out more than it has, and kills whoever uses it.
    """
    free = free_memory(device)
    if size > free:
        raise CheckpointError(f"{path}: {_too_large(size, f'{free / 1e9:,.1f} GB of free memory', dtype)}")


def _too_large(size: int, room: str, dtype: torch.dtype) -> str:
    smaller = "; --dtype bfloat16 takes half of it" if dtype == torch.float32 else ""
    return f"its {size / 1e9:,.1f} GB of parameters do not fit into {room}{smaller}"


def _may_be_ignored(name: str, config: ModelConfig) -> bool:
    # A tied head may be stored once more; old checkpoints carry the rotary frequencies, which the configuration gives.
    return (config.tie_word_embeddings and name == "lm_head.weight") or name.endswith("rotary_emb.inv_freq")


def _fill(views: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]], path: Path, meter: LoadMeter) -> None:
    waiting = dict(views)
    total = sum(view.numel() for view in views.values())
    for name, tensor in tensors:
        view = waiting.pop(name, None)
        if view is not None:
            view.copy_(tensor)
            meter.add(view.numel() / total)
    if waiting:
        raise CheckpointError(f"{path}: tensor {min(waiting)} is missing")


def _randomise(views: Mapping[str, Tensor], seed: int) -> None:
    """Draw every tensor so that activations, and so logits, keep a spread of about one whatever the depth."""
    device = next(iter(views.values())).device
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, view in views.items():
        if view.dim() == 2:
            view.normal_(0.0, 1.0 / math.sqrt(view.shape[1]), generator=generator)
        elif name.endswith(".bias"):
            view.normal_(0.0, 0.1, generator=generator)
        else:
            view.fill_(1.0)
