"""What a scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What has happened since the start. All of them only go up."""

    steps: int = 0
    rows: int = 0
    wasted_rows: int = 0  # computed for a request that had ended or lost its slot meanwhile
    failed_steps: int = 0
    dropped_answers: int = 0  # of another session, or not the step whose turn it was
    preemptions: int = 0
    turned_away: int = 0  # requests that came while too many waited
    settled_tokens: int = 0
    prefill_tokens: int = 0  # computed of prompts, and again of requests that had lost their slot
    cached_tokens: int = 0  # that would have been, too, if others had not computed them
