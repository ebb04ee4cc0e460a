"""What a frontend process can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protocol.endpoints import DEFAULT_ADDRESS
from protocol.options import lifeline_option, option


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    """Whom a frontend talks to, and whose text it reads and writes."""

    scheduler: tuple[str, ...] = option("address of a scheduler; give it once for each", metavar="ADDRESS")
    bind: str = option("address for text clients", DEFAULT_ADDRESS, "ADDRESS")
    model: str | None = option(
        "model folder, .gguf file, or name on the hub: org/name, org/name:file.gguf (default: SmolLM2-135M-Instruct)",
        None,
        "MODEL",
    )
    revision: str | None = option("branch, tag or commit of a model from the hub (default: main)", None, "NAME")
    seed: int | None = option(
        "makes the seeds that requests without one are given repeatable (default: they are random)", None, "N"
    )
    lifeline: str | None = lifeline_option()


@dataclass(frozen=True, slots=True)
class TextConfig:
    """What is done otherwise than the model's makers had it."""

    chat_template: str | None = option("file with a Jinja chat template to use instead of the model's", None, "FILE")
    generation_config: Literal["auto", "none"] = option(
        "how to sample for requests that do not say; auto is as generation_config.json has it, none leaves that unread",
        "auto",
    )
    override_generation_config: str | None = option(
        'what goes before generation_config.json, such as {"temperature": 0.5}', None, "JSON"
    )
