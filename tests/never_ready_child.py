"""`python -m tests.never_ready_child`: a child that is busy with its start for ever."""

from __future__ import annotations

import sys
import time

from protocol.lifeline import FLAG, Lifeline

if __name__ == "__main__":
    Lifeline("child", sys.argv[sys.argv.index(FLAG) + 1]).progress("never ready")
    time.sleep(60.0)
