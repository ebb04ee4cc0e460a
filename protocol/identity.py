"""Numbers that tell one life of a process from the next."""

from __future__ import annotations

import secrets


def new_session() -> int:
    """Return a random number in [1, 2**63): for sessions, incarnations and nonces."""
    return secrets.randbelow(2**63 - 1) + 1
