"""transformers' continuous batching in a process of its own, with and without its overlap, step by step.

`python -m bench.continuous_peer MODEL DTYPE DEVICE COMPILE_LEVEL MAX_BATCH_TOKENS` makes the model with random weights
and answers lines of JSON on standard input: {"mode", "encoding", "prompts", "output_lengths"} with {"first",
"last", "start", "end"}, in seconds, or with {"error"}.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from bench.contestant import BenchmarkError
from bench.step_times import StepTimes
from bench.thin import Answered
from bench.workload import Workload

SYNC, ASYNC = ("sync", "async")
PAGE_SIZE = 256
"""Tokens in a block of its cache, as it is unless somebody changes it."""

LONGEST_RUN_SECONDS = 3600.0


def modes_on(device: str) -> tuple[str, ...]:
    """Return the modes that there are; async, the last one, needs a GPU."""
    return (SYNC, ASYNC) if device == "cuda" else (SYNC,)


class ContinuousPeer:
    """The process, from construction to `close`; it has one model for both modes, and a cache for a run."""

    def __init__(self, model: Path, dtype: str, device: str, compile_level: int, max_batch_tokens: int) -> None:
        """Start it; it loads while others do. `model` is a folder with config.json: raises `BenchmarkError`."""
        if not model.is_dir():
            raise BenchmarkError(f"{model}: transformers needs a folder with config.json, not a file")
        options = [str(model), dtype, device, str(compile_level), str(max_batch_tokens)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.continuous_peer", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C is for the benchmark to answer
        )

    def run(self, mode: str, workload: Workload, *, encoding: bool = False) -> tuple[Answered, StepTimes]:
        """Have it do a workload in a mode; raises `BenchmarkError` if an answer has the wrong length.

        With `encoding`, a thread of the process makes JSON of every token, as a server would that streams them.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        work = {"prompts": workload.prompts, "output_lengths": workload.output_lengths}
        ask = {"mode": mode, "encoding": encoding, **work}
        try:
            self._process.stdin.write(json.dumps(ask) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise BenchmarkError(f"transformers: the process has ended, exit code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise BenchmarkError(f"transformers, {mode}: {answer['error']}")
        answered = Answered(answer["first"], answer["last"], workload.output_tokens)
        return answered, StepTimes(np.array(answer["start"]), np.array(answer["end"]))

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.terminate()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Batcher:
    """The model, and how transformers is to batch."""

    def __init__(self, path: Path, dtype: str, device: str, compile_level: int, max_batch_tokens: int) -> None:
        """Make the model on `device` with random weights."""
        import torch
        import transformers
        from transformers.utils.import_utils import is_flash_attn_2_available

        config = transformers.AutoConfig.from_pretrained(path)
        auto: Any = transformers.AutoModelForCausalLM
        with torch.device(device):
            self._model = auto.from_config(config, dtype=getattr(torch, dtype)).eval()
        self._cuda = device == "cuda"
        self._compile_level, self._max_batch_tokens = compile_level, max_batch_tokens
        if self._cuda and not is_flash_attn_2_available():
            from bench.flash_stand_in import kernels, put_in  # Triton comes with torch for CUDA only

            put_in(self._model, *kernels(config, torch.device(device), max_batch_tokens, PAGE_SIZE))

    def run(self, mode: str, encoding: bool, prompts: list[list[int]], lengths: list[int]) -> dict[str, Any]:
        """Do requests that are all there at the beginning."""
        import transformers
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
        from transformers.generation.continuous_batching.utils import WorkloadHints

        longest = max(map(len, prompts)) + max(lengths)
        make: Any = transformers.GenerationConfig
        settings = make(max_new_tokens=max(lengths), do_sample=False, eos_token_id=-1, pad_token_id=0)
        batching = ContinuousBatchingConfig(
            # Blocks for everything at once: it never has to wait for memory. And if it were to choose one of these two,
            # it would fill the memory with it.
            num_blocks=len(prompts) * (-(-longest // PAGE_SIZE) + 1),
            max_batch_tokens=self._max_batch_tokens,
            use_cuda_graph=self._cuda,
            use_async_batching=mode == ASYNC,
            default_compile_level=self._compile_level,
        )
        hints = WorkloadHints(max(map(len, prompts)), max(lengths), len(prompts))
        with (
            self._model.continuous_batching_context_manager(
                generation_config=settings, continuous_batching_config=batching, workload_hints=hints
            ) as manager,
            encoder(len(prompts) if encoding else 0) as computed,
            watched(self._cuda, computed) as marks,  # inside: its warm-up is over
        ):
            wanted = {
                manager.add_request(prompt, max_new_tokens=length, record_timestamps=True): length
                for prompt, length in zip(prompts, lengths, strict=True)
            }
            first, last = _moments(manager, wanted)
        start, end = _seconds(marks) if self._cuda else list(zip(*marks, strict=True))
        return {"first": first, "last": last, "start": start, "end": end}


def _moments(manager: Any, wanted: dict[str, int]) -> tuple[float, float]:
    """Wait for all requests of these lengths; return when the first token was there, and when the last one."""
    first, last = [], []
    deadline = time.monotonic() + LONGEST_RUN_SECONDS
    while wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"continuous batching has not ended within {LONGEST_RUN_SECONDS:g} s")
        output = manager.get_result(timeout=1)
        if output is None:
            if not manager.is_running():
                raise RuntimeError("continuous batching ended by itself")
        elif output.is_finished() or output.error:
            length = wanted.pop(output.request_id)
            if len(output.generated_tokens) != length:
                made = f"{len(output.generated_tokens)} tokens came, {length} were asked for"
                raise RuntimeError(f"continuous batching: {made} {output.error or ''}")
            first.append(output.timestamps[0])
            last.append(output.timestamps[-1])
    return min(first), max(last)


@contextmanager
def encoder(chunks: int) -> Iterator[Callable[[], None]]:
    """Yield what is to be called after each batch: a thread then makes JSON of so many chunks of streamed answers."""
    batches: SimpleQueue[bool] = SimpleQueue()
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "model"}
    choice = {"index": 0, "delta": {"content": " word"}, "finish_reason": None}

    def encode() -> None:
        while batches.get():
            for _ in range(chunks):
                json.dumps({**chunk, "choices": [choice]})

    thread = threading.Thread(target=encode, daemon=True)
    thread.start()
    try:
        yield lambda: batches.put(True)
    finally:
        batches.put(False)
        thread.join()


@contextmanager
def watched(cuda: bool, computed: Callable[[], None]) -> Iterator[list[tuple[Any, Any]]]:
    """Yield a list that gets two marks for each batch, as it is computed: CUDA events, or moments on a CPU.

    `computed` is called after each, as soon as it was launched.
    """
    import torch
    from transformers.generation.continuous_batching.model_runner import ModelRunner

    marks: list[tuple[Any, Any]] = []
    runner: Any = ModelRunner
    compute = runner.compute_batch

    def mark(stream: Any) -> Any:
        if not cuda:
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream() if stream is None else stream)
        return event

    def compute_batch(self: Any, *arguments: Any, **named: Any) -> Any:
        stream = self.inputs_and_outputs.compute_stream
        began = mark(stream)
        result = compute(self, *arguments, **named)
        marks.append((began, mark(stream)))
        computed()
        return result

    runner.compute_batch = compute_batch
    try:
        yield marks
    finally:
        runner.compute_batch = compute


def _seconds(marks: list[tuple[Any, Any]]) -> tuple[list[float], list[float]]:
    """Return the moments of CUDA events since the first one.

    The time between two is told in float32: only short ones are asked for.
    """
    import torch

    torch.cuda.synchronize()
    events = [event for pair in marks for event in pair]
    between = [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]
    moments = np.concatenate(([0.0], np.cumsum(between))).tolist()
    return moments[0::2], moments[1::2]


def main() -> None:
    """Make the model, then do what the lines on standard input say until there are none."""
    import transformers

    warnings.simplefilter("ignore")
    quiet: Any = transformers.utils.logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    path, dtype, device, compile_level, max_batch_tokens = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr
    try:
        batcher = Batcher(Path(path), dtype, device, int(compile_level), int(max_batch_tokens))
    except Exception as error:  # too little memory, most of all, or a model that it does not know
        sys.exit(f"transformers: {type(error).__name__}: {error}")
    for line in sys.stdin:
        ask = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = batcher.run(ask["mode"], ask["encoding"], ask["prompts"], ask["output_lengths"])
        except Exception as error:  # what a version or a device can't do is for the benchmark to tell
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
