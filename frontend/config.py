"""What a frontend process can be told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from typing import Literal

from protocol.endpoints import DEFAULT_ADDRESS
from protocol.options import lifeline_option, option
from timeline.options import collector_option, name_option

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.:\[\]_-]+")
"""As browsers write it: in lower case, without a slash behind it."""


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
    timeline: str | None = collector_option()
    name: str = name_option("frontend")
    lifeline: str | None = lifeline_option()
    # Those of launch.py for frontends that share their addresses.
    zmq_listener: int | None = option("descriptor of a socket that listens at --bind", None, "FD", hidden=True)
    http_listener: int | None = option("descriptor of a socket that listens at --port", None, "FD", hidden=True)
    counts: str | None = option("file that such frontends count in", None, "PATH", hidden=True)
    place: int = option("which of these frontends this is", 0, "N", hidden=True)
    places: int = option("how many there are", 1, "N", hidden=True)


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

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be meant."""
        if self.chat_template == "":
            raise ValueError("--chat-template is empty")


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """How HTTP is served, and how serving ends."""

    http: bool = option("serve OpenAI's HTTP API, or only clients over ZeroMQ", True)
    host: str = option("host name or address that HTTP is served on", "127.0.0.1", "HOST")
    port: int = option("port that HTTP is served on", 8000, "PORT")
    api_key: str | None = option(
        "answer only HTTP requests that bring this key; /health, /ready and the live page, which asks for it, come "
        "without",
        None,
        "KEY",
    )
    allowed_origin: tuple[str, ...] = option(
        "let pages of this site ask over HTTP, as https://chat.example or * for all; give it once for each (default: "
        "browsers let none)",
        (),
        "ORIGIN",
    )
    max_body_mib: float = option("MiB that an HTTP request may have", 8.0, "MIB")
    log_requests: bool = option(
        "a line on standard error for each answer that has ended: whose, how, tokens and seconds; never what was said",
        False,
    )
    drain_timeout: float = option(
        "seconds that running requests get to finish after SIGTERM or Ctrl-C", 30.0, "SECONDS"
    )

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be meant."""
        if not 1 <= self.port < 2**16:
            raise ValueError(f"--port must be from 1 to {2**16 - 1}, got {self.port}; --no-http serves no HTTP")
        if not self.host:
            raise ValueError("--host is empty")
        if self.api_key is not None and not (self.api_key and self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("--api-key must be printable ASCII, and not empty")
        if self.api_key is not None and not self.http:
            raise ValueError("--api-key is for HTTP, which --no-http turns off")
        for origin in self.allowed_origin:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"--allowed-origin is what a browser says of a page: scheme, host and port alone, as in "
                    f"https://chat.example:8443, or *; got {origin!r}"
                )
        if not 0 < self.max_body_mib <= 1024:
            raise ValueError(f"--max-body-mib must be more than 0 and at most 1024, got {self.max_body_mib}")
        if not 0 <= self.drain_timeout < inf:
            raise ValueError(f"--drain-timeout must be finite and not negative, got {self.drain_timeout}")
