"""From a worker's options to a model that is ready to compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from checkpoint import CheckpointError, ForeignConfig, GGUFFile, ModelConfig, describe, first_line, locate, served_name
from gpu_worker.attention import TorchAttention
from gpu_worker.backends import choose_backend
from gpu_worker.config import EngineConfig, served_length
from gpu_worker.cpu_device import CPUDevice
from gpu_worker.cuda_device import CUDADevice
from gpu_worker.device import Device
from gpu_worker.free_memory import free_memory, is_out_of_memory
from gpu_worker.gpu_memory import GPUReading, gpu_memory, read_gpu
from gpu_worker.kv_cache import KVCache, KVShape
from gpu_worker.kv_sizing import (
    BlockNeeds,
    asked_blocks,
    blocks_on_a_cpu,
    blocks_on_a_gpu,
    check_room,
    graph_bytes,
    parameter_bytes,
)
from gpu_worker.largest_steps import BLOCKS, largest_steps
from gpu_worker.loading import choose_dtype, load_weights, why_dtype
from gpu_worker.model import Decoder
from gpu_worker.pipeline import StepPipeline
from gpu_worker.runner import ModelRunner, StepModel
from gpu_worker.weights import ModelWeights
from protocol.messages import MOST_NOTES, Opened
from timeline.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model on its device, and how large what may be asked of it is."""

    device: Device
    where: str  # it computes, in words
    runner: ModelRunner
    model_name: str
    dtype: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    slots: int
    blocks: int  # block 0, which is nobody's, not counted
    block_size: int
    max_batch_tokens: int
    max_model_len: int

    @property
    def about(self) -> str:
        """What is computed, and where, in words."""
        return f"{self.model_name} in {self.dtype} on {self.where}"

    def pipeline(self, plans_in_flight: int, recorder: Recorder) -> StepPipeline:
        """Return a new pipeline over the model, whose spans `recorder` gets.

        There must be no other with plans in flight.
        """
        notes = self.max_model_len + MOST_NOTES
        sizes = (self.max_batch_tokens, self.slots, self.blocks, notes)
        return self.device.prepare(
            lambda: StepPipeline(self.device, self.runner, plans_in_flight, *sizes, recorder=recorder)
        )

    def opened(self, nonce: int, session: int) -> Opened:
        """Return what a scheduler is told when its session begins."""
        return Opened(
            nonce=nonce,
            session=session,
            model=self.model_name,
            device=str(self.device.torch_device),
            dtype=self.dtype,
            vocab_size=self.vocab_size,
            eos_token_ids=np.array(self.eos_token_ids, np.uint32),
            slots=self.slots,
            blocks=self.blocks,
            block_size=self.block_size,
            max_batch_tokens=self.max_batch_tokens,
            max_model_len=self.max_model_len,
        )


def build_engine(
    config: EngineConfig,
    tell: Callable[[str], None],
    kv_fill: float | None = None,
    share: Callable[[float, str], None] = lambda _, __: None,
) -> Engine:
    """Load what a config describes; `kv_fill` is for tests that poison the KV cache.

    `tell` gets lines of progress, `share` how much of what takes long is done, from 0 to 1. Raises `CheckpointError` in
    one line for whatever a user can put right.
    """
    path = locate(config.model, need_weights=config.load_format != "dummy", revision=config.revision, tell=tell)
    model_config = describe(path)
    device = _device(config, tell)
    return device.prepare(lambda: _build(path, model_config, config, device, tell, kv_fill, share))


