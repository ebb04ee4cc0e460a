"""transformers, in a process of its own: its static batches and its continuous batching, whichever is faster.

`python -m bench.transformers_peer MODEL DTYPE DEVICE` loads a model and answers lines of JSON on standard input:
{"mode", "prompts", "output_lengths"} with {"seconds", "output_tokens"}, or with {"error"}.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from bench.contestant import BenchmarkError, Run
from bench.workload import Workload
from stepahead.progress import Progress

STATIC_BATCHES = (32, 16, 8)
CONTINUOUS = "continuous batching"
ANSWER_SECONDS = 600


def mode_names(requests: int) -> list[str]:
    """Return the ways in which transformers can do so many requests."""
    sizes = sorted({requests, *(size for size in STATIC_BATCHES if size < requests)}, reverse=True)
    return [*(f"generate, batches of {size}" for size in sizes), CONTINUOUS]


class TransformersPeer:
    """A transformers process that waits for workloads. `best` finds the mode that it is to be measured in."""

    def __init__(self, model: Path, dtype: str, device: str) -> None:
        """Start it; it loads while others do."""
        self.mode = CONTINUOUS
        command = [sys.executable, "-m", "bench.transformers_peer", str(model), dtype, device]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C is for the benchmark to answer
        )

    @property
    def name(self) -> str:
        """The mode is part of it."""
        return f"transformers ({self.mode})"

    def best(self, warm_up: Workload, workload: Workload, tell: Progress) -> dict[str, float]:
        """Run a workload in every mode, keep the fastest; return output tokens a second by mode, 0 where it fails."""
        found = {}
        for self.mode in mode_names(len(workload.prompts)):
            tell(self.name, "trying")
            try:
                self.run(warm_up)
                found[self.mode] = self.run(workload).tokens_per_second
                tell(self.name, f"{found[self.mode]:.1f} tok/s")
            except BenchmarkError as error:
                tell("failed", str(error))
                found[self.mode] = 0.0
        self.mode = max(found, key=lambda mode: found[mode])
        return found

    def run(self, workload: Workload) -> Run:
        """Have it do a workload in the present mode."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        ask = {"mode": self.mode, "prompts": workload.prompts, "output_lengths": workload.output_lengths}
        self._process.stdin.write(json.dumps(ask) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(f"{self.name}: the process has ended, exit code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise BenchmarkError(f"{self.name}: {answer['error']}")
        return Run(**answer)

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.terminate()
        self._process.wait()


def _static(model: Any, prompts: list[list[int]], lengths: list[int], size: int) -> float:
    """Generate in padded batches of requests that end at about the same time; return the seconds.

    A batch goes on until its longest request is done: the others' rows are computed and thrown away.
    """
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Enough(StoppingCriteria):
        def __init__(self, start: int, wanted: torch.Tensor) -> None:
            self._start, self._wanted = start, wanted

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            return input_ids.shape[1] - self._start >= self._wanted

    order = sorted(range(len(prompts)), key=lambda i: lengths[i])
    began = time.perf_counter()
    for at in range(0, len(order), size):
        batch = order[at : at + size]
        longest = max(len(prompts[i]) for i in batch)
        rows = [[0] * (longest - len(prompts[i])) + prompts[i] for i in batch]
        mask = [[0] * (longest - len(prompts[i])) + [1] * len(prompts[i]) for i in batch]
        wanted = torch.tensor([lengths[i] for i in batch], device=model.device)
        settings = _greedy(int(wanted.max()), eos_token_id=None)
        output = model.generate(
            torch.tensor(rows, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=settings,
            stopping_criteria=StoppingCriteriaList([Enough(longest, wanted)]),
        )
        if output.shape[1] - longest != int(wanted.max()):
            raise RuntimeError(f"generate made {output.shape[1] - longest} tokens, not {int(wanted.max())}")
    return time.perf_counter() - began


def _continuous(model: Any, prompts: list[list[int]], lengths: list[int]) -> float:
    """Have its own continuous batching do the requests; return the seconds from the first to the last token."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    cuda = model.device.type == "cuda"
    tokens = sum(map(len, prompts)) + sum(lengths)
    settings = _greedy(max(lengths), eos_token_id=-1)
    # Blocks for everything at once, with room to spare: it never has to wait for memory.
    batching = ContinuousBatchingConfig(
        num_blocks=tokens // 8 + 64, max_batch_tokens=512, use_cuda_graph=cuda, use_async_batching=cuda
    )
    began = time.perf_counter()
    with model.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=batching
    ) as manager:
        wanted = {
            manager.add_request(prompt, max_new_tokens=length): length
            for prompt, length in zip(prompts, lengths, strict=True)
        }
        while wanted:
            output = manager.get_result(timeout=ANSWER_SECONDS)
            if output is None:
                raise RuntimeError("continuous batching gave no answer")
            if output.is_finished() or output.error:
                length = wanted.pop(output.request_id)
                if len(output.generated_tokens) != length:
                    made = f"{len(output.generated_tokens)} tokens came, {length} were asked for"
                    raise RuntimeError(f"continuous batching: {made} {output.error or ''}")
        return time.perf_counter() - began


def _greedy(max_new_tokens: int, eos_token_id: int | None) -> Any:
    """Return settings that take the likeliest token; there is no end token, which its two ways write differently."""
    import transformers

    make: Any = transformers.GenerationConfig
    return make(max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=eos_token_id, pad_token_id=0)


def _loaded(path: Path, dtype: str, device: str) -> Any:
    import torch
    import transformers

    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if path.is_file():
        options["gguf_file"] = path.name
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(path if path.is_dir() else path.parent, **options)
    return model.to(device).eval()


def main() -> None:
    """Load, then do what the lines on standard input say until there are none."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    quiet: Any = transformers.utils.logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    path, dtype, device = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    answers, sys.stdout = sys.stdout, sys.stderr
    model = _loaded(path, dtype, device)
    for line in sys.stdin:
        ask = json.loads(line)
        prompts, lengths = ask["prompts"], ask["output_lengths"]
        answer: dict[str, Any]
        try:
            if ask["mode"] == CONTINUOUS:
                seconds = _continuous(model, prompts, lengths)
            else:
                with torch.inference_mode():
                    seconds = _static(model, prompts, lengths, int(ask["mode"].rpartition(" ")[2]))
            answer = {"seconds": seconds, "output_tokens": sum(lengths)}
        except Exception as error:  # one way of several may not work with a model, a device or a version
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
