"""When a step was copied in, computed, sampled and copied out: the device's spans."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_worker.device import Event
from protocol.messages import SpanKind
from timeline.recorder import About, Recorder


@dataclass(slots=True)
class StepEvents:
    """Timed events of a step that is recorded; those that are missing did not come about."""

    about: About
    copy_in: Event | None = None
    copied_in: Event | None = None
    sampling: Event | None = None
    copy_out: Event | None = None


class DeviceSpans:
    """Makes spans of events, which must be done.

    Moments are dated one by one, and a clock that was set anew in between may shift them by its error. A stream's own
    order is beyond doubt: no span begins before the one ahead of it on its lane has ended.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Give spans to `recorder`."""
        self._recorder = recorder
        self._ends = dict.fromkeys(SpanKind, 0)

    def add(self, events: StepEvents, began: Event, computed: Event, finished: Event) -> None:
        """Record the spans of a step that ran."""
        sampling = events.sampling or computed
        self._span(SpanKind.COPY_IN, SpanKind.COPY_IN, events.copy_in, events.copied_in, events.about)
        self._span(SpanKind.FORWARD, SpanKind.FORWARD, began, sampling, events.about)
        if events.sampling is not None:
            self._span(SpanKind.SAMPLE, SpanKind.FORWARD, sampling, computed, events.about)
        self._span(SpanKind.COPY_OUT, SpanKind.COPY_OUT, events.copy_out, finished, events.about)

    def _span(self, kind: SpanKind, lane: SpanKind, start: Event | None, end: Event | None, about: About) -> None:
        if start is None or end is None:
            return
        began, ended = start.when(), end.when()
        if began is not None and ended is not None:
            began = max(began, self._ends[lane])
            ended = self._ends[lane] = max(began, ended)
            self._recorder.add(kind, began, ended, about)
