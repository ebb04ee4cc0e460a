"""What the timeline's collector can be told."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import inf

from protocol.options import lifeline_option, option
from timeline.errors import TraceError

ENDINGS = (".json", ".json.gz")
"""Of the names of recordings."""

MOST_NAME_BYTES = 200
"""A file system takes 255."""


def wrong_name(name: str) -> str:
    """Return why a recording that is started while serving can't have a name; nothing if it can."""
    if "/" in name or "\\" in name or not name.isprintable() or name.startswith("."):
        return "must be a plain name: no folders, no control characters, no dot at the beginning"
    size = len(name.encode())
    if size > MOST_NAME_BYTES:
        return f"the name has {size} bytes, at most {MOST_NAME_BYTES} are allowed"
    if not name.endswith(ENDINGS):
        return f"the name must end with {' or '.join(ENDINGS)}"
    return ""


@dataclass(frozen=True, slots=True)
class TimelineConfig:
    """What is recorded, and where to."""

    timeline: str | None = option("record from start to end into this new .json or .json.gz file", None, "FILE")
    timeline_dir: str = option("where recordings are put that are started while serving", "timelines", "DIRECTORY")
    timeline_max_mib: float = option("MiB at which a recording ends by itself", 1024.0, "MIB")

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be meant."""
        if self.timeline is not None and not self.timeline.endswith(ENDINGS):
            raise ValueError(f"--timeline must end in .json or .json.gz, got {self.timeline}")
        if not 0 < self.timeline_max_mib < inf:
            raise ValueError(f"--timeline-max-mib must be more than 0 and finite, got {self.timeline_max_mib}")

    def check(self) -> None:
        """Raise `TraceError` if the file can't be made: before anything starts that takes long.

        Whatever is there already is left alone, as by a recording that is started while serving.
        """
        if self.timeline is not None:
            try:
                os.close(os.open(self.timeline, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                os.unlink(self.timeline)
            except FileExistsError:
                raise TraceError(f"--timeline {self.timeline} is there already: name a new file") from None
            except OSError as error:
                raise TraceError(f"--timeline {self.timeline}: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class CollectorConfig:
    """Where the collector is found."""

    bind: str = option("address for the processes that record: tcp://127.0.0.1:PORT or ipc:///PATH", metavar="ADDRESS")
    lifeline: str | None = lifeline_option()
