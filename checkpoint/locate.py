"""From what a user wrote after --model to files that are there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from checkpoint.architectures import ARCHITECTURES
from checkpoint.config import ModelConfig
from checkpoint.default_model import NAME, default_model_is_there, default_model_path
from checkpoint.errors import CheckpointError
from checkpoint.foreign_config import ForeignConfig, read_foreign_config
from checkpoint.gguf_config import read_gguf_config
from checkpoint.gguf_file import GGUFFile
from checkpoint.hf_config import architecture_of, read_folder_config, read_json
from checkpoint.hub import fetch, hub_name
from checkpoint.safetensors_index import read_index, safetensors_files
from checkpoint.unreadable import other_weights, refuse_adapter, refuse_file, refuse_quantised, refuse_split

_LONGEST_NAME = 200


def locate(
    model: str | None,
    *,
    need_weights: bool = True,
    need_tokenizer: bool = False,
    revision: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Path:
    """Return the folder (with config.json) or the .gguf file that `model` names; None is the default model.

    A path that is there comes first; else `org/name` is fetched from the hub, at `revision` if one is given, and `tell`
    hears of it. Reads headers only and raises `CheckpointError` when something is missing, cut short or not supported.
    Without `need_weights` a folder may hold no weights, for those who only want its tokenizer or its shape; with
    `need_tokenizer` it must hold a tokenizer, for those who hand it on to a frontend.
    """
    # Unlike the path's methods, those of the system take any text, and a ~ before a user whom nobody knows.

    def check(found: Path) -> None:
        _check_description(found)
        if need_tokenizer:
            check_tokenizer(found)

    there = model is None or os.path.exists(os.path.expanduser(model))
    if there and revision is not None:
        raise CheckpointError(f"--revision {revision}: only models from the hub, named org/name, have revisions")
    if model is None:
        if not default_model_is_there():
            raise CheckpointError(
                f"no --model was given and the default one is not in {default_model_path().parent}: "
                "fetch it with `python -m checkpoint`, or use `make run`"
            )
        return default_model_path()
    path = Path(os.path.expanduser(model))
    if not there:
        name = hub_name(model)
        if name is None:
            raise CheckpointError(f"{model}: no such file or folder (and a model on the hub is named org/name)")
        path = fetch(name, revision, tell, weights=need_weights, check=check)
    try:
        found = path if path.is_file() else _inside(path, need_weights)
        if found.is_file() and found.suffix != ".gguf":
            refuse_file(found)
        check(found)
        if found.is_dir() and need_weights:
            read_index(found)
    except OSError as error:  # most of all a folder that its user may not enter
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    return found


def served_name(model: str | None, path: Path) -> str:
    """Return what a model that `locate` found is called unless a user says otherwise: as the hub, or its path, does.

    The default model has its own name, which is not that of its file. A name is one printable line of 1 to 200
    characters, whatever a folder is called.
    """
    if model is None:
        return NAME
    if hub_name(model) is not None and not os.path.exists(model):
        return model[:_LONGEST_NAME]
    name = Path(os.path.abspath(path)).name or "model"
    return "".join(letter if letter.isprintable() else "_" for letter in name[:_LONGEST_NAME])


def check_tokenizer(path: Path) -> None:
    """Raise `CheckpointError` if a model that `locate` found came without a tokenizer; nothing is loaded.

    A worker needs none, a frontend does.
    """
    if path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise CheckpointError(f"{path} has no tokenizer.json; save the model's fast tokenizer there")
    elif "tokenizer.ggml.tokens" not in GGUFFile(path).metadata:
        raise CheckpointError(f"{path}: has no tokenizer.ggml.tokens, so it holds no tokenizer that can be used")


def describe(path: Path) -> ModelConfig | ForeignConfig:
    """Return the configuration of a model that `locate` found: the lean decoder's, or that of one for transformers."""
    if path.is_dir():
        architecture = architecture_of(read_json(path / "config.json"))
        if architecture not in ARCHITECTURES:
            return read_foreign_config(path, architecture)
    return load_config(path)


def load_config(path: Path) -> ModelConfig:
    """Return the configuration of a model that `locate` found and that the lean decoder computes."""
    return read_folder_config(path) if path.is_dir() else read_gguf_config(GGUFFile(path))


def _check_description(path: Path) -> None:
    if path.is_dir():
        if not (path / "config.json").is_file():
            refuse_adapter(path)
        refuse_quantised(path)
    else:
        refuse_split([path.name])
    describe(path)


def _inside(folder: Path, need_weights: bool) -> Path:
    described = (folder / "config.json").is_file()
    if described and (safetensors_files(folder) or not need_weights):
        return folder
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        refuse_split([file.name for file in ggufs])
        names = ", ".join(file.name for file in ggufs)
        raise CheckpointError(f"{folder}: holds several .gguf files ({names}); name one of them")
    refuse_adapter(folder)
    if not described:
        raise CheckpointError(f"{folder}: holds neither config.json nor a .gguf file{other_weights(folder)}")
    raise CheckpointError(f"{folder}: has config.json but no weights as .safetensors or .gguf{other_weights(folder)}")
