"""Decode attention alone: one token a row over a paged cache, layer after layer, as a decode step has it.

Each layer has a cache of its own, filled with random numbers, its blocks in no order. There are so many layers that no
cache of the device holds what the next round reads; on a GPU a round is one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.contestant import BenchmarkError
from bench.device_time import device_seconds
from checkpoint import ModelConfig
from gpu_worker.attention import TorchAttention
from gpu_worker.cpu_device import CPUDevice
from gpu_worker.cuda_device import CUDADevice
from gpu_worker.device import Device
from gpu_worker.free_memory import free_memory
from gpu_worker.kv_cache import KVCache, bytes_per_block

BYTES_OF_A_ROUND = {"cuda": 2**29, "cpu": 2**26}
"""Keys and values at least, of all layers: far more than any cache of a GPU holds."""

LEAST_LAYERS, MOST_LAYERS = 2, 512

PART_OF_FREE_MEMORY = 0.8


@dataclass(frozen=True, slots=True)
class Layers:
    """So many layers of a model's heads; each sees everything."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    attention_scale: float | None
    layer_windows: tuple[int, ...] = ()


def open_device(kind: str, threads: int | None) -> Device:
    """Return a device that nothing is on yet; raises `BenchmarkError` if there is no GPU."""
    if kind == "cpu":
        return CPUDevice(threads)
    if not torch.cuda.is_available():
        raise BenchmarkError("--device cuda: torch sees no GPU (a CPU build of torch, or no driver)")
    return CUDADevice()


def name_of(device: Device) -> str:
    """Return what computes, in words."""
    kind = device.torch_device
    return torch.cuda.get_device_name(kind) if kind.type == "cuda" else "the CPU"


class DecodeAttention:
    """Attention of a model's heads, by one of `backends.BACKENDS`, on a device that does nothing else."""

    def __init__(self, device: Device, model: ModelConfig, dtype: torch.dtype, block_size: int, backend: str) -> None:
        self._device, self._model, self._dtype, self._block_size = device, model, dtype, block_size
        self._backend = backend
        self._bytes_of_round = BYTES_OF_A_ROUND[device.torch_device.type]

    def bytes_of(self, rows: int, context: int) -> int:
        """Return the bytes of keys and values that a layer reads for so many rows of `context` tokens."""
        return rows * context * bytes_per_block(self._layers(1), 1, self._dtype)

    def layers_for(self, rows: int, context: int) -> int:
        """Return how many layers a round has."""
        return min(MOST_LAYERS, max(LEAST_LAYERS, -(-self._bytes_of_round // self.bytes_of(rows, context))))

    def fits(self, rows: int, context: int) -> bool:
        """Whether there is memory for a round."""
        if self._device.torch_device.type == "cuda":
            torch.cuda.empty_cache()
        layers = self._layers(self.layers_for(rows, context))
        blocks = rows * -(-context // self._block_size) + 1
        needed = blocks * bytes_per_block(layers, self._block_size, self._dtype)
        return needed <= PART_OF_FREE_MEMORY * free_memory(self._device.torch_device)

    def run(self, rows: int, context: int, rounds: int) -> NDArray[np.float64]:
        """Return how long a layer took in each of so many rounds, float64 seconds [rounds]."""
        layers = self.layers_for(rows, context)
        attend = self._device.prepare(lambda: self.prepared(rows, context, layers))

        @torch.inference_mode()
        def all_layers() -> None:
            for layer in range(layers):
                attend(layer)

        if self._device.torch_device.type == "cpu":
            return device_seconds(self._device, all_layers, rounds) / layers
        graph = torch.cuda.CUDAGraph()

        def capture() -> None:
            all_layers()  # kernels are compiled
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                all_layers()

        self._device.compute.run(capture)
        return device_seconds(self._device, graph.replay, rounds) / layers

    @torch.inference_mode()
    def prepared(self, rows: int, context: int, count: int) -> Callable[[int], Tensor]:
        """Return what computes one of `count` layers: [rows, num_heads, head_dim]."""
        model, device, size = self._model, self._device.torch_device, self._block_size
        layers, each = self._layers(count), -(-context // size)
        cache = KVCache.allocate(layers, rows * each + 1, size, self._dtype, device)
        for part in (*cache.k, *cache.v):
            part.normal_()
        tables = (torch.randperm(rows * each, device=device) + 1).to(torch.int32).view(rows, each)
        q = torch.randn((rows, model.num_heads, model.head_dim), device=device).to(self._dtype)
        if self._backend == "torch":
            plain = TorchAttention(layers, size, self._dtype)
            step = plain.prepare(tables, np.full(rows, context - 1, np.int32), np.ones(rows, np.int32))
            return lambda layer: plain.attend(layer, q, cache, step)
        from gpu_worker.paged_decode import PagedDecode  # Triton comes with torch for CUDA only

        paged = PagedDecode(
            rows, model.num_heads, model.num_kv_heads, model.head_dim, size, model.attention_scale, device
        )
        slots = torch.arange(rows, dtype=torch.int32, device=device)
        lengths = torch.full((rows,), context, dtype=torch.int32, device=device)
        return lambda layer: paged.attend(q, cache.k[layer], cache.v[layer], tables, slots, lengths, 0)

    def _layers(self, count: int) -> Layers:
        model = self._model
        return Layers(count, model.num_kv_heads, model.head_dim, model.attention_scale)
