"""The default model, whose weights are real: its parameters, logits and tokens are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint import load_config
from checkpoint.tokenizer import load_text
from gpu_worker.loading import load_weights
from gpu_worker.weights import destinations
from tests.core_loop import submit
from tests.paged_model import CPU, PagedModel
from tests.real_loop import RealLoop, poisoned_engine
from tests.tiny_models import reference_logits

# transformers reads a GGUF file slowly; the first of these tests waits for it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def reference(default_model_path: Path) -> Any:
    """The model as transformers reads it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        default_model_path.parent, gguf_file=default_model_path.name, dtype=torch.float32
    )
    return model.eval()  # type: ignore[no-untyped-call]


def test_the_default_model_is_read_as_transformers_reads_it(default_model_path: Path, reference: Any) -> None:
    config = load_config(default_model_path)
    ours = destinations(load_weights(default_model_path, config, torch.float32, CPU), config)
    theirs = reference.state_dict()
    assert theirs.keys() - ours.keys() == {"lm_head.weight"}
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    tokens = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    (logits,) = PagedModel(default_model_path).step((0, tokens))
    expected = reference_logits(reference, tokens)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    assert logits.argmax(dim=-1).tolist() == expected.argmax(dim=-1).tolist()


@pytest.mark.parametrize("length", [24, pytest.param(64, marks=pytest.mark.long)])
def test_the_default_models_tokens_are_those_of_transformers(
    default_model_path: Path, reference: Any, length: int
) -> None:
    texts = [
        "The capital of France is", "Once upon a time, there was a little", "def fibonacci(n):\n", "Water boils at",
        "The three primary colours are", "To make a cup of tea, first", "1, 2, 3, 4, 5,", "My favourite season is",
    ]  # fmt: skip
    tokenizer = load_text(default_model_path).tokenizer
    prompts = [tokenizer.encode(text).ids for text in texts]
    engine = poisoned_engine(default_model_path, max_num_seqs=8, max_model_len=256, kv_cache_blocks=128)
    loop = RealLoop(engine, 2)
    for request, prompt in enumerate(prompts):
        loop.submit(submit(request, prompt, length, ignore_eos=True))
    loop.drain()
    engine.device.close()
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    with torch.inference_mode():
        tokens = reference.generate(
            torch.tensor([[0] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)]),
            attention_mask=torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding]),
            max_new_tokens=length,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    for request, text in enumerate(texts):
        assert loop.tokens(request) == tokens[request, longest:].tolist(), text
