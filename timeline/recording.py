"""One recording: from the moment it was wanted to the moment its file is closed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from protocol.messages import Load, Spans
from timeline.events import about_process, counters_of, events_of, lost_spans, since
from timeline.member import Member
from timeline.trace_file import TraceFile


class Recording:
    """Writes what the members of a system did since `started`, until `problem` says why it can't any more."""

    def __init__(self, path: Path, most_bytes: int, started: int) -> None:
        """Make the file; `started` is in nanoseconds of the collector's clock. Raises `OSError`."""
        about = {"stepahead": 1, "started": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")}
        self.problem = ""
        self.spans = 0
        self.started = started
        self._about: dict[int, tuple[object, ...]] = {}  # what the file says of each member, by its number
        self._file = TraceFile(path, json.dumps(about, separators=(",", ":")).encode(), most_bytes)

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self._file.size

    def write(self, member: Member, news: Spans | Load) -> None:
        """Write what a member has told."""
        if self.problem:
            return
        origin = self.started - member.offset
        events = self._introduction(member)
        if isinstance(news, Load):
            events += counters_of(news, member.number, origin)
        else:
            self.spans += int(since(news, origin).sum())
            events += events_of(news, member.number, origin)
            if news.lost:
                events.append(lost_spans(member.number, news.lost))
        try:
            self._file.append(events)
        except OSError as error:
            self.problem = f"the recording ended early: {self.path}: {error.strerror}"
        else:
            if self._file.full:
                self.problem = f"the recording ended early: {self.path} has reached {self.size / 2**20:.0f} MiB"

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _introduction(self, member: Member) -> list[str]:
        """Return what the file does not say of a member yet."""
        me = member.joined
        about = (me.name, me.role, me.device, me.host, member.clock_error)
        if self._about.get(member.number) == about:
            return []
        self._about[member.number] = about
        return about_process(member.number, *about)
