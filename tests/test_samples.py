"""Several answers to one prompt: to the scheduler each is a request of its own, and all share what it computes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from client import AsyncClient, Client, RequestFailedError, RequestRefusedError
from frontend.http.parameters import MOST_CHOICES
from frontend.seeds import sample_seed
from frontend.stop_strings import StopStrings
from protocol.messages import MOST_SAMPLES, Abort, Cancel, Chunk, Finish, Generate, Submit
from tests.core_loop import CoreLoop, solo, submit
from tests.frontend_driver import ME, Driver, ids, only
from tests.http_driver import HttpDriver
from tests.http_server import HttpServer, wait_until_idle
from tests.stub_frontend import StubFrontend, chunk
from tests.stub_model import opened
from tests.stub_scheduler import StubScheduler
from tests.test_http import Serve, asked, counts, error_of, text_of
from tests.word_model import write_word_model
from tests.word_tokenizer import EOS, word, word_text

WORDS = ("Ġone", "Ġtwo", "Ġthree", "Ġfour", "Ġfive", "ĠSTOP")
BOTH = pytest.mark.parametrize("path", ["completions", "chat/completions"])
MODES = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def by_seed(submit: Submit) -> list[int]:
    """Words that the seed chooses, and an end."""
    draw = np.random.default_rng(submit.seed)
    return [*(word(int(each)) for each in draw.integers(0, 5, size=6)), EOS]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Make drivers; nothing of a request may be left in them at the end."""
    drivers: list[HttpDriver] = []

    def make(script: Callable[[Submit], list[int]] = by_seed, **settings: Any) -> HttpDriver:
        drivers.append(HttpDriver(word_text(*WORDS), script, vocab_size=300, max_model_len=64, **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.check()
        await driver.client.aclose()


# ---------------------------------------------------------------- seeds


def test_sample_0_has_the_requests_own_seed_and_no_two_samples_of_neighbouring_seeds_share_one() -> None:
    seeds = [sample_seed(seed, index) for seed in range(64) for index in range(MOST_SAMPLES)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert [sample_seed(seed, 0) for seed in (0, 7, 2**64 - 1)] == [0, 7, 2**64 - 1]


def test_seeds_of_samples_stay_what_they_are_for_who_repeats_a_request_next_year() -> None:
    assert [sample_seed(7, index) for index in range(3)] == [7, 7191089600892374487, 309689372594955804]


# ---------------------------------------------------------------- the scheduler


@pytest.mark.parametrize("credit", [1, 2, 3])
@pytest.mark.parametrize("budget", [24, 300])
def test_of_a_prompt_with_many_samples_only_the_last_piece_is_computed_for_each(credit: int, budget: int) -> None:
    worker = opened(slots=8, blocks=250, block_size=16, max_batch_tokens=budget, max_model_len=100)
    loop = CoreLoop(worker, credit)
    prompt = [place % 90 for place in range(70)]
    asks = [
        submit(index, prompt, 6, ignore_eos=True, temperature=1.0, seed=sample_seed(7, index)) for index in range(8)
    ]
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    assert [loop.tokens(ask.request) for ask in asks] == [solo(ask, max_model_len=100) for ask in asks]
    assert loop.scheduler.counters.prefill_tokens == 64 + 8 * 6
    assert [loop.received[ask.request].cached for ask in asks] == [0, *[64] * 7]


# ---------------------------------------------------------------- the core


def driver(**settings: Any) -> Driver:
    return Driver(word_text(*WORDS), **settings)


def test_every_sample_is_sent_at_once_with_the_same_prompt_and_a_seed_of_its_own() -> None:
    it = driver()
    it.generate(n=3, seed=7, temperature=0.5, stop=("STOP",))
    submits = it.submitted()
    assert [each.seed for each in submits] == [sample_seed(7, index) for index in range(3)]
    assert len({each.request for each in submits}) == 3
    assert all(each.prompt is submits[0].prompt for each in submits), "it is not copied"
    it.generate(2, seed=7)
    assert it.submitted()[0].seed == submits[0].seed


def test_each_sample_has_its_own_text_stop_and_end() -> None:
    it = driver()
    it.generate(n=3, stop=("five STOP",))
    first, second, third = it.submitted()
    it.tokens(first, 0, [word(0)])
    it.tokens(second, 0, [word(4)])
    it.tokens(third, 0, [word(4)])
    assert [(each.index, each.text) for each in it.chunks()] == [(0, " one"), (1, " "), (2, " ")]
    it.tokens(second, 1, [word(5)])
    it.tokens(third, 1, [word(1), EOS], Finish.STOP)
    said = [(each.index, each.text, each.finish) for each in it.chunks()]
    assert said == [(1, "", Finish.STOP), (2, "five two", Finish.STOP)]
    assert list(it.core.peers[ME].requests) == [1]
    it.tokens(first, 1, [word(1)], Finish.LENGTH)
    assert [(each.request, each.index, each.text) for each in it.chunks()] == [(1, 0, " two")]
    assert not it.core.peers[ME].requests


@pytest.mark.parametrize("how", ["cancel", "gone", "stop"])
def test_whatever_ends_the_request_ends_all_of_its_samples_and_nothing_is_left(how: str) -> None:
    it = driver()
    for request in range(200):
        it.generate(request, n=3)
        submits = it.submitted()
        it.tokens(submits[1], 0, [word(0)], Finish.LENGTH)
        if how == "cancel":
            it.client(Cancel(request))
            assert sorted((each.index, each.finish) for each in it.chunks()) == [
                (0, Finish.ABORT), (1, Finish.LENGTH), (2, Finish.ABORT),
            ]  # fmt: skip
        elif how == "gone":
            it.core.client_gone(ME)
        else:
            it.core.stop()
            assert sorted(each.finish for each in it.chunks()) == [Finish.LENGTH, Finish.ERROR, Finish.ERROR]
            it.core.draining = False
        it.core.check()
        aborted = [id for abort in only(it.said_to_scheduler(), Abort) for id in abort.request.tolist()]
        assert aborted == [submits[0].request, submits[2].request]
        assert not it.core.links[0].streams
        assert not it.core.owed


@pytest.mark.parametrize("finish", [Finish.REFUSED, Finish.BUSY])
def test_a_sample_that_the_scheduler_refuses_speaks_for_all_of_them_once(finish: Finish) -> None:
    it = driver()
    it.generate(n=3)
    submits = it.submitted()
    it.tokens(submits[0], 0, [word(0)])
    it.tokens(submits[1], 0, [], finish, error="too much")
    (refusal,) = it.chunks()
    assert (refusal.finish, refusal.error) == (finish, "too much")
    (abort,) = only(it.said_to_scheduler(), Abort)
    assert sorted(abort.request.tolist()) == [submits[0].request, submits[2].request]
    it.tokens(submits[2], 0, [], finish, error="too much")
    assert not it.chunks()
    assert not it.core.owed


def test_what_is_refused_at_once_is_refused_once() -> None:
    it = driver()
    it.generate(n=3, token_ids=ids(*range(64)))
    assert [each.finish for each in it.chunks()] == [Finish.REFUSED]
    assert not it.core.owed


def test_a_request_at_which_we_fail_ends_all_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("nobody thought of this")

    it = driver()
    monkeypatch.setattr("frontend.tokenizer.TextTokenizer.encode", fail)
    it.generate(1, prompt="a", n=3)
    assert [(each.request, each.index, each.finish) for each in it.chunks()] == [
        (1, index, Finish.ERROR) for index in range(3)
    ]


def test_samples_of_a_silent_scheduler_go_on_at_another() -> None:
    it = driver(schedulers=2)
    it.generate(n=4)
    here, there = it.submitted(0), it.submitted(1)
    assert (len(here), len(there)) == (2, 2)
    it.tokens(here[0], 0, [word(0)])
    it.wait(12.0, alive=[1], peers=[ME])
    again = it.submitted(1)
    assert [(each.seed, each.output.tolist()) for each in again] == [(here[0].seed, [word(0)]), (here[1].seed, [])]


def test_what_was_built_for_stop_strings_is_shared_and_what_they_have_seen_is_not() -> None:
    first = StopStrings(["abc"])
    assert first.push("xab") == ("x", False)
    second = first.again()
    assert second.push("c") == ("c", False)
    assert first.push("c") == ("", True)
    assert second._borders is first._borders
    assert second.push("abc") == ("", True)
    assert first.again().push("ab") == ("", False)


# ---------------------------------------------------------------- HTTP


def texts_of(path: str, events: Sequence[dict[str, Any]]) -> list[str]:
    """The text of each choice of a stream, in their order."""
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + text_of(path, choice)
    assert sorted(texts) == list(range(len(texts)))
    return [texts[index] for index in range(len(texts))]


@BOTH
async def test_samples_are_repeatable_by_seed_and_the_first_is_what_one_would_be(serve: Serve, path: str) -> None:
    it = serve()
    alone = (await it.post(path, **asked(path, seed=7))).json()
    three = (await it.post(path, **asked(path, seed=7, n=3, best_of=3))).json()
    again = await it.events(path, **asked(path, seed=7, n=3, stream_options={"include_usage": True}))
    texts = [text_of(path, choice) for choice in three["choices"]]
    assert len(set(texts)) == 3
    assert texts[0] == text_of(path, alone["choices"][0])
    assert texts_of(path, again) == texts
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert [choice["finish_reason"] for choice in three["choices"]] == ["stop"] * 3
    prompt = alone["usage"]["prompt_tokens"]
    assert three["usage"] == again[-1]["usage"] == counts(prompt=prompt, completion=3 * 7)
    reasons = [choice["finish_reason"] for event in again for choice in event["choices"] if choice["finish_reason"]]
    assert reasons == ["stop"] * 3


@MODES
async def test_choices_of_many_prompts_are_numbered_prompt_by_prompt(serve: Serve, stream: bool) -> None:
    it = serve(lambda submit: [*[word(0)] * (1 + int(submit.prompt[0])), word(1 + submit.seed % 2), EOS], cached=1)
    body: dict[str, Any] = {"prompt": [[2], [0]], "n": 2, "seed": 8, "max_tokens": 9}
    second = WORDS[1 + sample_seed(8, 1) % 2].replace("Ġ", " ")
    right = [" one one one two", " one one one" + second, " one two", " one" + second]
    if stream:
        events = await it.events("completions", **body, stream_options={"include_usage": True})
        usage = events[-1]["usage"]
        assert texts_of("completions", events) == right
    else:
        whole = (await it.post("completions", **body)).json()
        usage = whole["usage"]
        assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == list(enumerate(right))
    assert usage == counts(prompt=2, completion=2 * 5 + 2 * 3, cached=2)


async def test_log_probabilities_of_each_sample_begin_at_its_own_text(serve: Serve) -> None:
    texts, offsets = ["", ""], 0
    for event in await serve().events("completions", prompt="a", n=2, logprobs=0, max_tokens=3):
        (choice,) = event["choices"]
        for offset in choice["logprobs"]["text_offset"]:
            assert offset == len(texts[choice["index"]])
            offsets += 1
        texts[choice["index"]] += choice["text"]
    assert offsets == 2 * 3


@BOTH
@pytest.mark.parametrize(
    ("more", "param", "message"),
    [
        ({"n": 0}, "n", "n: must be at least 1, got 0"),
        ({"n": MOST_SAMPLES + 1}, "n", "n: must be at most 128, got 129"),
        ({"n": 10**6}, "n", "n: must be at most 128, got 1000000"),
        ({"n": True}, "n", "n: must be an integer, got true"),
        ({"best_of": 2}, "best_of", "best_of: must be n, which is 1, for all that is sampled is answered"),
        ({"n": 3, "best_of": 2}, "best_of", "best_of: must be n, which is 3, for all that is sampled is answered"),
        ({"n": 3, "best_of": "3"}, "best_of", 'best_of: must be an integer, got "3"'),
    ],
    ids=str,
)
async def test_more_samples_than_can_be_meant_are_400(
    serve: Serve, path: str, more: dict[str, Any], param: str, message: str
) -> None:
    it = serve()
    error = error_of(await it.post(path, **asked(path, **more)), 400)
    assert (error["param"], error["message"]) == (param, message)
    assert not it.submitted


async def test_prompts_and_samples_together_have_a_limit(serve: Serve) -> None:
    it = serve()
    error = error_of(await it.post("completions", prompt=["a"] * 3, n=86), 400)
    assert (error["param"], error["message"]) == ("n", "n: 86 for 3 prompts each are 258 choices, more than 256")
    whole = (await it.post("completions", prompt=["a"] * 2, n=MOST_CHOICES // 2, max_tokens=1)).json()
    assert [choice["index"] for choice in whole["choices"]] == list(range(MOST_CHOICES))


@BOTH
@MODES
async def test_a_sample_that_fails_takes_the_others_along(serve: Serve, path: str, stream: bool) -> None:
    it = serve(fails="computing it failed", fails_after=0)
    assert error_of(await it.post(path, **asked(path, n=3, stream=stream)), 500)["message"] == it.fails
    await it.idle()
    assert len(it.submitted) == 3


@pytest.mark.processes
def test_openais_own_client_gets_samples_and_one_that_leaves_takes_all_along(tmp_path: Path) -> None:
    def script(submit: Submit) -> list[int]:
        return [word(0)] * 3000 if submit.ignore_eos else by_seed(submit)

    model = write_word_model(tmp_path / "model", *WORDS)
    with (
        StubScheduler(f"ipc://{tmp_path / 'scheduler'}", script, max_model_len=4096, eos=(EOS,)) as scheduler,
        HttpServer(tmp_path, model, scheduler.address) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as it,
    ):
        user: Any = {"role": "user", "content": "hello"}
        one = it.chat.completions.create(model="stub", messages=[user], seed=7)
        three = it.chat.completions.create(model="stub", messages=[user], seed=7, n=3)
        texts = [choice.message.content or "" for choice in three.choices]
        assert texts[0] == one.choices[0].message.content
        assert one.usage is not None
        assert three.usage is not None
        assert three.usage.prompt_tokens == one.usage.prompt_tokens
        streamed = ["", "", ""]
        for event in it.chat.completions.create(model="stub", messages=[user], seed=7, n=3, stream=True):
            streamed[event.choices[0].index] += event.choices[0].delta.content or ""
        assert streamed == texts
        with pytest.raises(openai.BadRequestError, match="best_of"):
            it.completions.create(model="stub", prompt="a", n=2, best_of=3)
        endless = it.completions.create(
            model="stub", prompt="a", n=3, max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
        )
        assert {next(endless).choices[0].index for _ in range(3)} <= {0, 1, 2}
        endless.close()
        wait_until_idle(scheduler, 2.0)
        with Client(server.address) as own:
            whole = own.chat_samples([user], 3, seed=7)
            assert [each.text for each in whole] == texts
            with own.stream_chat([user], n=3, seed=7) as pieces:
                parts = ["", "", ""]
                for piece in pieces:
                    parts[piece.index] += piece.text
            assert (parts, pieces.completions) == (texts, tuple(whole))
            assert pieces.completion == whole[0]
            assert own.samples([1, 2], 2, seed=9)[0] == own.generate([1, 2], seed=9)


# ---------------------------------------------------------------- the Python client


def three_answers(ask: Generate) -> list[Chunk]:
    """Two words of each of three, mixed, one of them ending early."""
    assert ask.n == 3
    said = [(0, "a", 0), (2, "x", 0), (1, "m", Finish.STOP), (2, "y", Finish.LENGTH), (0, "b", Finish.LENGTH)]
    chunks = [chunk(ask.request, text, [ord(text)], Finish(finish)) for _, text, finish in said]
    for each, (index, _, _) in zip(chunks, said, strict=True):
        object.__setattr__(each, "index", index)
    return chunks


def test_samples_come_in_their_order_and_a_stream_says_whose_each_piece_is(tmp_path: Path) -> None:
    with StubFrontend(f"ipc://{tmp_path / 'f'}", three_answers) as server, Client(server.address) as it:
        assert [(each.text, each.finish_reason) for each in it.samples("p", 3)] == [
            ("ab", "length"), ("m", "stop"), ("xy", "length"),
        ]  # fmt: skip
        with it.stream("p", n=3) as pieces:
            assert [(piece.index, piece.text) for piece in pieces][:3] == [(0, "a"), (2, "x"), (1, "m")]
        assert [each.text for each in pieces.completions] == ["ab", "m", "xy"]


def test_a_sample_that_fails_or_is_refused_ends_the_call_and_the_others(tmp_path: Path) -> None:
    finishes = iter([Finish.ERROR, Finish.REFUSED])

    def answer(ask: Generate) -> list[Chunk]:
        return (
            [chunk(ask.request, finish=next(finishes), error="no luck")]
            if ask.n == 3
            else [chunk(ask.request, "z", [1], Finish.STOP)]
        )

    with StubFrontend(f"ipc://{tmp_path / 'f'}", answer) as server, Client(server.address) as it:
        with pytest.raises(RequestFailedError, match="no luck"):
            it.samples("p", 3)
        assert server.take(Cancel) == Cancel(1)
        with pytest.raises(RequestRefusedError, match="no luck"):
            it.samples("p", 3)
        assert it.generate("p").text == "z"
        assert not any(isinstance(each, Cancel) for each in server.heard.queue)


@pytest.mark.parametrize("n", [0, MOST_SAMPLES + 1, 10**12])
async def test_a_number_that_no_message_can_carry_is_refused_by_name(tmp_path: Path, n: int) -> None:
    with StubFrontend(f"ipc://{tmp_path / 'f'}") as server:
        async with AsyncClient(server.address) as it:
            with pytest.raises(RequestRefusedError, match=r"\bn: "):
                await asyncio.wait_for(it.samples("p", n), 5)
