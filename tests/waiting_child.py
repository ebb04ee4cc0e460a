"""`python -m tests.waiting_child`: a child that serves nobody; with --deaf it does not end when it is asked to."""

from __future__ import annotations

import signal
import sys
import time

from protocol.lifeline import FLAG, Lifeline

if __name__ == "__main__":
    deaf = "--deaf" in sys.argv
    signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda number, frame: sys.exit())
    Lifeline("child", sys.argv[sys.argv.index(FLAG) + 1]).ready()
    time.sleep(60.0)
