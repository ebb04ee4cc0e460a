"""`python -m tests.share_child`: a child that takes a while to start, and says how far it is."""

from __future__ import annotations

import sys

from protocol.lifeline import FLAG, Lifeline

if __name__ == "__main__":
    lifeline = Lifeline("child", sys.argv[sys.argv.index(FLAG) + 1])
    lifeline.progress("begins")
    lifeline.share(0.5, "half of it")
    lifeline.share(0.75, "more of it")
    lifeline.ready()
