"""From a worker's options to an engine: what is decided, loaded, sized and made, in this order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from checkpoint import CheckpointError, ForeignConfig, GGUFFile, ModelConfig, describe, first_line, locate, served_name
from gpu_worker.attention import TorchAttention
from gpu_worker.backends import choose_backend
from gpu_worker.config import GPU_MEMORY_UTILIZATION, EngineConfig, served_length
from gpu_worker.cpu_device import CPUDevice
from gpu_worker.cuda_device import CUDADevice
from gpu_worker.device import Device
from gpu_worker.engine import Engine
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
from gpu_worker.runner import ModelRunner, StepModel
from gpu_worker.weights import ModelWeights


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
    return device.prepare(lambda: _Builder(path, model_config, config, device, tell, share).build(kv_fill))


class _Builder:
    """What is known of an engine that is not there yet. All of it happens on the device's own thread."""

    def __init__(
        self,
        path: Path,
        model: ModelConfig | ForeignConfig,
        config: EngineConfig,
        device: Device,
        tell: Callable[[str], None],
        share: Callable[[float, str], None],
    ) -> None:
        """Decide all that needs no weights, and say it."""
        self._path, self._model, self._config, self._device = path, model, config, device
        self._tell, self._share = tell, share
        on = device.torch_device
        self._on_a_gpu = on.type == "cuda"
        if config.gpu_memory_utilization is not None and not self._on_a_gpu:
            raise CheckpointError("--gpu-memory-utilization is of a GPU's memory, and a CPU computes (--device)")
        self._max_model_len = served_length(config.max_model_len, model)
        quantised = path.is_file() and GGUFFile(path).quantised
        self._dtype = choose_dtype(config.dtype, model, on, quantised=quantised)
        why = why_dtype(config.dtype, model, self._dtype, quantised=quantised)
        self._name = config.served_model_name or served_name(config.model, path)
        tell(f"loading {self._name} in {self._dtype_name}{f' ({why})' if why else ''}")
        self._where = _in_words(on)
        tell(f"computing on {self._where}")
        self._backend, why = choose_backend(config.attention_backend, model, on)
        if self._on_a_gpu:
            tell(f"attention by {self._backend}{f' ({why})' if why else ''}")
        self._with_graphs = self._backend == "triton" and self._on_a_gpu and not config.enforce_eager
        self._graphs = 0  # bytes
        if self._with_graphs and isinstance(model, ModelConfig):
            self._graphs = graph_bytes(model, self._dtype, config.max_num_seqs, config.max_batch_tokens)

    @property
    def _dtype_name(self) -> str:
        return str(self._dtype).removeprefix("torch.")

    def build(self, kv_fill: float | None) -> Engine:
        """Return the engine; raises `CheckpointError` for what can't be, before anything is loaded where that shows."""
        config, device = self._config, self._device
        if isinstance(self._model, ModelConfig):
            self._check_asked(self._model)
        before = read_gpu(device.torch_device) if self._on_a_gpu else None
        model, shape = self._load()
        needs = BlockNeeds.of(config, shape, self._max_model_len, self._dtype)

        def to_try() -> Engine:
            return self._ready(self._engine(model, shape, BLOCKS, 0.0), graphs=False, tell=lambda _: None)

        # Rows of unlike lengths are padded, to twice what they are at most, and so are keys and values of one layer.
        gathered = 2 / shape.num_layers if self._backend == "torch" else 0.0
        blocks = _kv_blocks(config, needs, device, before, self._graphs, gathered, to_try, self._tell)
        gib = blocks * needs.bytes / 2**30
        self._tell(f"KV cache of {blocks} blocks, {blocks * config.block_size} tokens, {gib:.1f} GiB")
        try:
            return self._ready(self._engine(model, shape, blocks, kv_fill), graphs=self._with_graphs, tell=self._tell)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise CheckpointError(f"the KV cache and its kernels cannot be made ({first_line(error)})") from error
            by_share = self._on_a_gpu and asked_blocks(config, needs) is None
            given = "--gpu-memory-utilization" if by_share else "--kv-cache-gib"
            raise CheckpointError(f"a KV cache of {gib:.1f} GiB does not fit into memory: lower {given}") from None

    def _check_asked(self, model: ModelConfig) -> None:
        needs = BlockNeeds.of(self._config, model, self._max_model_len, self._dtype)
        asked = asked_blocks(self._config, needs)
        if asked is not None and self._on_a_gpu:
            weights, free = parameter_bytes(model, self._dtype), free_memory(self._device.torch_device)
            check_room(asked, needs, weights, self._graphs, free)

    def _load(self) -> tuple[StepModel, KVShape]:
        """Return the model with its weights, and what it keeps of each position."""
        config, path, device = self._config, self._path, self._device.torch_device
        how = config.load_format, config.seed or 0, self._tell
        try:
            if isinstance(self._model, ModelConfig):
                weights = load_weights(path, self._model, self._dtype, device, *how, self._share)
                return self._decoder(self._model, weights), self._model
            self._tell(f"{self._model.architecture} runs through transformers' own code, which is slower")
            from gpu_worker.foreign_loading import load_foreign_model  # transformers takes seconds others are spared

            model = load_foreign_model(path, self._model, self._dtype, device, config.block_size, *how)
            return model, model.shape
        except (MemoryError, RuntimeError) as error:
            what = "the weights do not fit into memory" if is_out_of_memory(error) else "cannot be loaded"
            raise CheckpointError(f"{path}: {what} ({first_line(error)})") from error

    def _decoder(self, model: ModelConfig, weights: ModelWeights) -> Decoder:
        block_size, device = self._config.block_size, self._device.torch_device
        if self._backend == "torch":
            return Decoder(model, weights, TorchAttention(model, block_size, self._dtype), self._max_model_len)
        from gpu_worker.fused_ops import FusedOps  # Triton comes with torch for CUDA only
        from gpu_worker.paged_attention import PagedAttention

        rows = self._config.max_num_seqs
        attention = PagedAttention(model, model.num_heads, block_size, self._dtype, rows, device)
        ops = FusedOps(model.rms_norm_eps, model.residual_multiplier, self._dtype, device)
        return Decoder(model, weights, attention, self._max_model_len, ops)

    def _engine(self, model: StepModel, shape: KVShape, blocks: int, fill: float | None) -> Engine:
        config, device, known = self._config, self._device, self._model
        cache = KVCache.allocate(shape, blocks + 1, config.block_size, self._dtype, device.torch_device, fill=fill)
        max_blocks = -(-self._max_model_len // config.block_size)
        sizes = (config.max_num_seqs, max_blocks, known.vocab_size, config.max_batch_tokens)
        return Engine(
            device=device,
            where=self._where,
            runner=ModelRunner(model, cache, *sizes),
            model_name=self._name,
            dtype=self._dtype_name,
            vocab_size=known.vocab_size,
            eos_token_ids=known.eos_token_ids,
            slots=config.max_num_seqs,
            blocks=blocks,
            block_size=config.block_size,
            max_batch_tokens=config.max_batch_tokens,
            max_model_len=self._max_model_len,
        )

    def _ready(self, engine: Engine, *, graphs: bool, tell: Callable[[str], None]) -> Engine:
        """Return an engine whose kernels are compiled, and captured if `graphs`."""
        if self._backend == "triton":
            tell(engine.runner.use_paged_kernels(self._device, self._share, graphs=graphs))
        return engine


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
    return blocks_on_a_gpu(needs, memory, config.gpu_memory_utilization or GPU_MEMORY_UTILIZATION, gathered)
