"""How many blocks the KV cache gets: as many as asked for, or by memory and by what could ever be used.

a GPU's memory  ├─ weights ─┼─ largest step ─┼─ graphs ─┼──── KV ────┤─ spare, and other programs' ─┤
                └───────────── --gpu-memory-utilization ─────────────┘

All here is arithmetic: sizes go in, blocks come out, or an error that has all of the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from checkpoint import CheckpointError, ModelConfig
from gpu_worker.config import EngineConfig
from gpu_worker.graph_sizes import MOST_GRAPH_TOKENS, decode_sizes, mixed_sizes
from gpu_worker.kv_cache import KVShape, bytes_per_block
from gpu_worker.weights import destinations, empty_weights

GIBI = 2**30

_SHARE_OF_FREE_MEMORY = 0.5
"""On a CPU: of what is free once the weights are there. The rest is activations', and other programs'."""

_MOST_ON_A_CPU = 4 * GIBI
"""Unless more is asked for: a CPU has other programs to serve. (One request of full length gets what it needs.)"""

_BYTES_OF_A_GRAPH = 8 * 2**20
"""The driver's, for the nodes of one graph of a whole step."""

_HIDDEN_STATES = 6


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """What a block takes, and how many there must and can be; block 0, which is nobody's, is not counted."""

    bytes: int  # of one block, over all layers
    size: int  # tokens
    least: int  # for one request of full length
    most: int  # that all requests can use at once
    max_model_len: int

    @classmethod
    def of(cls, config: EngineConfig, shape: KVShape, max_model_len: int, dtype: torch.dtype) -> BlockNeeds:
        """Return those of a model that is served as `config` says."""
        size = config.block_size
        return cls(
            bytes=bytes_per_block(shape, size, dtype),
            size=size,
            least=-(-(max_model_len - 1) // size),
            most=config.max_num_seqs * -(-max_model_len // size),
            max_model_len=max_model_len,
        )

    def blocks_in(self, memory: int) -> int:
        """Return how many whole blocks fit into `memory` bytes beside block 0; -1 if not even that one does."""
        return max(-1, memory // self.bytes - 1)


@dataclass(frozen=True, slots=True)
class GPUMemory:
    """Bytes of a GPU, and who has them or will, before there is a KV cache."""

    total: int
    free: int  # now, when the weights are there and nothing else is
    weights: int
    activations: int  # of the largest step, and what a worker keeps for its steps
    graphs: int  # of those that will be captured
    kernels: int  # and whatever else libraries took, past torch, since the weights were loaded

    def within(self, utilization: float) -> int:
        """Return what a process that may have this share of the whole memory has left for KV."""
        return int(utilization * self.total) - self.weights - self.activations - self.graphs - self.kernels

    @property
    def in_words(self) -> str:
        """Who has how much."""
        return (
            f"of the GPU's {_gib(self.total)} GiB, {_gib(self.weights)} are weights, {_gib(self.activations)} for the "
            f"largest step, {_gib(self.graphs)} for CUDA graphs, {_gib(self.kernels)} for kernels"
        )

    @property
    def there(self) -> int:
        """Return what other programs leave for KV."""
        return self.free - self.activations - self.graphs


def asked_blocks(config: EngineConfig, needs: BlockNeeds) -> int | None:
    """Return how many blocks the options ask for; None if they leave it open.

    Raises `CheckpointError` if one request of full length needs more.
    """
    if config.kv_cache_blocks is not None:
        return _enough(config.kv_cache_blocks, needs)
    if config.kv_cache_gib is not None:
        return _enough(needs.blocks_in(int(config.kv_cache_gib * GIBI)), needs)
    return None


def blocks_on_a_cpu(needs: BlockNeeds, free: int) -> int:
    """Return how many blocks there are for `free` bytes of memory; raises `CheckpointError` for too few."""
    memory = min(int(_SHARE_OF_FREE_MEMORY * free), _MOST_ON_A_CPU)
    memory = max(memory, (needs.least + 1) * needs.bytes)
    return _enough(min(needs.most, needs.blocks_in(memory)), needs)


def blocks_on_a_gpu(needs: BlockNeeds, memory: GPUMemory, utilization: float, gathered: float = 0.0) -> int:
    """Return how many blocks there are; raises `CheckpointError`, with all of the numbers, for too few.

    Steps take `gathered` times the memory of all blocks once more: plain torch lays out what a layer's rows see.
    """
    within, there = memory.within(utilization), memory.there
    blocks = min(needs.most, needs.blocks_in(int(min(within, there) / (1 + gathered))))
    if blocks >= needs.least:
        return blocks
    others = "" if within <= there else f"; other programs leave {_gib(max(0, there))} of that"
    raise CheckpointError(
        f"{memory.in_words}: of the {_gib(int(utilization * memory.total))} that --gpu-memory-utilization "
        f"{utilization:g} allows, {_gib(max(0, within))} are left for KV{others}; one request of --max-model-len "
        f"{needs.max_model_len} needs {_gib((needs.least + 1) * needs.bytes)}"
    )


def check_room(blocks: int, needs: BlockNeeds, weights: int, graphs: int, free: int) -> None:
    """Raise `CheckpointError` if so many blocks, which were asked for, can't be beside weights and graphs; in bytes.

    Nothing is loaded yet, `free` is what the GPU has for both.
    """
    kv = (blocks + 1) * needs.bytes
    if kv + weights + graphs > free:
        raise CheckpointError(
            f"a KV cache of {_gib(kv)} GiB, weights of {_gib(weights)} and {_gib(graphs)} for CUDA graphs do not fit "
            f"into the {_gib(free)} GiB that the GPU has free: lower --kv-cache-gib or --kv-cache-blocks"
        )


def parameter_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a model's parameters."""
    views = destinations(empty_weights(model, dtype, torch.device("meta")), model)
    return sum(view.nbytes for view in views.values())


def graph_bytes(model: ModelConfig, dtype: torch.dtype, slots: int, max_tokens: int) -> int:
    """Return what the CUDA graphs of steps of up to `slots` rows and `max_tokens` tokens take, about.

    All share one pool, in which the largest keeps what it computes on the way: a few columns of hidden states, and
    those of one layer's wide products.
    """
    tokens = min(max_tokens, MOST_GRAPH_TOKENS)
    heads = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim
    a_token = (_HIDDEN_STATES * model.hidden_size + heads + 3 * model.intermediate_size) * dtype.itemsize
    graphs = len(decode_sizes(slots)) + len(mixed_sizes(tokens))
    return a_token * max(tokens, slots) + _BYTES_OF_A_GRAPH * graphs


def _enough(blocks: int, needs: BlockNeeds) -> int:
    if blocks < needs.least:
        raise CheckpointError(
            f"the KV cache would have {max(0, blocks)} blocks of {needs.size} tokens ({needs.bytes / 2**20:.1f} MiB "
            f"each); one request of --max-model-len {needs.max_model_len} needs {needs.least}: lower that, or give "
            "more memory"
        )
    return blocks


def _gib(size: int) -> str:
    return f"{size / GIBI:.1f}"
