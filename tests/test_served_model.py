"""From a folder through worker, scheduler and frontend, in one process: what a model's files say is what users get."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from checkpoint import CheckpointError, load_config
from gpu_worker.model import Decoder
from gpu_worker.rope import rope_table
from protocol.messages import Finish
from tests.core_loop import submit
from tests.frontend_driver import Driver, text_of
from tests.paged_model import CPU
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.tiny_models import VOCAB, change_json, reference_logits, save, tiny_model
from tests.word_tokenizer import word_text

OPTIONS = {"max_num_seqs": 5, "max_model_len": 96, "block_size": 4, "max_batch_tokens": 24, "kv_cache_blocks": 26}


def in_config(folder: Path, end: int) -> None:
    change_json(folder / "config.json", eos_token_id=end)


def in_a_list_of_config(folder: Path, end: int) -> None:
    change_json(folder / "config.json", eos_token_id=[0, end])


def in_generation_config(folder: Path, end: int) -> None:
    change_json(folder / "config.json", eos_token_id=0)
    change_json(folder / "generation_config.json", eos_token_id=[1, end])


def in_tokenizer_config(folder: Path, end: int) -> None:
    change_json(folder / "config.json", eos_token_id=0)
    change_json(
        folder / "tokenizer_config.json", eos_token="<end>", added_tokens_decoder={str(end): {"content": "<end>"}}
    )


def in_tokenizer_json(folder: Path, end: int) -> None:
    change_json(folder / "tokenizer_config.json", eos_token={"content": "<end>"})
    change_json(folder / "tokenizer.json", added_tokens=[{"id": end, "content": "<end>"}])


@pytest.mark.parametrize(
    "declare", [in_config, in_a_list_of_config, in_generation_config, in_tokenizer_config, in_tokenizer_json]
)
def test_a_model_stops_on_an_end_token_that_any_of_its_files_names_and_the_token_is_no_text(
    declare: Callable[[Path, int], None], tmp_path: Path
) -> None:
    folder = save(tiny_model("grouped queries"), tmp_path)
    (folder / "generation_config.json").unlink()
    change_json(folder / "config.json", eos_token_id=None)
    ask = submit(1, [3, 14, 15], 12)
    engine = poisoned_engine(folder, **OPTIONS)
    endless = alone(engine, ask)
    engine.device.close()
    assert len(endless) == 12
    at = next(i for i in range(3, 12) if endless[i] not in {*endless[:i], 0, 1})

    declare(folder, endless[at])
    engine = poisoned_engine(folder, **OPTIONS)
    loop = RealLoop(engine, 2)
    loop.submit(ask)
    loop.drain()
    engine.device.close()
    assert loop.tokens(1) == endless[: at + 1]
    assert loop.received[1].finish is Finish.STOP

    frontend, unending = (Driver(word_text(), eos=ends) for ends in (engine.eos_token_ids, ()))
    for driver, tokens in ((frontend, loop.tokens(1)), (unending, endless[:at])):
        driver.generate()
        driver.tokens(driver.submitted()[0], 0, tokens, Finish.STOP)
    assert text_of(frontend.chunks()) == text_of(unending.chunks())


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", ["Mistral with a window", "SmolLM3 with windows", "dynamic rope", "Phi3 partly rotated by longrope"]
)
def test_tokens_are_those_of_transformers_whatever_neighbours_and_preemption(variant: str, tmp_path: Path) -> None:
    dice = random.Random(variant)
    asks = [
        submit(
            request,
            [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, 4 if request < 2 else 60))],
            80 if request < 2 else dice.randint(1, 20),  # the first two outgrow the pool
            temperature=dice.choice([0.0, 0.8]) if request else 0.0,
            seed=dice.randrange(2**64),
            ignore_eos=True,
        )
        for request in range(7)
    ]
    model = tiny_model(variant)
    engine = poisoned_engine(save(model, tmp_path), **OPTIONS)
    expected = [alone(engine, ask) for ask in asks]
    whole = asks[0].prompt.tolist() + expected[0]
    assert expected[0] == reference_logits(model, whole[:-1]).argmax(dim=-1)[-80:].tolist(), "transformers takes others"
    loop = RealLoop(engine, 2)
    for ask in asks:
        loop.submit(ask)
        loop.step()
    loop.drain()
    assert [loop.tokens(ask.request) for ask in asks] == expected
    assert loop.scheduler.counters.preemptions, "the pool was never short"
    engine.device.close()


def test_the_served_length_is_the_models_own_or_up_to_what_its_scaling_allows(tmp_path: Path) -> None:
    folder = save(tiny_model("dynamic rope"), tmp_path)
    config = load_config(folder)
    rest = {"max_num_seqs": 1, "kv_cache_blocks": 40}
    for asked, served in ((None, 128), (128, 128), (345, 345)):
        engine = poisoned_engine(folder, max_model_len=asked, **rest)
        assert engine.max_model_len == served
        assert isinstance(engine.runner._model, Decoder)
        assert torch.equal(engine.runner._model.rope, rope_table(config, served, CPU))
        engine.device.close()
    with pytest.raises(CheckpointError, match="--max-model-len 346 is more than the model's 345 positions"):
        poisoned_engine(folder, max_model_len=346, **rest)
