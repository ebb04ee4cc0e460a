"""A whole system of this program's own: started, watched and ended on one thread."""

from __future__ import annotations

import os
import selectors
import threading
from concurrent.futures import Future
from pathlib import Path

from stepahead.end_request import EndRequest
from stepahead.family import Family, StartError
from stepahead.offline_options import Parts
from stepahead.preflight import directory_for_sockets
from stepahead.progress import Progress
from stepahead.start import start_all, wait_until_ready, watch


class System:
    """Frontend, scheduler and worker as launch.py starts them, without HTTP, at an address that nobody else knows.

        starting ── all are ready ──► serving ── `close`, or a process dies ──► over

    Its thread owns the processes. `over` is done when it serves no more, and only then do the others end: so nobody
    takes their farewells for answers. `failure` then says which one died, if one did. All of them end, too, when this
    program does, however it does (protocol/lifeline.py).
    """

    def __init__(self, parts: Parts, tell: Progress) -> None:
        """Start it and wait until it serves; `tell` hears how that goes. Raises `ProtocolError` or `StartError`."""
        self._parts = parts
        self._tell = tell
        self._process = os.getpid()
        self._run = directory_for_sockets(parts.launch)
        self.address = self._run.address("clients")
        self.failure = ""
        self.over: Future[None] = Future()
        self._ready: Future[None] = Future()
        self._end = EndRequest()
        self._thread = threading.Thread(target=self._keep, name="stepahead system", daemon=True)
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:  # Ctrl-C comes here as well
            self.close()
            raise

    def close(self) -> None:
        """End every process and wait for it, 5 s at most; a forked child, whose they are not, leaves them alone."""
        if os.getpid() != self._process:
            return
        self._end.set()
        if threading.current_thread() is not self._thread:  # the garbage collector may call us anywhere
            self._thread.join()

    def _keep(self) -> None:
        family = Family()
        family.selector.register(self._end, selectors.EVENT_READ)
        try:
            self._serve(family)
        except BaseException as error:
            if self._ready.done():
                self.failure = str(error) or repr(error)
            else:
                self._ready.set_exception(error)
        finally:
            self.over.set_result(None)
            self._stop(family)

    def _serve(self, family: Family) -> None:
        parts = self._parts
        start_all(
            family,
            parts.launch,
            parts.serve,
            parts.engine,
            parts.scheduling,
            parts.text,
            parts.timeline,
            self._run,
            self.address,
        )
        if not wait_until_ready(family, self._end, parts.launch.start_timeout, self._tell):
            raise StartError("it was closed while it started")
        self._tell.end()
        self._ready.set_result(None)
        watch(family, self._end, self._tell)

    def _stop(self, family: Family) -> None:
        """End the processes; where all went well, in an order in which a recording gets all that there is."""
        served = self._ready.exception() is None
        if served and not self.failure:
            for child in family.children:
                if child.name.startswith("frontend"):
                    child.ask_to_end()
            family.stop_in_order()
        family.stop(broken=bool(self.failure))
        self._end.close()
        self._run.remove()
        recording = self._parts.timeline.timeline
        if recording is not None and not served:
            Path(recording).unlink(missing_ok=True)  # of a start that failed there is nothing to see
