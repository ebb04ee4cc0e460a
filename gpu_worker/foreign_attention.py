"""Our attention at the place where transformers' modelling code looks for one by name.

transformers' layer ──q, k, v, scaling, sliding_window──► `_attention` ──► whatever `attending` has put there
                    ◄──────────────mixed values──────────                  for the duration of one forward pass

The name leads to no mask function, so transformers builds none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "stepahead"
"""What `attn_implementation` of a model that is to call us must be."""

_WITHOUT_EFFECT = frozenset(
    {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits"}
)
"""What layers pass on to any attention; ours knows the positions from the step and never returns its weights."""


class UnlikeOursError(Exception):
    """A model does something that our attention over a paged cache does not; the text says what "it" does."""


@dataclass(frozen=True, slots=True)
class LayerAsk:
    """What a layer wants of its attention, besides q, k and v; None is for what it does without.

    `window` counts the token itself, `softcap` bounds scores, `sinks` are a score of its own for each head: [heads].
    """

    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None


class Attend(Protocol):
    """Attention for one layer: q [T, heads, key dim], k and v [T, kv heads, …] -> [T, heads, value dim]."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, ask: LayerAsk) -> Tensor:
        """Mix values for each of the T tokens."""


_attend: ContextVar[Attend] = ContextVar("attend")


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Let `attend` answer the layers that this thread runs meanwhile."""
    before = _attend.set(attend)
    try:
        yield
    finally:
        _attend.reset(before)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks: query [1, heads, T, key dim], … -> ([1, T, heads, value dim], no weights).

    Raises `UnlikeOursError` for whatever would change the result and is not among our arguments.
    """
    if attention_mask is not None:
        raise UnlikeOursError("it masks attention in a way of its own")
    if is_causal is False or not getattr(module, "is_causal", True):
        raise UnlikeOursError("its attention looks ahead")
    if dropout:
        raise UnlikeOursError("its attention drops out")
    for name, wanted in others.items():
        if wanted is not None and name not in _WITHOUT_EFFECT:
            raise UnlikeOursError(f"its attention has {name}")
    if key.shape[2] != query.shape[2] or query.shape[0] != 1:
        raise UnlikeOursError("it attends to something other than its text")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnlikeOursError("its attention does not know the number of its layer")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if s_aux is not None and s_aux.shape != (query.shape[1],):
        raise UnlikeOursError("its attention has sinks that are not one for each head")
    ask = LayerAsk(q.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap, s_aux)
    return _attend.get()(layer, q, k, v, ask)[None], None


AttentionInterface.register(NAME, _attention)
