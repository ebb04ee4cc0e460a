"""The step pipeline: launches plans as they come, gives their answers in order. Its state is the batches in flight.

    plan ─► stage ─► copy in ─► carry-over, forward, sample ─► copy out ─► answer
            host     copy_in    compute                        copy_out    host

With k plans in flight there are k staging buffers and k output buffers, so nothing of step N+1 is written where step N
still reads; and block tables, KV, last tokens and settings are touched by the compute stream alone, in plan order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.adjusted_rows import AdjustedRows
from gpu_worker.device import Device, Event
from gpu_worker.logprobs import score_size, unlisted
from gpu_worker.runner import LISTED, ModelRunner, StepOutput
from gpu_worker.sampler import unpacked
from gpu_worker.staging import StagingBuffer
from gpu_worker.step_events import DeviceSpans, StepEvents
from protocol.messages import Failed, Plan, Result, SpanKind
from timeline.recorder import Recorder, nanoseconds

_log = logging.getLogger("stepahead.worker")


@dataclass(frozen=True, slots=True)
class Buffers:
    """All memory that one plan in flight has for itself."""

    staging: StagingBuffer
    output: StepOutput
    sampled: torch.Tensor  # on the host
    listed_token: torch.Tensor
    logprob: torch.Tensor
    scores: torch.Tensor


@dataclass(slots=True)
class Batch:
    """One plan in flight."""

    plan: Plan
    buffers: Buffers
    samples: int
    listed: NDArray[np.uint8] | None  # how many log probabilities each sample has
    scored: NDArray[np.uint8] | None  # and each token that is scored
    error: BaseException | None = None
    skipped: bool = False  # it was queued behind a step that failed
    began: Event | None = None
    computed: Event | None = None
    finished: Event | None = None
    events: StepEvents | None = None  # if the timeline records


class StepPipeline:
    """Takes plans by `launch`, which returns at once, and gives answers by `collect`, oldest first."""

    def __init__(
        self,
        device: Device,
        runner: ModelRunner,
        plans_in_flight: int,
        max_tokens: int,
        slots: int,
        blocks: int,
        notes: int,
        recorder: Recorder,
    ) -> None:
        """Make buffers for `plans_in_flight` plans of at most `max_tokens` tokens over `slots` slots and `blocks`.

        A plan has `notes` notes at most.

        `recorder` gets the spans of this thread, and of the device as they are collected.
        """
        self._device = device
        self._recorder = recorder
        self._device_spans = DeviceSpans(recorder)
        self._runner = runner
        rows, listed = AdjustedRows(slots), np.zeros(slots, np.uint8)
        self._free = [
            Buffers(
                staging=StagingBuffer(device, max_tokens, slots, blocks, notes, rows, listed, runner.paged),
                output=runner.new_output(),
                sampled=device.host_buffer(slots, torch.int64),
                listed_token=device.host_buffer(slots * LISTED, torch.int64),
                logprob=device.host_buffer(slots * LISTED, torch.float32),
                scores=device.host_buffer(max_tokens * score_size(LISTED), torch.int32),
            )
            for _ in range(plans_in_flight)
        ]
        self._in_flight: deque[Batch] = deque()
        self.busy_seconds = 0.0  # how long the device has computed, for the plans that were collected
        self._failed_step = 0  # of the compute stream alone, like all that lasts

    def __len__(self) -> int:
        """How many plans are in flight."""
        return len(self._in_flight)

    @property
    def room(self) -> bool:
        """Whether another plan may be launched."""
        return bool(self._free)

    def launch(self, plan: Plan) -> None:
        """Put a plan behind those in flight; there must be room."""
        device, recorder = self._device, self._recorder
        about = recorder.about(plan)
        began = nanoseconds()
        buffers = self._free[-1]
        host, columns = buffers.staging.stage(plan)
        self._free.pop()
        staged = recorder.add(SpanKind.STAGE, began, about=about)
        samples = len(host.sample_slot)
        batch = Batch(plan, buffers, samples, host.listed, host.scored)
        entries = 0 if host.listed is None else np.count_nonzero(host.listed) * int(host.listed.max())
        scores = 0 if host.scored is None else len(host.scored) * score_size(int(host.scored.max()))
        events = batch.events = StepEvents(about) if recorder.on else None

        def before_sampling() -> None:
            if events is not None and samples:
                events.sampling = device.compute.mark()

        def compute() -> None:
            # Only here, where steps run one after the other, is it decided who has failed and who comes behind that.
            if plan.settled < self._failed_step:
                # It was planned in ignorance of a failure: it builds on tokens that were never sampled.
                batch.skipped = True
                return
            if batch.error is None:
                _guarded(batch, lambda: self._runner.run(plan, host, columns, buffers.output, before_sampling))()
            if batch.error is not None:
                self._failed_step = plan.step

        def copy_in() -> None:
            if events is not None:
                events.copy_in = device.copy_in.mark()
            buffers.staging.copy()

        def copy_out() -> None:
            if events is not None:
                events.copy_out = device.copy_out.mark()
            buffers.sampled[:samples].copy_(buffers.output.sampled[:samples], non_blocking=True)
            if entries:
                buffers.listed_token[:entries].copy_(buffers.output.listed_token[:entries], non_blocking=True)
                buffers.logprob[:entries].copy_(buffers.output.logprob[:entries], non_blocking=True)
            if scores:
                buffers.scores[:scores].copy_(buffers.output.scores[:scores], non_blocking=True)

        recorded = events is not None
        device.copy_in.run(_guarded(batch, copy_in))
        copied_in = device.copy_in.record(timed=recorded)
        device.compute.wait(copied_in)
        batch.began = device.compute.record(timed=True)  # behind all waits: from here on the device is busy
        device.compute.run(compute)
        batch.computed = device.compute.record(timed=True)
        device.copy_out.wait(batch.computed)
        if events is not None:
            events.copied_in = copied_in
        device.copy_out.run(_guarded(batch, copy_out))
        batch.finished = device.copy_out.record(timed=recorded)
        self._in_flight.append(batch)
        recorder.add(SpanKind.LAUNCH, staged, about=about)

    def ready(self) -> bool:
        """Whether the oldest plan's answer can be collected."""
        if not self._in_flight:
            return False
        finished = self._in_flight[0].finished
        return finished is not None and finished.done()

    def collect(self) -> Result | Failed:
        """Return the answer to the oldest plan, which must be ready; its buffers are free again."""
        batch = self._in_flight.popleft()
        plan, buffers = batch.plan, batch.buffers
        self._free.append(buffers)
        if batch.began is not None and batch.computed is not None:
            self.busy_seconds += batch.computed.seconds_since(batch.began)
            ran = not batch.skipped and batch.error is None
            if ran and batch.events is not None and batch.finished is not None:
                self._device_spans.add(batch.events, batch.began, batch.computed, batch.finished)
        if batch.error is not None:
            _log.error("step %d failed", plan.step, exc_info=batch.error)
            return Failed(plan.session, plan.step, True, f"{type(batch.error).__name__}: {batch.error}")
        if batch.skipped:
            return Failed(plan.session, plan.step, False, "queued behind a failed step")
        listed_token, logprob = _listed(batch)
        scored_token, scored_logprob, rank = _scored(batch)
        token, status = unpacked(buffers.sampled.numpy()[: batch.samples])
        return Result(
            session=plan.session,
            step=plan.step,
            token=token,
            status=status,
            listed=batch.listed,
            listed_token=listed_token,
            logprob=logprob,
            scored=batch.scored,
            scored_token=scored_token,
            scored_logprob=scored_logprob,
            scored_rank=rank,
        )