def _build(
    path: Path,
    model_config: ModelConfig | ForeignConfig,
    config: EngineConfig,
    device: Device,
    tell: Callable[[str], None],
    kv_fill: float | None,
    share: Callable[[float, str], None],
) -> Engine:
    max_model_len = served_length(config.max_model_len, model_config)
    quantised = path.is_file() and GGUFFile(path).quantised
    dtype = choose_dtype(config.dtype, model_config, device.torch_device, quantised=quantised)
    why = why_dtype(config.dtype, model_config, dtype, quantised=quantised)
    name = config.served_model_name or served_name(config.model, path)
    tell(f"loading {name} in {str(dtype).removeprefix('torch.')}{f' ({why})' if why else ''}")
    where, on_a_gpu = _in_words(device.torch_device), device.torch_device.type == "cuda"
    tell(f"computing on {where}")
    backend, why = choose_backend(config.attention_backend, model_config, device.torch_device)
    if on_a_gpu:
        tell(f"attention by {backend}{f' ({why})' if why else ''}")
    with_graphs, graphs = backend == "triton" and on_a_gpu and not config.enforce_eager, 0
    if isinstance(model_config, ModelConfig):  # what can't be, shows before anything is loaded
        needs = BlockNeeds.of(config, model_config, max_model_len, dtype)
        asked = asked_blocks(config, needs)
        if with_graphs:
            graphs = graph_bytes(model_config, dtype, config.max_num_seqs, config.max_batch_tokens)
        if asked is not None and on_a_gpu:
            check_room(asked, needs, parameter_bytes(model_config, dtype), graphs, free_memory(device.torch_device))
    before = read_gpu(device.torch_device) if on_a_gpu else None
    model, shape = _load(path, model_config, config, max_model_len, dtype, device.torch_device, backend, tell, share)
    needs = BlockNeeds.of(config, shape, max_model_len, dtype)
    max_blocks = -(-max_model_len // config.block_size)
    sizes = (config.max_num_seqs, max_blocks, model_config.vocab_size, config.max_batch_tokens)

    def engine_with(blocks: int, fill: float | None = None) -> Engine:
        cache = KVCache.allocate(shape, blocks + 1, config.block_size, dtype, device.torch_device, fill=fill)
        return Engine(
            device=device,
            where=where,
            runner=ModelRunner(model, cache, *sizes),
            model_name=name,
            dtype=str(dtype).removeprefix("torch."),
            vocab_size=model_config.vocab_size,
            eos_token_ids=model_config.eos_token_ids,
            slots=config.max_num_seqs,
            blocks=blocks,
            block_size=config.block_size,
            max_batch_tokens=config.max_batch_tokens,
            max_model_len=max_model_len,
        )

    def engine_to_try() -> Engine:
        engine = engine_with(BLOCKS, 0.0)
        if backend == "triton":
            engine.runner.use_paged_kernels(device, share, graphs=False)
        return engine

    # Rows of unlike lengths are padded, to twice what they are at most, and so are keys and values of one layer.
    gathered = 2 / shape.num_layers if backend == "torch" else 0.0
    blocks = _kv_blocks(config, needs, device, before, graphs, gathered, engine_to_try, tell)
    gib = blocks * needs.bytes / 2**30
    tell(f"KV cache of {blocks} blocks, {blocks * config.block_size} tokens, {gib:.1f} GiB")
    try:
        engine = engine_with(blocks, kv_fill)
        if backend == "triton":
            tell(engine.runner.use_paged_kernels(device, share, graphs=with_graphs))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise CheckpointError(f"the KV cache and its kernels cannot be made ({first_line(error)})") from error
        given = "--gpu-memory-utilization" if on_a_gpu and asked_blocks(config, needs) is None else "--kv-cache-gib"
        raise CheckpointError(f"a KV cache of {gib:.1f} GiB does not fit into memory: lower {given}") from None
    return engine


def _load(
    path: Path,
    model_config: ModelConfig | ForeignConfig,
    config: EngineConfig,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
    tell: Callable[[str], None],
    share: Callable[[float, str], None],
) -> tuple[StepModel, KVShape]:
    """Return the model with its weights, and what it keeps of each position."""
    load_format, seed = config.load_format, config.seed or 0
    try:
        if isinstance(model_config, ModelConfig):
            weights = load_weights(path, model_config, dtype, device, load_format, seed, tell, share)
            return _decoder(model_config, weights, config, max_model_len, dtype, device, backend), model_config
        tell(f"{model_config.architecture} runs through transformers' own code, which is slower")
        from gpu_worker.foreign_loading import load_foreign_model  # transformers takes seconds that others are spared

        model = load_foreign_model(path, model_config, dtype, device, config.block_size, load_format, seed, tell)
        return model, model.shape
    except (MemoryError, RuntimeError) as error:
        what = "the weights do not fit into memory" if is_out_of_memory(error) else "cannot be loaded"
        raise CheckpointError(f"{path}: {what} ({first_line(error)})") from error


def _decoder(
    model: ModelConfig,
    weights: ModelWeights,
    config: EngineConfig,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
) -> Decoder:
    if backend == "torch":
        return Decoder(model, weights, TorchAttention(model, config.block_size, dtype), max_model_len)
    from gpu_worker.fused_ops import FusedOps  # Triton comes with torch for CUDA only
    from gpu_worker.paged_attention import PagedAttention

    attention = PagedAttention(model, model.num_heads, config.block_size, dtype, config.max_num_seqs, device)
    ops = FusedOps(model.rms_norm_eps, model.residual_multiplier, dtype, device)
    return Decoder(model, weights, attention, max_model_len, ops)


def _device(config: EngineConfig, tell: Callable[[str], None]) -> Device:
    there = torch.cuda.is_available()
    if config.device == "cuda" and not there:
        raise CheckpointError("--device cuda: torch sees no GPU (a CPU build of torch, or no driver)")
    if config.device == "cpu" or not there:
        return CPUDevice(config.threads)
    if config.threads is not None:
        tell(f"--threads {config.threads} is passed over: it is for a CPU, and a GPU computes (--device)")
    return CUDADevice()


def _in_words(device: torch.device) -> str:
    """Return what computes; on the thread that does, which is the one that knows its team of threads."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {device}"
    threads = torch.get_num_threads()
    return f"the CPU, with {threads} {'thread' if threads == 1 else 'threads'}"


def _kv_blocks(
    config: EngineConfig,
    needs: BlockNeeds,
    device: Device,
    before: GPUReading | None,
    graphs: int,
    gathered: float,
    make: Callable[[], Engine],
    tell: Callable[[str], None],
) -> int:
    """Return the blocks of the pool, block 0 not counted: as asked for, or by memory and what could ever be used.

    Of a GPU's memory `before` was read before the weights were loaded, and graphs will take `graphs` bytes; `gathered`
    is as in `blocks_on_a_gpu`, and `make` makes an engine for the largest steps.
    """
    asked = asked_blocks(config, needs)
    if asked is not None:
        return asked
    if before is None:
        return blocks_on_a_cpu(needs, free_memory(device.torch_device))
    memory = gpu_memory(device, before, largest_steps(make), graphs)
    tell(memory.in_words)
    return blocks_on_a_gpu(needs, memory, config.gpu_memory_utilization, gathered)
