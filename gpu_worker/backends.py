"""Who computes attention: what was asked for, if it can, and why it is another if it cannot.

| name   | where                     | what                                                                      |
| ------ | ------------------------- | ------------------------------------------------------------------------- |
| triton | NVIDIA GPUs, from 8.0 on  | kernels over the paged cache, fused work between products, CUDA graphs    |
| torch  | anywhere                  | gathers keys and values, and calls torch's own attention                  |
"""

from __future__ import annotations

import importlib.util
import os

import torch

from checkpoint import CheckpointError, ForeignConfig, ModelConfig

BACKENDS = ("triton", "torch")

LEAST_CAPABILITY = (8, 0)
LARGEST_HEAD = 256


def choose_backend(asked: str, model: ModelConfig | ForeignConfig, device: torch.device) -> tuple[str, str]:
    """Return one of `BACKENDS`, and in words why it is not the one that was asked for, or that a GPU would have.

    `asked` may be "auto". Raises `CheckpointError` if triton was asked for where there is no GPU.
    """
    if device.type == "cpu" and not _interprets():
        if asked == "triton":
            raise CheckpointError("--attention-backend triton needs a GPU, and a CPU computes (--device)")
        return "torch", ""
    if asked == "torch" or (asked == "auto" and device.type == "cpu"):
        return "torch", ""
    why = _why_not(model, device)
    return ("torch", f"triton cannot: {why}") if why else ("triton", "")


def _why_not(model: ModelConfig | ForeignConfig, device: torch.device) -> str:
    if isinstance(model, ForeignConfig):
        return "the model runs through transformers' own code"
    if model.head_dim > LARGEST_HEAD:
        return f"heads of {model.head_dim} dimensions are wider than {LARGEST_HEAD}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < LEAST_CAPABILITY:
        return f"the GPU's compute capability is {found[0]}.{found[1]}, and it takes {LEAST_CAPABILITY[0]}.0"
    return ""


def _interprets() -> bool:
    """Whether Triton interprets kernels, so that they can be tested on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
