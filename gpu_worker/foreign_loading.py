"""From a model's folder to transformers' own model of it, with our attention plugged in and every parameter filled."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as their_logging

from checkpoint import CheckpointError, ForeignConfig, check_foreign, read_index
from gpu_worker.foreign_attention import NAME, UnlikeOursError
from gpu_worker.foreign_check import check_answers
from gpu_worker.foreign_model import ForeignModel, shape_of
from gpu_worker.foreign_tensors import check_left_over, check_stored
from gpu_worker.free_memory import is_out_of_memory
from gpu_worker.loading import CPU, check_room

_THEIRS = f"transformers {transformers.__version__}"


def load_foreign_model(
    path: Path,
    config: ForeignConfig,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    load_format: str,
    seed: int,
    tell: Callable[[str], None],
) -> ForeignModel:
    """Return the model in the folder `path`, in `dtype` on `device`; `tell` gets what is odd about its files.

    With `load_format` "dummy" the weights are those that transformers begins training with, drawn from `seed`. No code
    from the folder is run. Raises `CheckpointError` for a parameter that is missing, quantised or of another shape, for
    a tensor without a place in a part that the model has, and for a model that can't be served: before its weights are
    read where that shows, and where it doesn't, because its logits over a paged cache turn out to be others than its
    own.
    """
    their_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    their_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    described = _their_config(path, config)
    kind = _class_of(config, described, path)
    size = _size(kind, described, dtype, path, config)
    check_room(size, dtype, device, path)
    if load_format == "dummy":
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
            torch.manual_seed(seed)
            model = kind._from_config(  # type: ignore[no-untyped-call]
                described, dtype=dtype, attn_implementation=NAME
            )
    else:
        check_room(size, dtype, CPU, path)  # where transformers reads them
        model = _filled(kind, described, path, dtype, tell)
    model.to(device).eval()
    try:
        shape = shape_of(model)
        check_answers(model, shape, dtype)
    except UnlikeOursError as error:
        raise _unsupported(path, config, str(error)) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise _unsupported(path, config, f"{_THEIRS} fails: {_told(error)}") from error
    return ForeignModel(model, shape, shape.attention(block_size, dtype))


def _their_config(path: Path, config: ForeignConfig) -> PreTrainedConfig:
    """Return transformers' own configuration, in which every default has its value, once it has been looked through."""
    try:
        described: PreTrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # there is no telling what a foreign reader raises over a damaged file
        raise _unsupported(path, config, f"{_THEIRS} says: {_told(error)}") from error
    check_foreign(described.to_dict(), config.architecture, path / "config.json")
    return described


def _class_of(config: ForeignConfig, described: PreTrainedConfig, path: Path) -> type[PreTrainedModel]:
    kind = getattr(transformers, config.architecture, None)
    if not isinstance(kind, type) or not issubclass(kind, PreTrainedModel):
        raise _unsupported(path, config, f"{_THEIRS} has no code for it")
    if kind.config_class is not type(described):
        raise _unsupported(path, config, f"its configuration is one for {described.model_type}")
    if kind._is_stateful:
        raise _unsupported(path, config, "its state is more than keys and values")
    if "logits_to_keep" not in inspect.signature(kind.forward).parameters:
        raise _unsupported(path, config, f"{_THEIRS} can't leave out logits that nobody asked for")
    if not kind._can_set_attn_implementation():
        raise _unsupported(path, config, f"{_THEIRS} computes its attention with no place for ours")
    return kind


def _size(
    kind: type[PreTrainedModel], described: PreTrainedConfig, dtype: torch.dtype, path: Path, config: ForeignConfig
) -> int:
    """Return the bytes of all parameters in `dtype`, from a model without any."""
    try:
        with torch.device("meta"):
            empty = kind._from_config(copy.deepcopy(described), dtype=dtype)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise _unsupported(path, config, f"{_THEIRS} fails: {_told(error)}") from error
    return sum(parameter.nbytes for parameter in empty.parameters())


def _filled(
    kind: type[PreTrainedModel],
    described: PreTrainedConfig,
    path: Path,
    dtype: torch.dtype,
    tell: Callable[[str], None],
) -> PreTrainedModel:
    index = read_index(path)
    check_stored(index, path)
    loaded: Any  # a pair, for output_loading_info
    try:
        loaded = kind.from_pretrained(
            path,
            config=described,
            dtype=dtype,
            attn_implementation=NAME,
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # so that the names come back, and not a table of them
            output_loading_info=True,
        )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise CheckpointError(f"{path}: transformers can't read the weights: {_told(error)}") from error
    model: PreTrainedModel = loaded[0]
    info: dict[str, Any] = loaded[1]
    if info["mismatched_keys"]:
        name, found, expected = min(info["mismatched_keys"])
        raise CheckpointError(f"{path}: tensor {name} has shape {tuple(found)}, expected {tuple(expected)}")
    if info["missing_keys"]:
        raise CheckpointError(f"{path}: tensor {min(info['missing_keys'])} is missing")
    check_left_over(model, info["unexpected_keys"], index, path)
    if info["unexpected_keys"]:
        first, others = min(info["unexpected_keys"]), len(info["unexpected_keys"]) - 1
        tell(f"not used: tensor {first}" + (f" and {others} others" if others else ""))
    return model


def _unsupported(path: Path, config: ForeignConfig, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: architecture {config.architecture} is not supported: {why}")


def _told(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
