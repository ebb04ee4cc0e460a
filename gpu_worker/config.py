"""What a GPU worker process can be told. No torch here: launch.py reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from checkpoint import CheckpointError, ForeignConfig, ModelConfig
from protocol.options import lifeline_option, option
from timeline.options import collector_option, name_option

_MOST = {
    "max_num_seqs": 2**16,
    "max_model_len": 2**27,
    "block_size": 2**12,
    "max_batch_tokens": 2**22,
    "kv_cache_blocks": 2**31 - 2,
    "threads": 2**10,
}
"""Beyond these nothing real is meant, and arrays sized by them would fail in stranger words."""

_MOST_GIB = 2**20

GPU_MEMORY_UTILIZATION = 0.9
"""Unless something else is asked for."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Which model to hold, where and how large."""

    model: str | None = option(
        "model folder, .gguf file, or name on the hub: org/name, org/name:file.gguf (default: SmolLM2-135M-Instruct)",
        None,
        metavar="MODEL",
    )
    revision: str | None = option("branch, tag or commit of a model from the hub (default: main)", None, "NAME")
    served_model_name: str | None = option(
        "what clients call the model (default: its name on the hub, or that of its folder or file)", None, "NAME"
    )
    device: Literal["auto", "cpu", "cuda"] = option("where to compute; auto is a GPU where there is one", "auto")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "what to compute in; auto is the checkpoint's own, but bfloat16 for one in float16, which activations may "
        "overflow, and for a quantised file bfloat16 on a GPU and float32 on a CPU",
        "auto",
    )
    load_format: Literal["auto", "dummy"] = option("dummy: random weights of the model's shape", "auto")
    seed: int | None = option(
        "makes samples of requests without a seed, and dummy weights, repeatable (default: samples are random)",
        None,
        "N",
    )
    max_num_seqs: int = option("requests that run at the same time", 64, metavar="N")
    max_model_len: int | None = option("tokens of prompt and output together (default: the model's)", None, metavar="N")
    block_size: int = option("tokens in a KV cache block", 16, metavar="N")
    max_batch_tokens: int = option(
        "tokens computed in one step, prompts and running requests together", 512, metavar="N"
    )
    gpu_memory_utilization: float | None = option(
        "share of a GPU's memory that the worker may use, beside half a GiB of the driver's: what weights and the "
        f"largest step leave of it is for KV (default: {GPU_MEMORY_UTILIZATION})",
        None,
        metavar="SHARE",
    )
    kv_cache_blocks: int | None = option("blocks of KV cache (default: by memory)", None, metavar="N")
    kv_cache_gib: float | None = option(
        "GiB of KV cache (default: what all requests can use, on a GPU at most what --gpu-memory-utilization leaves, "
        "on a CPU at most half of the free memory, and 4)",
        None,
        "GIB",
    )
    attention_backend: Literal["auto", "triton", "torch"] = option(
        "what computes attention, and what else a layer needs: kernels over the paged cache (auto, on a GPU), or plain "
        "torch, which is slow there",
        "auto",
    )
    enforce_eager: bool = option("on a GPU, launch kernel by kernel: no CUDA graphs", False)
    threads: int | None = option("CPU threads that compute (default: torch's choice)", None, metavar="N")

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be meant."""
        if self.served_model_name is not None and not (
            self.served_model_name.isprintable() and 0 < len(self.served_model_name) <= 200
        ):
            raise ValueError("--served-model-name must be a line of 1 to 200 characters")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"--{name.replace('_', '-')} must be from 1 to {most}, got {value}")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"--seed must fit into 64 bits, got {self.seed}")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError(f"--max-model-len must be at least 2, one token in and one out, got {self.max_model_len}")
        if self.max_batch_tokens < self.max_num_seqs:
            raise ValueError(
                f"--max-batch-tokens {self.max_batch_tokens} is less than --max-num-seqs {self.max_num_seqs}: "
                "a step must have room for one token of every running request"
            )
        if (share := self.gpu_memory_utilization) is not None:
            if not 0 < share <= 1:
                raise ValueError(f"--gpu-memory-utilization must be more than 0 and at most 1, got {share:g}")
            if self.device == "cpu":
                raise ValueError("--gpu-memory-utilization is of a GPU's memory, and --device is cpu")
            for name in ("kv_cache_blocks", "kv_cache_gib"):
                if getattr(self, name) is not None:
                    raise ValueError(f"give --gpu-memory-utilization or --{name.replace('_', '-')}, not both")
        if self.kv_cache_gib is not None and not 0 < self.kv_cache_gib <= _MOST_GIB:
            raise ValueError(f"--kv-cache-gib must be more than 0 and at most {_MOST_GIB}, got {self.kv_cache_gib}")
        if self.kv_cache_blocks is not None and self.kv_cache_gib is not None:
            raise ValueError("give --kv-cache-blocks or --kv-cache-gib, not both")


def served_length(asked: int | None, model: ModelConfig | ForeignConfig) -> int:
    """Return how many tokens a request may have for --max-model-len `asked`; raises `CheckpointError` for too many."""
    if asked is None:
        return model.default_model_len
    if asked > model.longest_model_len:
        raise CheckpointError(f"--max-model-len {asked} is more than the model's {model.longest_model_len} positions")
    return asked


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Whom a worker process talks to."""

    bind: str = option("address for the scheduler: ipc:///PATH or tcp://127.0.0.1:PORT", metavar="ADDRESS")
    timeline: str | None = collector_option()
    name: str = name_option("worker")
    lifeline: str | None = lifeline_option()
