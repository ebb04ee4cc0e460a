"""The shape of a model: everything the worker needs to build it and the scheduler needs to stop it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from checkpoint.errors import CheckpointError
from checkpoint.fields import LARGEST_SIZE


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotary frequencies of a longer context are derived from the trained ones.

    default: not at all. linear: divided by `factor`. dynamic: from a larger theta, the longer the served length is
    beyond `original_max_position_embeddings`. llama3: only the slow ones are divided, with a ramp between wavelengths
    `original_max_position_embeddings / high_freq_factor` and `… / low_freq_factor`. yarn: the same, with a ramp over
    dimensions, between those that turn `beta_fast` and `beta_slow` times. longrope: each divided by its own of
    `divisors`, or of `long_divisors` if more than `original_max_position_embeddings` positions are served. divisors:
    each by its own, the form in which GGUF carries llama3.

    Cosines and sines are multiplied by `attention_factor`.
    """

    kind: Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "divisors"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0
    divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family.

    `architecture` is the name as the files give it. `dtype` is the checkpoint's own ("float32", "bfloat16", "float16");
    quantised files say "float32", which is what their values unpack to. `eos_token_ids` is the union of all that the
    files declare, ascending; it may be empty. `attention_bias` is about q, k and v, `output_bias` about the projection
    after attention. `rope_interleaved` says that q and k rows are stored pairwise, as GGUF does for Llama, and must be
    reordered; `fused_projections` that q, k and v are one tensor in the files, and gate and up another.

    The first `rotary_dim` dimensions of a head are rotated (None: all), in every layer but the `unrotated_layers`.
    `layer_windows` has one entry a layer: how many positions a token sees, its own included, or 0 for all; it is empty
    when no layer has a window. `attention_scale` multiplies q·k (None: 1/√head_dim), `embedding_multiplier` what the
    layers begin with, `residual_multiplier` what each attention and each MLP adds, and logits are divided by
    `logits_scaling`.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    dtype: str
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    rope_interleaved: bool = False
    fused_projections: bool = False
    rotary_dim: int | None = None
    unrotated_layers: frozenset[int] = frozenset()
    layer_windows: tuple[int, ...] = ()
    attention_scale: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0

    @property
    def default_model_len(self) -> int:
        """Positions that are served unless the user asks for another number.

        That is `max_position_embeddings`. With yarn it may stand for the trained length or for the extended one, and
        the files say which: the extended one is the trained length times the factor.
        """
        scaling = self.rope_scaling
        if scaling.kind == "yarn":
            return self._up_to(scaling.original_max_position_embeddings)
        return self.max_position_embeddings

    @property
    def longest_model_len(self) -> int:
        """Positions that may be served at most.

        With linear and dynamic scaling the files don't say whether `max_position_embeddings` includes the factor: by
        default it is believed to, and who knows better may ask for as many times more.
        """
        scaling = self.rope_scaling
        if scaling.kind in ("linear", "dynamic"):
            return self._up_to(self.max_position_embeddings)
        return self.default_model_len

    def _up_to(self, trained: int) -> int:
        extended = min(trained * self.rope_scaling.factor, LARGEST_SIZE)  # beyond, float32 can't tell positions apart
        return max(self.max_position_embeddings, int(extended))


def check_heads(config: ModelConfig, source: str) -> ModelConfig:
    """Return `config`, or raise a `CheckpointError` that names `source` if no attention can have such heads.

    That includes how they are rotated.
    """
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    if heads % kv_heads:
        raise CheckpointError(f"{source}: {heads} attention heads are no multiple of {kv_heads} key-value heads")
    if head_dim % 2:
        raise CheckpointError(f"{source}: a head of {head_dim} dimensions is odd, and rotation needs pairs")
    if heads * head_dim > LARGEST_SIZE:
        raise CheckpointError(f"{source}: {heads} heads of {head_dim} dimensions are too large")
    rotary_dim = head_dim if config.rotary_dim is None else config.rotary_dim
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise CheckpointError(f"{source}: {rotary_dim} of {head_dim} dimensions of a head cannot be rotated in pairs")
    for divisors in (config.rope_scaling.divisors, config.rope_scaling.long_divisors):
        if len(divisors) not in (0, rotary_dim // 2):
            raise CheckpointError(f"{source}: {len(divisors)} rotary divisors do not fit {rotary_dim} dimensions")
    if config.rope_theta <= 1:
        raise CheckpointError(f"{source}: the rotation's theta must be more than 1, not {config.rope_theta}")
    if config.rope_scaling.kind == "dynamic" and rotary_dim == 2:
        raise CheckpointError(f"{source}: rope type dynamic needs more than 2 dimensions of a head")
    return config
