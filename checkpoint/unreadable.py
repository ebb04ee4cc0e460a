"""What people point at that is no model we can read, and what to do about it: one line, before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from checkpoint.errors import CheckpointError
from checkpoint.hf_config import read_json

_PICKLED = (
    "is not read: unpickling it could run any code; save the model as safetensors (transformers' save_pretrained)"
)
_OTHER_WEIGHTS = (
    ("pytorch_model*.bin", _PICKLED),
    ("*.pth", _PICKLED),
    ("*.pt", _PICKLED),
    ("*.ckpt", _PICKLED),
    ("consolidated*.safetensors", "is in a layout of its own: take the model's files in transformers' format"),
    ("*.safetensors", "is neither model.safetensors nor named by a model.safetensors.index.json"),
    ("tf_model*.h5", "is TensorFlow's: save the model as safetensors"),
    ("flax_model*.msgpack", "is Flax's: save the model as safetensors"),
    ("*.onnx", "is ONNX: take the model's safetensors"),
)
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_LFS_POINTER = b"version https://git-lfs"


def refuse_adapter(folder: Path) -> None:
    """Raise `CheckpointError` if `folder` holds what was trained on top of a model, and no model."""
    adapter = read_json(folder / "adapter_config.json")
    if adapter:
        base = adapter.get("base_model_name_or_path") or "its base model"
        raise CheckpointError(
            f"{folder}: holds an adapter, not a model; merge it into {base} (PEFT's merge_and_unload), save that, and "
            "serve it"
        )


def refuse_quantised(folder: Path) -> None:
    """Raise `CheckpointError` if the files in `folder` say that its safetensors are quantised, naming the method."""
    for name, key in (
        ("config.json", "quantization_config"),
        ("config.json", "compression_config"),
        ("quantize_config.json", None),
        ("quant_config.json", None),
    ):
        said = read_json(folder / name)
        settings = said if key is None else said.get(key)
        if settings:
            method = settings.get("quant_method", "unknown") if isinstance(settings, dict) else settings
            raise CheckpointError(
                f"{folder / name}: quantisation {method} is not supported: take the model's unquantised weights, or a "
                "GGUF file of it"
            )


def other_weights(folder: Path) -> str:
    """Return in brackets what `folder` holds instead of weights that are read, and why that is not; else nothing."""
    for pattern, why in _OTHER_WEIGHTS:
        found = next(iter(sorted(folder.glob(pattern))), None)
        if found is not None:
            return f" ({found.name} {why})"
    return ""


def refuse_file(path: Path) -> None:
    """Raise `CheckpointError` for a single file that is no .gguf."""
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: name the folder that it lies in, with its config.json")
    why = _PICKLED if path.suffix in (".bin", ".pth", ".pt", ".ckpt") else "is neither a folder nor a .gguf file"
    raise CheckpointError(f"{path}: {why}")


def refuse_split(names: Sequence[str]) -> None:
    """Raise `CheckpointError` if the GGUF files of these `names` are parts of one model."""
    if names and all(_PART.search(name) for name in names):
        raise CheckpointError(
            f"{names[0]}: is a part of a GGUF file that was split, which is not read: join the parts "
            "(llama-gguf-split --merge FIRST-PART WHOLE.gguf)"
        )


def refuse_lfs_pointer(path: Path, start: bytes) -> None:
    """Raise `CheckpointError` if a file that begins with `start` only stands for one that was not downloaded."""
    if start.startswith(_LFS_POINTER):
        raise CheckpointError(f"{path}: stands for a file that git has not fetched: run `git lfs pull` in its folder")
