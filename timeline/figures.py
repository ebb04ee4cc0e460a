"""What a timeline says, in numbers. Names ending in `_ns` are nanoseconds, `share` is from 0 to 1, None is unknown."""

from __future__ import annotations

from dataclasses import dataclass

from timeline.device import StepId

WORST_GAPS = 5

STEP_KINDS = DECODE, MIXED, PREFILL = ("decode", "mixed", "prefill")


@dataclass(frozen=True, slots=True)
class Cause:
    """What an idle device waited for, for how long, and which share of the idle time that is.

    `Device.waits` says what that is at each moment: one thing only, so shares add up to 1. Where no span accounts for
    it, `process` is empty and `span` is `ON_THE_WAY` or `NOT_STARTED`.
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

    decode: every row carries on with one token; prefill: none does; mixed: some do. Of all rows, `decodes` are such.
    """

    kind: str
    count: int
    rows: int
    tokens: int
    decodes: int
    total_ns: int
    p50_ns: float
    p99_ns: float
    rows_p50: int  # of a step
    rows_p99: int
    tokens_p50: int
    tokens_p99: int


@dataclass(frozen=True, slots=True)
class PartFigures:
    """One kind of a device's spans, and its share of the active time: forward and sample make up all of it.

    Copies are beside the active time, or in it: they have a lane of their own.
    """

    span: str
    count: int
    total_ns: int
    share: float


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
    parts: tuple[PartFigures, ...]  # forward, sample, copy in, copy out, as far as there are any
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
    """Where a process's time went. `host` is all but waiting; `hidden` the part of it during which a device computed.

    Host time passes on the clock: it includes waits for a core of the CPU. The device is the worker's own, or one that
    the scheduler plans for, or any if it is a frontend.
    """

    process: str
    role: str
    host_ns: int
    hidden_ns: int | None
    hidden_share: float | None
    spans: tuple[SpanFigures, ...]  # longest together first


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What one scheduler had to do, by its counters: the mean over time, and the most."""

    process: str
    running_mean: float  # requests
    running_max: int
    waiting_mean: float
    waiting_max: int
    blocks_share_mean: float | None  # of its KV blocks, those in use
    blocks_share_max: float | None


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

    Devices and processes are in the order of their names. `together` is all devices as one: their times are added up,
    so they are device time, of which more passes than on the clock. `problems` are sentences on what the figures lack.
    """

    name: str
    started: str
    setup: tuple[str, ...]  # how its processes were set up, in words
    from_ns: int | None  # what was asked for, if only a part was
    to_ns: int | None
    run_ns: int
    steady_ns: int  # at least one device was in its steady state
    devices: tuple[DeviceFigures, ...]
    together: DeviceFigures | None
    processes: tuple[ProcessFigures, ...]
    settled: SettledFigures | None
    load: tuple[LoadFigures, ...]
    lost: int  # spans
    clock_error_ns: int
    complete: bool
    problems: tuple[str, ...]
