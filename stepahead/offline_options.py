"""From the keywords that LLM takes to what its parts are told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from frontend.config import ServeConfig, TextConfig
from gpu_worker.config import EngineConfig
from protocol.logs import LogConfig
from protocol.options import options_of
from scheduler_proc.config import SchedulingConfig
from stepahead.launch_config import LaunchConfig
from timeline.config import TimelineConfig

SERVERS_OWN = {field.name for config in (ServeConfig, LogConfig) for field in fields(config)} | {
    "zmq",
    "prompt",
    "first_prompt",
    "max_tokens",
    "max_waiting",
    "frontends",
}
"""launch.py's options about those whom a server serves, or who gather its log: here there is only this program."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What each part of a system is told."""

    launch: LaunchConfig
    serve: ServeConfig
    engine: EngineConfig
    scheduling: SchedulingConfig
    text: TextConfig
    timeline: TimelineConfig


def parts_of(options: Mapping[str, Any]) -> Parts:
    """Return what launch.py would make of `options`, with underscores in their names; a JSON object may be a dict.

    Raises `TypeError` for a name that it does not know or that is a server's own, `ValueError` for what can't be meant,
    in its words.
    """
    hint = "(python launch.py --help lists the options)"
    try:
        if theirs := [f"--{name.replace('_', '-')}" for name in options if name in SERVERS_OWN]:
            raise TypeError(f"only a server has {' and '.join(theirs)}: python launch.py starts one")
        written = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in options.items()}
        launch, engine, scheduling, text, timeline = options_of(
            written, LaunchConfig, EngineConfig, SchedulingConfig, TextConfig, TimelineConfig
        )
    except TypeError as error:
        raise TypeError(f"LLM: {error} {hint}") from None
    except ValueError as error:
        raise ValueError(f"LLM: {error} {hint}") from None
    # Whoever ends it has no use any more for what still runs.
    serve = ServeConfig(http=False, drain_timeout=0.0)
    return Parts(launch, serve, engine, scheduling, text, timeline)
