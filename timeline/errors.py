"""What goes wrong with a timeline."""

from __future__ import annotations


class TraceError(Exception):
    """A file is no timeline, or can't be read; the text is one line that says which and why."""
