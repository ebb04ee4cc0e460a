"""From what a user wrote after --model to files that are there."""

from __future__ import annotations

from pathlib import Path

from checkpoint.config import ModelConfig
from checkpoint.default_model import default_model_is_there, default_model_path
from checkpoint.errors import CheckpointError
from checkpoint.gguf_config import read_gguf_config
from checkpoint.gguf_file import GGUFFile
from checkpoint.hf_config import read_folder_config
from checkpoint.safetensors_index import read_index, safetensors_files


def locate(model: str | None, *, need_weights: bool = True) -> Path:
    """Return the folder (with config.json) or the .gguf file that `model` names; None is the default model.

    Reads headers only and raises `CheckpointError` when something is missing, cut short or not supported. Without
    `need_weights` a folder may hold no weights, for those who only want its tokenizer or its shape.
    """
    if model is None:
        if not default_model_is_there():
            raise CheckpointError(
                f"no --model was given and the default one is not in {default_model_path().parent}: "
                "fetch it with `python -m checkpoint`, or use `make run`"
            )
        return default_model_path()
    path = Path(model).expanduser()
    if not path.exists():
        raise CheckpointError(f"{model}: no such file or folder; models are given by path, not by name")
    found = path if path.is_file() else _inside(path, need_weights)
    if found.is_file() and found.suffix != ".gguf":
        raise CheckpointError(f"{found}: is neither a folder nor a .gguf file")
    load_config(found)
    if found.is_dir() and need_weights:
        read_index(found)
    return found


def check_tokenizer(path: Path) -> None:
    """Raise `CheckpointError` if a model that `locate` found came without a tokenizer; nothing is loaded.

    A worker needs none, a frontend does.
    """
    if path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise CheckpointError(f"{path} has no tokenizer.json; save the model's fast tokenizer there")
    elif "tokenizer.ggml.tokens" not in GGUFFile(path).metadata:
        raise CheckpointError(f"{path}: has no tokenizer.ggml.tokens, so it holds no tokenizer that can be used")


def load_config(path: Path) -> ModelConfig:
    """Return the configuration of a model that `locate` found."""
    return read_folder_config(path) if path.is_dir() else read_gguf_config(GGUFFile(path))


def _inside(folder: Path, need_weights: bool) -> Path:
    described = (folder / "config.json").is_file()
    if described and (safetensors_files(folder) or not need_weights):
        return folder
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        names = ", ".join(file.name for file in ggufs)
        raise CheckpointError(f"{folder}: holds several .gguf files ({names}); name one of them")
    if not described:
        raise CheckpointError(f"{folder}: holds neither config.json nor a .gguf file")
    old = next(iter(sorted(folder.glob("pytorch_model*.bin"))), None)
    hint = f" ({old.name} is not read: convert it)" if old else ""
    raise CheckpointError(f"{folder}: has config.json but no weights as .safetensors or .gguf{hint}")
