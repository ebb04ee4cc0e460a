"""Bad words of several tokens, from the device's rows to the real step pipeline: the last token is banned in time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.bad_words import WIDTH, BadWords, StagedWords, word_places
from gpu_worker.engine import Engine
from protocol.messages import (
    MOST_BAD_TOKENS,
    MOST_BAD_WORD_TOKENS,
    MOST_BAD_WORDS,
    MOST_NOTES,
    MOST_TOKEN_IDS,
    Finish,
    Note,
    Submit,
)
from scheduler_proc.adjustments import most_notes
from tests.core_loop import CoreLoop, submit
from tests.real_loop import RealLoop, alone, poisoned_engine
from tests.stub_model import opened
from tests.tiny_models import VOCAB, save, tiny_model

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
Words = Sequence[Sequence[int]]


def bad(*words: Sequence[int]) -> dict[str, Any]:
    """The settings of a request that are about words of several tokens."""
    return {
        "bad_word_tokens": np.array([token for word in words for token in word], np.uint32),
        "bad_word_lengths": np.array([len(word) for word in words], np.uint8),
    }


def banned(words: Words, output: list[int]) -> set[int]:
    """What may not come next, by the rule in words."""
    return {word[-1] for word in words if output[max(0, len(output) - len(word) + 1) :] == list(word[:-1])}


def stands_in(word: Sequence[int], output: list[int]) -> bool:
    return any(output[at : at + len(word)] == list(word) for at in range(len(output)))


# ---------------------------------------------------------------- the rows


def staged(device: str, *rows: tuple[int, Words, list[int]]) -> StagedWords:
    """What a plan's notes become, for (row, words, what was said) each, in the plan's order."""
    notes: list[tuple[int, Note, int]] = []
    for row, words, said in rows:
        notes += [(row, Note.RECENT, token) for token in said]
        notes += [
            (row, Note.WORD_END if at == len(word) else Note.WORD, token)
            for word in words
            for at, token in enumerate(word, 1)
        ]
    rows_of, kinds, tokens = np.array(notes, np.int32).T
    places = word_places(kinds.astype(np.uint8), rows_of)
    return StagedWords(torch.tensor(places, device=device), torch.tensor(tokens, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_banned_is_what_the_rule_says_while_tokens_come(device: str) -> None:
    dice, vocabulary = random.Random(5), 4
    made = BadWords(torch.device(device))
    words: dict[int, Words] = {}
    output: dict[int, list[int]] = {}
    for turn in range(60):
        if turn % 3 == 0:  # other requests begin in some rows, in more and more of them
            rows = dice.sample(range(1 + turn // 9), dice.randint(1, 1 + turn // 18))
            words |= {
                row: [
                    [dice.randrange(vocabulary) for _ in range(dice.choice([2, 2, 3, 4]))]
                    for _ in range(dice.choice([0, 1, 4, MOST_BAD_WORDS]))
                ]
                for row in rows
            }
            output |= {row: [dice.randrange(vocabulary) for _ in range(dice.choice([0, 1, 9]))] for row in rows}
            begun = [(row, words[row], output[row]) for row in rows if words[row]]
            begin = torch.tensor(rows, dtype=torch.int32, device=device)
            made.begin(begin, staged(device, *begun) if begun else None, max(words) + 1)
        live = dice.sample(sorted(words), dice.randint(1, len(words))) if any(words.values()) else []
        if not live:
            continue
        row = torch.tensor(live, device=device)
        logits = torch.randn(len(live), vocabulary, device=device)
        before = logits.clone()
        made.ban(logits, row)
        for place, each in enumerate(live):
            expected = before[place].tolist()
            for token in banned(words[each], output[each]):
                expected[token] = -torch.inf
            assert logits[place].tolist() == expected
        tokens = [dice.randrange(vocabulary) for _ in live]
        made.follow(row, torch.tensor(tokens, device=device))
        for each, token in zip(live, tokens, strict=True):
            output[each].append(token)


def test_the_longest_word_is_matched_from_its_first_token_on() -> None:
    longest, made = list(range(WIDTH)), BadWords(torch.device("cpu"))
    made.begin(torch.tensor([0], dtype=torch.int32), staged("cpu", (0, [longest], [3])), 1)
    for said in (longest[:-1], [WIDTH, *longest[1:-1]]):
        for token in said:
            made.follow(torch.tensor([0]), torch.tensor([token]))
        logits = torch.zeros(1, WIDTH + 1)
        made.ban(logits, torch.tensor([0]))
        assert (logits[0] == -torch.inf).nonzero().tolist() == ([[WIDTH - 1]] if said[0] == 0 else [])


# ---------------------------------------------------------------- the pipeline


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tiny_model("grouped queries"), tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(tiny: Path) -> Iterator[Engine]:
    engine = poisoned_engine(
        tiny, max_num_seqs=4, max_model_len=48, block_size=4, max_batch_tokens=12, kv_cache_blocks=14
    )
    yield engine
    engine.device.close()


@pytest.fixture
def flat(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A model that would rather say a token than one with a higher id, whatever came before."""

    def forward(tokens: torch.Tensor, positions: torch.Tensor, logits_at: torch.Tensor, *_: Any) -> torch.Tensor:
        return (-0.1 * torch.arange(VOCAB)).repeat(len(logits_at), 1)

    monkeypatch.setattr(engine.runner._model, "forward", forward)
    return engine


