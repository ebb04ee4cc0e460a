"""What a frontend process can be told."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.endpoints import DEFAULT_ADDRESS
from protocol.options import lifeline_option, option


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    """Whom a frontend talks to, and whose text it reads and writes."""

    scheduler: tuple[str, ...] = option("address of a scheduler; give it once for each", metavar="ADDRESS")
    bind: str = option("address for text clients", DEFAULT_ADDRESS, "ADDRESS")
    model: str | None = option("model folder or .gguf file (default: SmolLM2-135M-Instruct)", None, "PATH")
    seed: int | None = option(
        "makes the seeds that requests without one are given repeatable (default: they are random)", None, "N"
    )
    lifeline: str | None = lifeline_option()