def _listed(batch: Batch) -> tuple[NDArray[np.uint32], NDArray[np.float32]] | tuple[None, None]:
    """Return the log probabilities of a batch's samples, as many as each wants, row after row."""
    if batch.listed is None:
        return None, None
    wanted = batch.listed[batch.listed > 0]
    width = int(wanted.max())
    within = np.arange(width) < wanted[:, None]
    token = batch.buffers.listed_token[: within.size].numpy().reshape(within.shape)
    logprob = batch.buffers.logprob[: within.size].numpy().reshape(within.shape)
    return token[within].astype(np.uint32), logprob[within]


def _scored(
    batch: Batch,
) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.uint32]] | tuple[None, None, None]:
    """Return what a batch says of prompts: tokens, log probabilities and ranks."""
    if batch.scored is None:
        return None, None, None
    size = len(batch.scored) * score_size(int(batch.scored.max()))
    return unlisted(batch.buffers.scores.numpy()[:size], batch.scored)


def _guarded(batch: Batch, work: Callable[[], None]) -> Callable[[], None]:
    """Return `work` so that what it raises becomes the batch's error, and a batch in error does no more work.

    Tokens that can't be copied out fail their own step only: what was queued behind it builds on the device's copy, and
    the scheduler drops it with the epochs of the failed step.
    """

    def run() -> None:
        if batch.error is None and not batch.skipped:
            try:
                work()
            except Exception as error:
                batch.error = error

    return run