def tokens_of(engine: Engine, credit: int, *asks: Submit) -> list[list[int]]:
    loop = RealLoop(engine, credit)
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    return [loop.tokens(ask.request) for ask in asks]


def lowest(words: Words, count: int) -> list[int]:
    """What the flat model says that may not say some words."""
    output: list[int] = []
    for _ in range(count):
        output.append(min(set(range(VOCAB)) - banned(words, output)))
    return output


@pytest.mark.parametrize("credit", [1, 2, 3])
def test_the_last_token_of_a_word_is_banned_before_any_host_knows_the_others(flat: Engine, credit: int) -> None:
    several: list[Words] = [
        [[0, 0]],
        [[0, 0, 0], [0, 1]],
        [[0, 0], [0, 1], [1, 0], [0, 2, 0], [2, 0]],
        [[0] * MOST_BAD_WORD_TOKENS],
        [[5, 6]],
    ]
    asks = [
        submit(request, [0, 0, 0], 40, ignore_eos=True, **bad(*words)) for request, words in enumerate(several)
    ]  # what the prompt ends with does not count
    assert tokens_of(flat, credit, *asks) == [lowest(words, 40) for words in several]


def test_single_tokens_are_banned_beside_words_of_several(flat: Engine) -> None:
    single = np.array([0, 2], np.uint32)
    asks = [
        submit(1, [9], 6, ignore_eos=True, banned_token_ids=single, **bad([1, 1], [3, 1])),
        submit(2, [9], 6, ignore_eos=True, **bad([0, 0]), presence_penalty=2.0),
        submit(3, [9], 6, ignore_eos=True, presence_penalty=2.0),
    ]
    assert tokens_of(flat, 2, *asks) == [[1, 3, 3, 3, 3, 3], list(range(6)), list(range(6))]


def test_the_tokens_are_those_of_transformers(engine: Engine) -> None:
    model, prompt = tiny_model("grouped queries"), [5, 6, 7, 8, 9]
    free = alone(engine, submit(1, prompt, 24, ignore_eos=True))
    words = [free[:2], free[5:8], free[9:13]]
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=24,
            do_sample=False,
            bad_words_ids=words,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
    assert alone(engine, submit(2, prompt, 24, ignore_eos=True, **bad(*words))) == expected
    assert expected != free, "no word would have come"


@pytest.mark.slow
def test_overlap_chunks_preemption_failure_and_resumption_change_no_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(11)
    asks, words = [], {}
    for request in range(6):
        prompt = [dice.randrange(3, VOCAB) for _ in range(dice.randint(1, 15))]
        heat, seed = float(request % 2), dice.randrange(2**64)
        plain = submit(request, prompt, 30, temperature=heat, seed=seed, ignore_eos=True)
        free = alone(engine, plain)
        words[request] = [free[at : at + dice.randint(2, 4)] for at in (0, 6, 11)] if request else []
        own = bad(*words[request]) if request else {"frequency_penalty": 0.5}
        asks.append(submit(request, prompt, 30, temperature=heat, seed=seed, ignore_eos=True, **own))
    expected = [alone(engine, ask) for ask in asks]
    follow, left = engine.runner._bad_words.follow, [0]

    def breaking(row: torch.Tensor, token: torch.Tensor) -> None:
        follow(row, token)  # what a step that fails has noted already must not last
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("the device is out of luck")

    monkeypatch.setattr(engine.runner._bad_words, "follow", breaking)
    for credit in (1, 2, 3):
        loop, left[0] = RealLoop(engine, credit), 12
        for ask in asks:
            loop.submit(ask)
            loop.step()
        loop.drain()
        assert [loop.tokens(ask.request) for ask in asks] == expected, f"credit {credit}"
        assert loop.scheduler.counters.preemptions, "the pool was never short"
        assert loop.scheduler.counters.failed_steps, "no step has failed"
    for ask, tokens in zip(asks, expected, strict=True):
        assert not any(stands_in(word, tokens) for word in words[ask.request])
        for known in (1, 2, 13):
            resumed = submit(
                ask.request, ask.prompt.tolist(), 30, output=tokens[:known], temperature=ask.temperature,
                seed=ask.seed, ignore_eos=True, bad_word_tokens=ask.bad_word_tokens,
                bad_word_lengths=ask.bad_word_lengths, frequency_penalty=ask.frequency_penalty,
            )  # fmt: skip
            assert alone(engine, resumed) == tokens


