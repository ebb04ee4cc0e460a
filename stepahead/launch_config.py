"""What the launcher itself can be told."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from protocol.endpoints import DEFAULT_ADDRESS
from protocol.options import option

MOST_PROCESSES = 256
"""Of one kind, of which each takes hundreds of megabytes: more are a slip of the finger."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """What to start, and where clients find it."""

    zmq: str = option("address for ZeroMQ clients; --prompt needs none", DEFAULT_ADDRESS, "ADDRESS")
    prompt: str | None = option("answer this, streaming to standard output, and exit", None, "TEXT")
    first_prompt: str | None = option("answer this, streaming to standard output, then serve", None, "TEXT")
    max_tokens: int | None = option(
        "at most so many tokens of an answer to --prompt or --first-prompt (default: 512)", None, "N"
    )
    workers: int = option("GPU workers, each with a replica of the model", 1, "N")
    schedulers: int = option("schedulers, which share the workers out among them", 1, "N")
    frontends: int = option("frontends behind the one HTTP port and the one ZeroMQ address", 1, "N")
    start_timeout: float = option("seconds until everything must be ready", 600.0, "SECONDS")
    run_dir: str | None = option("where to make the directory for sockets (default: the system's)", None, "PATH")

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be meant."""
        if not 1 <= self.schedulers <= self.workers:
            raise ValueError(
                f"--workers {self.workers} and --schedulers {self.schedulers}: each scheduler needs a worker"
            )
        if self.frontends < 1:
            raise ValueError(f"--frontends must be at least 1, got {self.frontends}")
        for name in ("workers", "frontends"):
            if (number := getattr(self, name)) > MOST_PROCESSES:
                raise ValueError(f"--{name} must be at most {MOST_PROCESSES}, got {number}")
        if not 0 < self.start_timeout < inf:
            raise ValueError(f"--start-timeout must be more than 0 and finite, got {self.start_timeout}")
        if "" in (self.prompt, self.first_prompt):
            raise ValueError("the prompt is empty")
        if self.prompt is not None and self.first_prompt is not None:
            raise ValueError("give --prompt or --first-prompt, not both")
        if self.max_tokens is not None:
            if self.max_tokens < 1:
                raise ValueError(f"--max-tokens must be at least 1, got {self.max_tokens}")
            if self.prompt is None and self.first_prompt is None:
                raise ValueError("--max-tokens is for --prompt and --first-prompt; clients say it with each request")

    @property
    def needs_no_address(self) -> bool:
        """Whether nobody but this process will ask: then a server that runs already is in nobody's way."""
        return self.prompt is not None and self.zmq == DEFAULT_ADDRESS
