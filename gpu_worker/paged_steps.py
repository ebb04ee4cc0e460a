"""Steps by paged kernels, as CUDA graphs: one for each of some sizes, and a step takes the next larger one.

    a decode step's rows   s s s s s p p p      s: slot, position, length; p: padding, in a slot of its own whose blocks
                           └─ 5 ───┘└ 3 ─┘      are all block 0, so that what it writes is nobody's

A decode step is one graph from carry-over to the likeliest token, and another one draws tokens if a row has a
temperature. Any other step's graph ends with hidden states: which of its tokens are sampled is another matter each
time, and few launches. What is larger than the largest graph, or all if there are none, is launched kernel by kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.device import Device
from gpu_worker.drawing import Drawing
from gpu_worker.graph_sizes import MOST_GRAPH_TOKENS, decode_sizes, mixed_sizes
from gpu_worker.kv_cache import KVCache
from gpu_worker.likeliest import Likeliest
from gpu_worker.model import Decoder
from gpu_worker.paged_attention import DecodeRows, PagedAttention, PagedAttentionStep
from gpu_worker.paged_columns import CARRIED, PagedShape, PagedStep, Samples
from gpu_worker.paged_prefill import Tiles
from gpu_worker.sampler import Settings
from gpu_worker.step_begin import begin, write_tables

WARM_UPS = 2
"""Runs before a capture: libraries allocate and kernels are compiled in the first."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a step of R rows came to; the next step on the stream writes over it."""

    logits: Tensor  # [R, vocabulary], as the head gives them
    sampled: Tensor  # int64 [R], the likeliest tokens and their statuses, `packed`


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    whole: Tensor  # int32 [shape.size]: its input