def test_who_comes_after_a_request_with_words_has_none_of_them(flat: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = RealLoop(flat, 2)
    for request in range(9):
        own: list[dict[str, Any]] = [bad([0, 0]), {"bias_token_ids": np.array([1], np.uint32), "bias": BIAS}, {}]
        loop.submit(submit(request, [5], 4, ignore_eos=True, **own[request % 3]))
    loop.drain()
    assert [loop.tokens(request) for request in range(9)] == [[0, 1, 0, 1], [1] * 4, [0] * 4] * 3
    asks = [submit(request, [5], 4, ignore_eos=True, presence_penalty=request) for request in range(2)]
    monkeypatch.setattr(flat.runner, "_bad_words", Untouched())
    assert tokens_of(flat, 2, *asks) == [[0] * 4, [0, 1, 2, 3]]


BIAS = np.array([1.0], np.float32)


class Untouched(BadWords):
    """Only beginnings are told of: no step says or asks anything."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))

    def ban(self, logits: torch.Tensor, row: torch.Tensor) -> None:
        raise AssertionError("a step without words looks at them")

    def follow(self, row: torch.Tensor, token: torch.Tensor) -> None:
        raise AssertionError("a step without words notes its tokens")


# ---------------------------------------------------------------- the scheduler alone


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (bad(*[[1, 2]] * (MOST_BAD_WORDS + 1)), "129 bad words of several tokens, at most 128"),
        (bad(*[[1] * MOST_BAD_WORD_TOKENS] * 33), "bad words of 1056 tokens in all, at most 1024"),
        (bad([1, 97]), "token id 97 is outside"),
        ({"allowed_token_ids": np.array([6, 7], np.uint32)} | bad([6, 6], [1, 7]), "no token is left"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_words_that_are_too_many_or_leave_nothing_are_refused(settings: dict[str, Any], why: str) -> None:
    loop = CoreLoop(opened())
    loop.submit(submit(1, [1], 8, **settings))
    loop.drain()
    assert loop.received[1].finish is Finish.REFUSED
    assert why in loop.received[1].error


def test_all_that_one_request_may_ask_for_fits_into_one_plan() -> None:
    every = np.resize(np.arange(8, 90, dtype=np.uint32), MOST_TOKEN_IDS)
    words = [[1] * MOST_BAD_WORD_TOKENS] * (MOST_BAD_TOKENS // MOST_BAD_WORD_TOKENS)
    loop = CoreLoop(opened())
    most = submit(
        1, [1] * 40, 60, output=[50] * 20, ignore_eos=True, repetition_penalty=1.1, min_tokens=21,
        stop_token_ids=[7] * 256, bias_token_ids=every, bias=np.zeros(len(every), np.float32),
        allowed_token_ids=every, banned_token_ids=every[:1].repeat(MOST_TOKEN_IDS), **bad(*words),
    )  # fmt: skip
    loop.submit(most)
    (request,) = loop.scheduler._requests.values()
    assert 3 * MOST_TOKEN_IDS + MOST_BAD_TOKENS < most_notes(request, np.zeros(4, np.uint32)) <= 64 + MOST_NOTES
    plan, needed = loop.plan(), most_notes(request, np.zeros(1, np.uint32))
    assert plan is not None
    assert plan.adjusting is not None
    assert len(plan.adjusting.note) == needed - 1  # the model's one end token is ignored


def test_of_the_output_only_as_much_is_noted_as_the_longest_word_can_begin_with() -> None:
    loop = CoreLoop(opened())
    loop.submit(submit(1, [1], 9, output=[50, 51, 52, 53], ignore_eos=True, **bad([1, 2], [3, 4, 5])))
    loop.submit(submit(2, [1], 9, output=[50], ignore_eos=True, **bad([1, 2], [3, 4, 5])))
    loop.drain()
    adjusting = loop.plans[0].adjusting
    assert adjusting is not None
    assert adjusting.token.tolist() == [52, 53, 1, 2, 3, 4, 5, 50, 1, 2, 3, 4, 5]
    assert adjusting.note.tolist() == [6, 6, 7, 8, 7, 7, 8, 6, 7, 8, 7, 7, 8]
