"""What every process that can be watched is told."""

from __future__ import annotations

from typing import Any

from protocol.options import option


def collector_option() -> Any:
    """Return the field for the collector's address."""
    return option("address of the timeline's collector (default: nothing is recorded)", None, "ADDRESS")


def name_option(role: str) -> Any:
    """Return the field for what the timeline calls a process of this role."""
    return option("what the timeline and its log call this process", role, "NAME")
