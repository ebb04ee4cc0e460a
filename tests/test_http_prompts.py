"""What HTTP tells of prompts: `echo` as OpenAI's completions have it, `prompt_logprobs` as vLLM does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tokenizers import processors

from frontend import intake
from frontend.http import prompts
from protocol.messages import Finish, Submit
from tests.http_driver import HttpDriver
from tests.word_tokenizer import EOS, word, word_text

WORDS = ("Ġone", "Ġtwo", "ĠSTOP")
ONE, TWO, STOP = (word(i) for i in range(len(WORDS)))
A, B, C = (32 + i for i in range(3))

Serve = Callable[..., HttpDriver]


def ends_by_itself(submit: Submit) -> list[int]:
    return [ONE, TWO, EOS]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    drivers: list[HttpDriver] = []

    def make(script: Callable[[Submit], list[int]] = ends_by_itself, **settings: Any) -> HttpDriver:
        text = settings.pop("text", None) or word_text(*WORDS)
        drivers.append(HttpDriver(text, script, vocab_size=300, max_model_len=64, **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.check()
        await driver.client.aclose()


async def choices_of(it: HttpDriver, **body: Any) -> list[dict[str, Any]]:
    """The choices, which a stream must give as well: put together, they are the same."""
    answer = await it.post("completions", **body)
    assert answer.status_code == 200, answer.text
    whole: list[dict[str, Any]] = answer.json()["choices"]
    events = await it.events("completions", **body, stream_options={"include_usage": True})
    assert events.pop()["usage"] == answer.json()["usage"]
    streamed: dict[int, dict[str, Any]] = {}
    for event in events:
        (choice,) = event["choices"]
        known = streamed.setdefault(choice["index"], {"text": "", "logprobs": None, "finish_reason": None})
        assert known["finish_reason"] is None
        known["text"] += choice["text"]
        known["finish_reason"] = choice["finish_reason"]
        if choice["logprobs"] is not None:
            known["logprobs"] = known["logprobs"] or {name: [] for name in choice["logprobs"]}
            for name, values in choice["logprobs"].items():
                known["logprobs"][name] += values
    assert [{"index": index} | streamed[index] for index in sorted(streamed)] == whole
    return whole


@pytest.mark.parametrize("prompt", ["ABC", [A, B, C]], ids=["text", "ids"])
async def test_an_echo_is_the_prompt_in_front_of_the_answer(serve: Serve, prompt: Any) -> None:
    (choice,) = await choices_of(serve(), prompt=prompt, echo=True)
    assert choice == {"index": 0, "text": "ABC one two", "logprobs": None, "finish_reason": "stop"}


async def test_with_log_probabilities_the_prompts_tokens_are_among_them_and_the_first_has_none(serve: Serve) -> None:
    it = serve()
    (choice,) = await choices_of(it, prompt="ABC", echo=True, logprobs=1)
    assert choice["text"] == "ABC one two"
    assert choice["logprobs"] == {
        "tokens": ["A", "B", "C", " one", " two", "</s>"],
        "token_logprobs": [None, -0.25, -0.5, -0.5, -0.5, -0.5],
        "top_logprobs": [
            None, {"A": -1.0, "B": -0.25}, {"A": -1.0, "C": -0.5},
            {"A": -1.0, " one": -0.5}, {"A": -1.0, " two": -0.5}, {"A": -1.0, "</s>": -0.5},
        ],
        "text_offset": [0, 1, 2, 3, 7, 11],
    }  # fmt: skip
    assert all(submit.prompt_logprobs == 1 for submit in it.submitted)


async def test_what_a_tokenizer_puts_in_front_has_no_place_in_the_text(serve: Serve) -> None:
    text = word_text(*WORDS)
    begins = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", EOS)])
    text.tokenizer.tokenizer.post_processor = begins
    (choice,) = await choices_of(serve(text=text), prompt="AB", echo=True, logprobs=0)
    assert (choice["text"], choice["logprobs"]["tokens"][:4]) == ("AB one two", ["</s>", "A", "B", " one"])
    assert choice["logprobs"]["text_offset"][:4] == [0, 0, 1, 2]
    (choice,) = await choices_of(serve(), prompt=[EOS, A, B], echo=True, logprobs=0)
    assert choice["text"] == "</s>AB one two"
    assert choice["logprobs"]["text_offset"][:4] == [0, 4, 5, 6]


@pytest.mark.parametrize("more", [{}, {"logprobs": 0}], ids=str)
async def test_without_max_tokens_nothing_but_the_prompt_is_answered(serve: Serve, more: dict[str, Any]) -> None:
    it = serve(lambda submit: [EOS])
    (choice,) = await choices_of(it, prompt="ABC", echo=True, max_tokens=0, **more)
    assert (choice["text"], choice["finish_reason"]) == ("ABC", "length")
    if more:
        assert choice["logprobs"]["tokens"] == ["A", "B", "C"]
    answer = (await it.post("completions", prompt="ABC", echo=True, max_tokens=0)).json()
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == 3
    assert all(submit.max_tokens == 1 for submit in it.submitted)
    tally = it.it.core.tally
    assert (tally.generation_tokens, tally.whole.cumulative[-1]) == (0, 0), "a token was counted that nobody was given"


async def test_several_prompts_and_samples_each_begin_with_their_own(serve: Serve) -> None:
    it = serve()
    choices = await choices_of(it, prompt=["AB", "C"], n=3, echo=True, logprobs=1, max_tokens=2)
    assert [choice["text"] for choice in choices] == ["AB one two"] * 3 + ["C one two"] * 3
    assert all(choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.5, -0.5] for choice in choices[:3])
    assert all(choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5] for choice in choices[3:])
    asked = [submit.prompt_logprobs for submit in it.submitted]
    assert asked == [1, None, None] * 4, "a prompt is scored once, for all of its samples"


async def test_samples_that_are_ahead_of_their_prompt_wait_for_what_is_said_of_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = serve()
    step = it._step

    def scored_late(submit: Submit, tokens: list[int], at: int) -> None:
        others = [other for other, _, _ in it._running.values() if other.prompt_logprobs is None]
        if submit.prompt_logprobs is None or not others:
            step(submit, tokens, at)

    monkeypatch.setattr(it, "_step", scored_late)
    choices = await choices_of(it, prompt="ABC", n=3, echo=True, logprobs=0)
    assert all(choice["logprobs"]["token_logprobs"][:3] == [None, -0.25, -0.5] for choice in choices)


async def test_a_stop_string_is_not_looked_for_in_the_echo(serve: Serve) -> None:
    it = serve(lambda submit: [ONE, STOP, TWO, TWO])
    (choice,) = await choices_of(it, prompt="STOP A ST", stop=["STOP", "ST one"], echo=True, max_tokens=4)
    assert (choice["text"], choice["finish_reason"]) == ("STOP A ST one ", "stop")


async def test_prompt_log_probabilities_have_vllms_shape(serve: Serve) -> None:
    it = serve()
    expected = [
        None,
        {
            str(B): {"logprob": -0.25, "rank": 3, "decoded_token": "B"},
            "32": {"logprob": -1.0, "rank": 1, "decoded_token": "A"},
        },
        {
            str(C): {"logprob": -0.5, "rank": 3, "decoded_token": "C"},
            "32": {"logprob": -1.0, "rank": 1, "decoded_token": "A"},
        },
    ]
    answer = (await it.post("completions", prompt=[[A, B, C], [A]], n=2, prompt_logprobs=1)).json()
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == [expected, expected, [None], [None]]
    assert all(choice["text"] == " one two" for choice in answer["choices"])
    chat = (await it.post("chat/completions", messages=[{"role": "user", "content": "A"}], prompt_logprobs=0)).json()
    assert "prompt_logprobs" not in chat["choices"][0]
    first, *rest = chat["prompt_logprobs"]
    assert first is None
    assert len(rest) == chat["usage"]["prompt_tokens"] - 1
    assert all(len(each) == 1 for each in rest)
    plain = (await it.post("completions", prompt="ABC")).json()
    assert "prompt_logprobs" not in plain["choices"][0]


async def test_echo_and_prompt_log_probabilities_each_have_as_many_as_they_asked_for(serve: Serve) -> None:
    body: dict[str, Any] = {"prompt": "ABC", "echo": True, "logprobs": 0, "prompt_logprobs": 2, "max_tokens": 0}
    (choice,) = (await serve().post("completions", **body)).json()["choices"]
    assert [each and len(each) for each in choice["logprobs"]["top_logprobs"]] == [None, 1, 1]
    assert [each and len(each) for each in choice["prompt_logprobs"]] == [None, 2, 3], "B is among its likeliest"
    (choice,) = (await serve().post("completions", **body | {"logprobs": 2, "prompt_logprobs": 0})).json()["choices"]
    assert [each and len(each) for each in choice["prompt_logprobs"]] == [None, 1, 1]


@pytest.mark.parametrize(
    ("path", "more", "param", "message"),
    [
        ("completions", {"max_tokens": 0}, "max_tokens", "must be at least 1 without echo or prompt_logprobs, got 0"),
        ("completions", {"max_completion_tokens": 0, "echo": False}, "max_completion_tokens", "must be at least 1"),
        ("completions", {"max_tokens": -1, "echo": True}, "max_tokens", "must be at least 0, got -1"),
        ("completions", {"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens", "must be at most 0"),
        ("completions", {"prompt_logprobs": 21}, "prompt_logprobs", "must be at most 20, got 21"),
        ("completions", {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "not available with"),
        ("chat/completions", {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "not available"),
        ("chat/completions", {"echo": True}, "echo", "true is not supported"),
        ("chat/completions", {"max_tokens": 0, "prompt_logprobs": 1}, "max_tokens", "must be at least 1, got 0"),
        ("completions", {"echo": True, "logprobs": 9}, "prompt", "the prompt has 5 tokens: 9 log probabilities beside"),
    ],
)
async def test_what_cannot_be_is_refused_in_words(
    serve: Serve, path: str, more: dict[str, Any], param: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_SCORES", 40)
    prompt = {"prompt": "hello"} if path == "completions" else {"messages": [{"role": "user", "content": "A"}]}
    answer = await serve().post(path, **prompt | more)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("most", "more", "served"),
    [
        (11, {"prompt_logprobs": 1, "n": 2}, False),
        (12, {"prompt_logprobs": 1, "n": 2}, True),
        (11, {"logprobs": 1, "echo": True, "n": 2}, False),
        (11, {"logprobs": 1, "echo": True, "n": 2, "stream": True}, False),
        (11, {"logprobs": 1, "n": 2}, True),
        (11, {"prompt": [[A, B, C], [A, B, C]], "prompt_logprobs": 1}, False),
        (3, {"echo": True, "max_tokens": 0, "n": 9}, True),
    ],
    ids=str,
)
async def test_of_all_prompts_in_all_choices_only_so_much_is_told(
    serve: Serve, most: int, more: dict[str, Any], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "MOST_SCORES", most)
    answer = await serve().post("completions", **{"prompt": "ABC"} | more)
    assert answer.status_code == (200 if served else 400), answer.text
    if not served:
        assert answer.json()["error"]["param"] == next(iter(more.keys() & {"logprobs", "prompt_logprobs"}))
        assert "there would be at least 12 log probabilities, at most 11" in answer.json()["error"]["message"]


async def test_a_chat_tells_of_its_prompt_once_whatever_n_is(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MOST_SCORES", 40)
    chat = {"messages": [{"role": "user", "content": "A"}], "prompt_logprobs": 0, "n": 20}
    assert (await serve().post("chat/completions", **chat)).status_code == 200


async def test_a_request_that_fails_before_its_prompt_is_known_fails_as_any(serve: Serve) -> None:
    it = serve(fails="out of luck")
    answer = await it.post("completions", prompt="ABC", echo=True, logprobs=1, n=2)
    assert answer.status_code == 500
    it.fails_as = Finish.TIMEOUT
    assert (await it.post("completions", prompt="ABC", prompt_logprobs=1)).status_code == 504