class PagedSteps:
    """The steps of one model. Their state is the runner's own: tables, last tokens, KV."""

    def __init__(
        self, model: Decoder, cache: KVCache, tables: Tensor, last_token: Tensor, settings: Settings, max_tokens: int,
        *, graphs: bool,
    ) -> None:  # fmt: skip
        """Nothing is captured yet. The last slot of `tables`, `last_token` and `settings` is the padding's.

        A step has at most `max_tokens` tokens. Without `graphs` there will be none.
        """
        assert isinstance(model.attention, PagedAttention)
        self._model, self._attention, self._cache = model, model.attention, cache
        self._tables, self._last_token, self._settings = tables, last_token, settings
        self._slots = len(last_token) - 1
        device, kind = last_token.device, model.embedding.dtype
        self._decode_sizes = decode_sizes(self._slots) if graphs else []
        self._mixed_sizes = mixed_sizes(min(max_tokens, MOST_GRAPH_TOKENS)) if graphs else []
        self._graphs: dict[PagedShape, _Graph] = {}
        self._draws: dict[tuple[PagedShape, bool], torch.cuda.CUDAGraph] = {}  # by whether rows may be cut
        # Outputs are the same memory for all graphs: what a graph makes for itself alone cannot be another's.
        self._logits = torch.empty((self._slots, model.config.vocab_size), dtype=kind, device=device)
        self._hidden = torch.empty((max_tokens, model.config.hidden_size), dtype=kind, device=device)
        self._sampled = torch.zeros(self._slots, dtype=torch.int64, device=device)
        self._likeliest = Likeliest(self._slots, model.config.vocab_size, device)
        self._drawing = Drawing(self._slots, model.config.vocab_size, device)

    @property
    def padding(self) -> int:
        """The slot of padding."""
        return self._slots

    @property
    def tile_tokens(self) -> int:
        """How many tokens of a row are a tile."""
        return self._attention.tile_tokens

    def decode_shape(self, rows: int) -> PagedShape:
        """Return how long the columns of a decode step of `rows` rows must be."""
        return PagedShape(next((size for size in self._decode_sizes if size >= rows), rows), 0, None)

    def mixed_shape(self, tokens: int, decode_rows: int, tiles: int) -> PagedShape:
        """Return how long the columns of any other step must be."""
        size = next((size for size in self._mixed_sizes if size >= tokens), None)
        return PagedShape(tokens, decode_rows, tiles) if size is None else self._padded(size)

    def _padded(self, tokens: int) -> PagedShape:
        """Return the shape into which every step of so many tokens goes: rows of 2 tokens make the most tiles."""
        rows = min(self._slots, tokens)
        return PagedShape(tokens, rows, tokens // self.tile_tokens + min(self._slots, tokens // 2))

    def decode(self, step: PagedStep, rows: int) -> Decoded:
        """Run a decode step, of which `rows` rows are real."""
        self._run(step)
        return Decoded(self._logits[:rows], self._sampled[:rows])

    def mixed(self, step: PagedStep, samples: Samples) -> Decoded:
        """Run any other step."""
        self._run(step)
        assert samples.at is not None
        if count := len(samples.slot):
            self._end(self._hidden.index_select(0, samples.at), samples.slot)
        return Decoded(self._logits[:count], self._sampled[:count])

    def draw(self, step: PagedStep, samples: Samples | None, decoded: Decoded, *, cut: bool) -> None:
        """Draw the tokens of a step that was run last, in place of the likeliest; `samples`: None for a decode step.

        `cut`: top-k or top-p may cut a row.
        """
        graph = self._draws.get((step.shape, cut)) if samples is None else None
        if graph is not None:
            graph.replay()
        else:
            rows = samples or step.samples(len(decoded.sampled))
            self.draw_from(decoded.logits, rows, decoded.sampled, raw=True, cut=cut)

    def draw_from(self, logits: Tensor, samples: Samples, sampled: Tensor, *, raw: bool, cut: bool) -> None:
        """Put tokens that are drawn at a temperature into `sampled`, where the likeliest are, and into last tokens.

        `raw`: the logits are as the head gave them. `cut`: top-k or top-p may cut a row.
        """
        divisor = self._model.config.logits_scaling if raw else 1.0
        own, last_token = self._settings, self._last_token
        self._drawing.draw(logits, samples.slot, samples.position, own, sampled, last_token, divisor, cut=cut)

    def scaled(self, raw: Tensor) -> Tensor:
        """Return logits as they are meant, float32, from some that the head gave."""
        return self._model.scaled(raw)

    def logits(self, at: Tensor) -> Tensor:
        """Return logits, float32 [N, vocabulary], at some tokens (int [N]) of the step just run, no decode step."""
        hidden = self._hidden.index_select(0, at)
        raw = torch.empty((len(hidden), self._logits.shape[1]), dtype=self._logits.dtype, device=hidden.device)
        self._model.head_into(hidden, raw)
        return self._model.scaled(raw)

    def write_tables(self, slot: Tensor, index: Tensor, block: Tensor) -> None:
        """Do tables[slot, index] = block, which are int32 [n]."""
        write_tables(self._tables, slot, index, block)

    def _run(self, step: PagedStep) -> None:
        graph = self._graphs.get(step.shape)
        if graph is None:
            self._work(step.shape)(step.shape, step.whole)
        else:
            graph.whole.copy_(step.whole)
            graph.graph.replay()

    def _decode(self, shape: PagedShape, whole: Tensor) -> None:
        """Carry-over, forward pass and greedy sampling of one token a row."""
        *tables, tokens, positions, slots, lengths = shape.views(whole)
        self.write_tables(*tables)
        rows = DecodeRows(None, slots, lengths)
        hidden = self._forward(tokens, positions, slots, rows, None)
        self._end(hidden, slots)

    def _mixed(self, shape: PagedShape, whole: Tensor) -> None:
        """Carry-over and forward pass."""
        views = shape.views(whole)
        self.write_tables(*views[:3])
        tokens, positions, slots, *columns = views[3:]
        rows, tiles = DecodeRows(*columns[:3]), Tiles(*columns[3:])
        self._hidden[: shape.tokens].copy_(self._forward(tokens, positions, slots, rows, tiles))

    def _end(self, hidden: Tensor, slots: Tensor) -> None:
        logits = self._logits[: len(hidden)]
        self._model.head_into(hidden, logits)
        self._likeliest.choose(logits, slots, self._last_token, self._sampled)

    def _forward(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, rows: DecodeRows, tiles: Tiles | None
    ) -> Tensor:
        model = self._model
        embedded, where = begin(
            tokens, positions, slots, self._last_token, self._tables, model.embedding,
            model.config.embedding_multiplier, self._cache.block_size,
        )  # fmt: skip
        step = PagedAttentionStep(where, self._tables, rows, tiles)
        return model.hidden(embedded, positions, step, self._cache)

    @torch.inference_mode()
    def capture(self, device: Device, share: Callable[[float, str], None]) -> str:
        """Capture all graphs on the compute stream, the largest first; return in words what it took."""
        began = time.monotonic()
        pool = torch.cuda.graph_pool_handle()
        device.settle()
        before = torch.cuda.mem_get_info(device.torch_device)[0]
        shapes = [self._padded(size) for size in reversed(self._mixed_sizes)]
        shapes += [PagedShape(size, 0, None) for size in reversed(self._decode_sizes)]
        for number, shape in enumerate(shapes):
            device.compute.run(lambda shape=shape: self._capture(shape, pool))  # type: ignore[misc]
            share((number + 1) / len(shapes), f"captured {number + 1} of {len(shapes)} CUDA graphs")
        device.settle()
        mib = (before - torch.cuda.mem_get_info(device.torch_device)[0]) / 2**20
        return f"{len(shapes)} CUDA graphs in {time.monotonic() - began:.1f} s, {mib:.0f} MiB"

    def _capture(self, shape: PagedShape, pool: Any) -> None:
        whole, work = self._nothing(shape), self._work(shape)
        self._graphs[shape] = _Graph(_captured(lambda: work(shape, whole), pool), whole)
        if shape.tiles is None:
            step, rows = PagedStep(shape, whole), shape.tokens
            logits, sampled = self._logits[:rows], self._sampled[:rows]
            for cut in (False, True):

                def draw(cut: bool = cut) -> None:
                    self.draw_from(logits, step.samples(rows), sampled, raw=True, cut=cut)

                self._draws[shape, cut] = _captured(draw, pool)

    def _nothing(self, shape: PagedShape) -> Tensor:
        """Return the columns of a step that is nothing but padding."""
        whole = torch.zeros(shape.size, dtype=torch.int32, device=self._last_token.device)
        table_slots, _, _, tokens, _, slots = shape.views(whole)[:6]
        table_slots.fill_(self.padding)
        tokens.fill_(CARRIED)
        slots.fill_(self.padding)
        return whole

    @torch.inference_mode()
    def warm_up(self, device: Device, share: Callable[[float, str], None]) -> None:
        """Have the kernels compiled that steps without a graph use."""
        if device.torch_device.type == "cpu":
            return  # Triton interprets
        # One of each kind of kernel: by how rows are split, and by how a product of so few rows is cut.
        rows = {self._attention.parts_for(rows): rows for rows in range(1, self._slots + 1)}.values()
        most = len(self._hidden)
        few = sorted({min(tokens, most) for tokens in (*(1 << bit for bit in range(8)), 129, most)})
        shapes = [PagedShape(size, 0, None) for size in {*rows, *few} if size <= self._slots]
        shapes += [PagedShape(tokens, 1, 1) for tokens in few] + [PagedShape(size, size, 1) for size in rows]
        device.settle()
        device.compute.run(self._draw_nothing)
        for number, shape in enumerate(shapes):
            device.compute.run(lambda shape=shape: self._work(shape)(shape, self._nothing(shape)))  # type: ignore[misc]
            share((number + 1) / len(shapes), "compiling kernels")
        device.settle()

    def _draw_nothing(self) -> None:
        """Draw once from logits of either type that they come in: for padding, whose temperature is 0."""
        device = self._last_token.device
        padding = torch.full((1,), self.padding, dtype=torch.int32, device=device)
        for kind in {self._logits.dtype, torch.float32}:
            logits = torch.zeros((1, self._logits.shape[1]), dtype=kind, device=device)
            sampled = torch.zeros(1, dtype=torch.int64, device=device)
            for cut in (False, True):
                self.draw_from(logits, Samples(padding, padding), sampled, raw=True, cut=cut)

    def _work(self, shape: PagedShape) -> Callable[[PagedShape, Tensor], None]:
        return self._decode if shape.tiles is None else self._mixed


def _captured(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """Return a graph of what `work` launches."""
    for _ in range(WARM_UPS):
        work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
        work()
    return graph
