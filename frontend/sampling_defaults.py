"""What a request is sampled with where it does not say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Plain sampling from the model's own distribution; a model's generation_config may say otherwise one day."""

    temperature: float = 1.0
    top_k: int = 0  # off
    top_p: float = 1.0
    min_p: float = 0.0
