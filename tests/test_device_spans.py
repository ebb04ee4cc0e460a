"""What a device did, as the timeline has it: real moments, in the order in which streams work."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gpu_worker.device import Event
from gpu_worker.engine import Engine
from gpu_worker.step_events import DeviceSpans, StepEvents
from protocol.messages import SpanKind, Spans
from tests.core_loop import submit
from tests.real_loop import RealLoop, poisoned_engine
from tests.tiny_models import save, tiny_model
from timeline.recorder import NOTHING, Recorder, nanoseconds

ON_DEVICE = (SpanKind.COPY_IN, SpanKind.FORWARD, SpanKind.SAMPLE, SpanKind.COPY_OUT)
BEHIND_EACH_OTHER = ((SpanKind.COPY_IN,), (SpanKind.FORWARD, SpanKind.SAMPLE), (SpanKind.COPY_OUT,))
"""Kinds that share a stream."""


@pytest.fixture(
    scope="module",
    params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)],
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = save(tiny_model("grouped queries"), tmp_path_factory.mktemp("model"))
    made = poisoned_engine(path, device=request.param, max_num_seqs=8, kv_cache_blocks=200, max_model_len=256)
    yield made
    made.device.close()


def recorded(engine: Engine, credit: int = 2) -> tuple[RealLoop, Spans, tuple[int, int]]:
    """Serve some requests; return the loop, its spans, and when it began and ended."""
    recorder = Recorder()
    recorder.on = True
    began = nanoseconds()
    loop = RealLoop(engine, credit, recorder)
    engine.device.set_clock()
    for number in range(1, 6):
        loop.submit(submit(number, list(range(3, 3 + 9 * number)), 6, ignore_eos=True))
    loop.drain()
    spans = recorder.take(engine.device.clock_error)
    assert spans is not None
    return loop, spans, (began, nanoseconds())


def of(spans: Spans, *kinds: SpanKind) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    which = np.isin(spans.kind, kinds)
    order = np.argsort(spans.start[which], kind="stable")
    start, end, step = (column[which][order].astype(np.int64) for column in (spans.start, spans.end, spans.step))
    return start, end, step


def test_every_step_has_one_span_of_each_kind(engine: Engine) -> None:
    loop, spans, _ = recorded(engine)
    steps = [plan.step for plan in loop.plans]
    for kind in (SpanKind.STAGE, SpanKind.LAUNCH, *ON_DEVICE):
        assert of(spans, kind)[2].tolist() == steps, kind
    forward = spans.kind == SpanKind.FORWARD
    assert spans.rows[forward].tolist() == [len(plan.slot) for plan in loop.plans]
    assert spans.tokens[forward].tolist() == [int(plan.count.sum()) for plan in loop.plans]
    assert spans.decodes[forward].tolist() == [int((plan.flags & 1).sum()) for plan in loop.plans]
    assert (spans.session == loop.plans[0].session % 2**32).all()


def test_no_two_spans_of_a_stream_overlap(engine: Engine) -> None:
    _, spans, _ = recorded(engine)
    for kinds in BEHIND_EACH_OTHER:
        start, end, _ = of(spans, *kinds)
        assert (start[1:] >= end[:-1]).all(), kinds


def test_a_step_is_launched_copied_in_computed_sampled_and_copied_out(engine: Engine) -> None:
    _, spans, (began, ended) = recorded(engine)
    error = engine.device.clock_error
    launched, copied, computed, sampled, out = (of(spans, kind) for kind in (SpanKind.LAUNCH, *ON_DEVICE))
    assert (copied[0] >= launched[0] - error).all()
    assert (computed[0] >= copied[1] - error).all()
    assert (sampled[0] == computed[1]).all()
    assert (out[0] >= sampled[1] - error).all()
    assert launched[0].min() >= began
    assert out[1].max() <= ended + error
    assert error < 1_000_000


def test_device_spans_tell_the_device_time_that_the_worker_counts(engine: Engine) -> None:
    loop, spans, _ = recorded(engine)
    start, _, _ = of(spans, SpanKind.FORWARD)
    _, end, _ = of(spans, SpanKind.SAMPLE)
    slack = 1e-9 * (engine.device.clock_error + 1000) * len(start)
    assert (end - start).sum() / 1e9 == pytest.approx(loop.pipeline.busy_seconds, abs=slack)


def test_a_step_without_samples_has_no_sampling_and_one_that_fails_no_device_spans(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    recorder.on = True
    loop = RealLoop(engine, 1, recorder)
    monkeypatch.setattr(engine.runner, "run", lambda *_: 1 / 0)
    loop.submit(submit(1, [3, 4, 5], 3, ignore_eos=True))
    loop.plan()
    loop.settle()
    spans = recorder.take()
    assert spans is not None
    assert set(spans.kind.tolist()) == {SpanKind.STAGE, SpanKind.LAUNCH}


def test_off_nothing_is_recorded(engine: Engine) -> None:
    recorder = Recorder()
    loop = RealLoop(engine, 2, recorder)
    loop.submit(submit(1, [3, 4, 5], 3, ignore_eos=True))
    loop.drain()
    assert recorder.take() is None


def test_switched_on_in_between_whole_steps_are_recorded(engine: Engine) -> None:
    recorder = Recorder()
    loop = RealLoop(engine, 2, recorder)
    loop.submit(submit(1, [3, 4, 5], 30, ignore_eos=True))
    for _ in range(5):
        loop.plan()
        loop.settle()
    recorder.on = True
    engine.device.set_clock()
    first = loop.plans[-1].step + 1
    loop.drain()
    spans = recorder.take()
    assert spans is not None
    device = np.isin(spans.kind, ON_DEVICE)
    assert spans.step[device].min() == first
    for kind in ON_DEVICE:
        assert of(spans, kind)[2].tolist() == list(range(first, loop.plans[-1].step + 1))


class StubEvent:
    """A moment that somebody made up; None before clocks were compared."""

    def __init__(self, moment: int | None) -> None:
        self.moment = moment

    def done(self) -> bool:
        return True

    def seconds_since(self, _earlier: Event) -> float:
        return 0.0

    def when(self) -> int | None:
        return self.moment


def made(*steps: tuple[int | None, ...]) -> list[tuple[SpanKind, int, int]]:
    """Return the spans of steps, of whose copies and computing these are the moments."""
    recorder = Recorder()
    recorder.on = True
    device = DeviceSpans(recorder)
    for step in steps:
        copy_in, copied_in, began, sampling, computed, copy_out, finished = map(StubEvent, step)
        events = StepEvents(NOTHING, copy_in, copied_in, sampling, copy_out)
        device.add(events, began, computed, finished)
    spans = recorder.take()
    if spans is None:
        return []
    return [
        (SpanKind(k), s, e) for k, s, e in zip(*(c.tolist() for c in (spans.kind, spans.start, spans.end)), strict=True)
    ]


def test_a_clock_that_is_set_back_lets_no_span_begin_before_the_one_ahead_of_it_has_ended() -> None:
    first, second = (10, 20, 20, 30, 40, 40, 50), (15, 18, 35, 38, 39, 45, 60)
    assert made(first, second)[4:] == [
        (SpanKind.COPY_IN, 20, 20),
        (SpanKind.FORWARD, 40, 40),
        (SpanKind.SAMPLE, 40, 40),
        (SpanKind.COPY_OUT, 50, 60),
    ]


def test_what_no_clock_dates_is_left_out() -> None:
    assert made((None,) * 7) == []


def test_a_step_queued_behind_one_that_fails_has_no_device_spans(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    recorder.on = True
    loop = RealLoop(engine, 2, recorder)
    monkeypatch.setattr(engine.runner, "run", lambda *_: 1 / 0)
    loop.submit(submit(1, [3, 4, 5], 3, ignore_eos=True))
    loop.plan()
    loop.plan()
    loop.settle()
    loop.settle()
    spans = recorder.take()
    assert spans is not None
    assert len(loop.plans) == 2
    assert not np.isin(spans.kind, ON_DEVICE).any()
