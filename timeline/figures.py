"""What a timeline says, in numbers. Names ending in `_ns` are nanoseconds, `share` is from 0 to 1, None is unknown."""

from __future__ import annotations

from dataclasses import dataclass

from timeline.device import StepId

WORST_GAPS = 5

STEP_KINDS = ("decode", "mixed", "prefill")


@dataclass(frozen=True, slots=True)
class Cause:
    """What an idle device waited for, for how long, and which share of the idle time that is.

    Until the next step was launched, that is what schedulers and worker did; after it, only what was copied in. Where
    no span accounts for it, `process` is empty and `span` is `ON_THE_WAY` or `NOT_STARTED`. Processes work at the same
    time, so shares may add up to more than 1.
    """

    process: str
    span: str
    ns: int
    share: float


@dataclass(frozen=True, slots=True)
class Gap:
    """One idle gap: when it began since the recording did, how long it was, and the (session, step) on either side.

    Where `after_no_work`, it began when work arrived, not when the step before had ended.
    """

    process: str
    at_ns: int
    ns: int
    before: StepId
    after: StepId
    after_no_work: bool
    causes: tuple[Cause, ...]  # longest first


@dataclass(frozen=True, slots=True)
class GapFigures:
    """All idle gaps of the steady state. What is longest in `causes` is what the device waited for most."""

    count: int
    after_no_work: int  # how many of them
    p50_ns: float | None
    p99_ns: float | None
    max_ns: int | None
    worst: tuple[Gap, ...]  # at most `WORST_GAPS`, longest first
    causes: tuple[Cause, ...]  # longest first


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Device time of one kind of step, from the start of the forward pass to the end of sampling.

    decode: every row carries on with one token; prefill: none does; mixed: some do.
    """

    kind: str
    count: int
    rows: int
    tokens: int
    total_ns: int
    p50_ns: float
    p99_ns: float


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Where a device's time went.

    run = busy + idle_of_run. The steady state is what lies between the start of its first step and the end of its last,
    less `no_work` (see `Device`): steady = busy + idle. `gain` is steady / busy: how many times as fast the same steps
    would be done if the device were never idle.
    """

    process: str
    device: str
    run_ns: int
    busy_ns: int
    idle_of_run_ns: int
    busy_share_of_run: float
    no_work_ns: int
    steady_ns: int
    idle_ns: int
    busy_share: float
    idle_share: float
    gain: float
    gaps: GapFigures
    steps: tuple[StepFigures, ...]


@dataclass(frozen=True, slots=True)
class SpanFigures:
    """All spans of one kind in one process."""

    span: str
    count: int
    total_ns: int
    p50_ns: float
    p99_ns: float


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Where a process's time went. `cpu` is all but waiting; `hidden` is the part of it during which a device computed.

    That device is the worker's own, or one that the scheduler plans for, or any if it is a frontend.
    """

    process: str
    role: str
    cpu_ns: int
    hidden_ns: int | None
    hidden_share: float | None
    spans: tuple[SpanFigures, ...]  # longest together first


@dataclass(frozen=True, slots=True)
class SettledFigures:
    """What came back. A wasted row is one whose request had ended by then.

    `rows` and `wasted` are those of settled steps whose plan was recorded, too.
    """

    tokens: int
    tokens_per_second: float | None  # of time in which a device was in its steady state
    rows: int
    wasted: int
    wasted_share: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """What a timeline says. The run is from the start of the first span to the end of the last.

    `together` is all devices as one: their times are added up. `problems` are sentences on what the figures lack.
    """

    name: str
    started: str
    run_ns: int
    steady_ns: int  # at least one device was in its steady state
    devices: tuple[DeviceFigures, ...]
    together: DeviceFigures | None
    processes: tuple[ProcessFigures, ...]
    settled: SettledFigures | None
    lost: int  # spans
    clock_error_ns: int
    complete: bool
    problems: tuple[str, ...]
