"""Processes of one parent: started together, heard, and ended together."""

from __future__ import annotations

import contextlib
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from client.errors import StepaheadError
from protocol.lifeline import DRAINED, FAILED, PROGRESS, READY, SHARE, ChildPipes
from protocol.stop_signal import BROKEN
from stepahead.progress import Progress

GRACE_SECONDS = 2.5
"""Children that have not ended so long after SIGTERM are killed: with the seconds below, all is over within 5 s."""

ORDERLY_SECONDS = 2.0
"""How long children may take that are to end one after the other, all of them together."""

INSIST_SECONDS = 0.1
"""How often the signal is repeated: at the second, a frontend no longer waits for what runs."""

LONGEST_WAIT_SECONDS = 3600.0
"""How long is listened at a time: times that a user may set can be longer than the system knows."""


class StartError(StepaheadError):
    """Something could not be started, or has ended; the text is for the user."""

    def __init__(self, text: str, code: int = 1) -> None:
        """Remember what to tell, and the exit code: 2 where the user can put it right."""
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Child:
    """One process of ours."""

    name: str
    process: subprocess.Popen[bytes]
    pipes: ChildPipes
    vital: bool = True  # without it nothing works any more
    ready: bool = False
    answered: bool = False  # whether it has said anything since it was asked to end
    drained: bool = False
    failure: str = ""
    unread: bytes = b""

    def ask_to_end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send SIGTERM or `how`, and SIGCONT: one that was stopped would not hear of it."""
        self.answered = False
        self.process.send_signal(how)
        self.process.send_signal(signal.SIGCONT)

    def how_it_ended(self) -> str:
        """Return in words why it is gone; it must be."""
        if self.failure:
            return self.failure
        code = self.process.wait()
        return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"

    def ended(self, seconds: float) -> bool:
        """Wait for its end, for so long at most; return whether it came."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, seconds))
        return self.process.returncode is not None


@dataclass(slots=True)
class Family:
    """All children, in the order in which they are to end, and what they say. `stop` ends them in any case."""

    children: list[Child] = field(default_factory=list)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def start(
        self, name: str, module: str, arguments: Sequence[str], *, vital: bool = True, inherits: Sequence[int] = ()
    ) -> Child:
        """Start `python -m module`, in a session of its own so that a terminal's Ctrl-C comes to us alone.

        One that is not `vital` may be gone later; it must have been ready once. It `inherits` these descriptors.
        """
        pipes = ChildPipes()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", *module.split(), *arguments, *pipes.arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=(*pipes.pass_fds, *inherits),
                start_new_session=True,
            )
        except OSError as error:
            pipes.close()
            raise StartError(f"{name} can't be started: {error}") from None
        pipes.started()
        child = Child(name, process, pipes, vital)
        self.children.append(child)
        self.selector.register(pipes.status, selectors.EVENT_READ, child)
        return child

    def listen(self, seconds: float, tell: Progress) -> Child | None:
        """Hear what children say for at most `seconds`, or until one is gone that is needed: that one is returned."""
        for key, _ in self.selector.select(min(seconds, LONGEST_WAIT_SECONDS)):
            child = key.data
            if isinstance(child, Child) and not self._hear(child, tell):
                self.selector.unregister(key.fd)
                if child.vital or not child.ready:
                    return child
                tell(child.name, f"is gone: {child.how_it_ended()}; everything else goes on")
        return None

    def _hear(self, child: Child, tell: Progress) -> bool:
        data = child.pipes.read_status()
        child.answered = True
        *lines, child.unread = (child.unread + data).split(b"\n")
        for line in lines:
            what, _, text = line.decode(errors="replace").partition(" ")
            if what == PROGRESS:
                tell(child.name, text)
            elif what == SHARE:
                done, _, text = text.partition(" ")
                tell.share(child.name, float(done), text)
            elif what == READY:
                child.ready = True
                tell(child.name, "ready")
            elif what == DRAINED:
                child.drained = True
            elif what == FAILED:
                child.failure = text
        return bool(data)

    @property
    def ready(self) -> bool:
        """Whether all children serve."""
        return all(child.ready for child in self.children)

    def stop_in_order(self) -> None:
        """Ask one after the other to end; nothing is under way. Those that take too long are `stop`'s."""
        deadline = time.monotonic() + ORDERLY_SECONDS
        for child in self.children:
            child.ask_to_end()
            child.ended(deadline - time.monotonic())

    def stop(self, *, broken: bool = False) -> None:
        """End all children: ask, wait a little, insist. With `broken` they may tell others that one has died."""
        deadline = time.monotonic() + GRACE_SECONDS
        left = list(self.children)
        while left and time.monotonic() < deadline:
            for child in left:
                child.ask_to_end(BROKEN if broken else signal.SIGTERM)
            left[0].ended(INSIST_SECONDS)
            left = [child for child in left if not child.ended(0.0)]
        for child in self.children:
            child.process.kill()
            child.process.wait()
            child.pipes.close()
        self.selector.close()
