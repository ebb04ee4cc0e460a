"""The HTTP API: what is answered has OpenAI's shapes, and whatever is wrong is said before anything is sent."""

from __future__ import annotations

import asyncio
import json
import re
import time
import weakref
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, get_type_hints

import pytest
from starlette.routing import Route

from frontend.chat import ChatTemplate
from frontend.config import ServeConfig
from frontend.http.body import DEEPEST, MOST_ENTRIES, object_of
from frontend.http.errors import ApiError
from frontend.http.parameters import MOST_CHOICES, ChatParameters, CompletionParameters, parameters
from frontend.http.unsupported import NEUTRAL
from frontend.model_text import ModelText
from protocol.fields import Maybe
from protocol.messages import Finish, Generate, Submit
from scheduler_proc.adjustments import is_adjusted
from tests.http_driver import HttpDriver
from tests.tiny_tokenizers import byte_level_tokenizer
from tests.word_tokenizer import EOS, word, word_text

WORDS = ("Ġone", "Ġtwo", "ĠSTOP", "Ġthree")
ONE, TWO, STOP, THREE = (word(i) for i in range(len(WORDS)))
USER = {"role": "user", "content": "hello"}
VOCABULARY = 300
CONTEXT = 64
FOREIGN = re.compile(r"\b(None|True|False|Input|Expecting)\b|[{\[]'")
"""Python's way to write a value, and what pydantic and json say of one."""
BOTH = pytest.mark.parametrize("path", ["completions", "chat/completions"])
MODES = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def ends_by_itself(submit: Submit) -> list[int]:
    return [ONE, TWO, EOS]


def goes_on(submit: Submit) -> list[int]:
    return [ONE, TWO, STOP, THREE] * CONTEXT


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., HttpDriver]]:
    """Make drivers; nothing of a request may be left in them at the end."""
    drivers: list[HttpDriver] = []

    def make(script: Callable[[Submit], list[int]] = ends_by_itself, **settings: Any) -> HttpDriver:
        text = settings.pop("text", None) or word_text(*WORDS)
        settings = {"vocab_size": VOCABULARY, "max_model_len": CONTEXT} | settings
        drivers.append(HttpDriver(text, script, **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.check()
        await driver.client.aclose()


Serve = Callable[..., HttpDriver]


def asked(path: str, **more: Any) -> dict[str, Any]:
    """A request that either endpoint serves, as changed by `more`."""
    return ({"prompt": "hello"} if path == "completions" else {"messages": [USER]}) | more


def text_of(path: str, choice: dict[str, Any]) -> str:
    if path == "completions":
        return str(choice["text"])
    return str((choice.get("message") or choice["delta"]).get("content") or "")


def counts(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error_of(answer: Any, status: int) -> dict[str, Any]:
    """The error of an answer, which must have OpenAI's shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    message = body["error"]["message"]
    assert status != 400 or not message[0].isupper(), message
    assert not FOREIGN.search(message), message
    assert len(message) < 500
    return dict(body["error"])


# ---------------------------------------------------------------- answers


@BOTH
@pytest.mark.parametrize(
    ("script", "more", "text", "reason"),
    [
        (ends_by_itself, {"max_tokens": 9}, " one two", "stop"),
        (goes_on, {"max_tokens": 9, "stop": [" STOP"]}, " one two", "stop"),
        (goes_on, {"max_tokens": 9, "stop_token_ids": [STOP]}, " one two", "stop"),
        (goes_on, {"max_tokens": 2}, " one two", "length"),
        (goes_on, {"max_tokens": 100_000}, None, "length"),
        (ends_by_itself, {"max_tokens": 3, "ignore_eos": True}, " one two", "length"),
        (goes_on, {"max_tokens": 9, "stop": "STOP", "include_stop_str_in_output": True}, " one two STOP", "stop"),
    ],
    ids=["end token", "stop string", "stop token", "max_tokens", "context", "ignored end token", "stop string kept"],
)
async def test_both_modes_give_the_same_text_and_one_reason_to_end(
    serve: Serve, path: str, script: Callable[[Submit], list[int]], more: dict[str, Any], text: str | None, reason: str
) -> None:
    it = serve(script)
    whole = (await it.post(path, **asked(path, **more))).json()
    events = await it.events(path, **asked(path, **more))
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == reason
    if text is None:
        assert whole["usage"]["total_tokens"] == CONTEXT
    else:
        assert text_of(path, choice) == text
    assert "".join(text_of(path, event["choices"][0]) for event in events) == text_of(path, choice)
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + [reason]
    assert all(event["choices"][0]["index"] == choice["index"] == 0 for event in events)


async def test_a_completion_has_openais_shape(serve: Serve) -> None:
    whole = (await serve().post("completions", prompt="hello")).json()
    assert whole.keys() == {"id", "object", "created", "model", "choices", "usage"}
    assert whole["id"].startswith("cmpl-")
    assert (whole["object"], whole["model"]) == ("text_completion", "words")
    assert whole["choices"] == [{"index": 0, "text": " one two", "logprobs": None, "finish_reason": "stop"}]
    assert whole["usage"] == counts(prompt=5, completion=3)


async def test_a_chat_has_openais_shape(serve: Serve) -> None:
    it = serve()
    whole = (await it.post("chat/completions", messages=[USER])).json()
    assert whole["id"].startswith("chatcmpl-")
    assert whole["object"] == "chat.completion"
    (choice,) = whole["choices"]
    assert choice["message"] == {"role": "assistant", "content": " one two", "refusal": None}
    events = await it.events("chat/completions", messages=[USER])
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": " one"}, {"content": " two"}, {}]


@BOTH
async def test_one_stream_has_one_id_and_one_time_in_whole_seconds(serve: Serve, path: str) -> None:
    it = serve()
    first, second = [await it.events(path, **asked(path)) for _ in range(2)]
    for events in (first, second):
        assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert first[0]["id"] != second[0]["id"]
    created = first[0]["created"]
    assert type(created) is int
    assert abs(created - datetime.now(UTC).timestamp()) <= 2


@BOTH
async def test_a_stream_has_token_counts_only_if_asked_once_and_last(serve: Serve, path: str) -> None:
    it = serve()
    usage = (await it.post(path, **asked(path))).json()["usage"]
    options: dict[str, Any]
    for options in ({}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}):
        events = await it.events(path, **asked(path, **options))
        assert all(event["choices"] and "usage" not in event for event in events)
    *events, last = await it.events(path, **asked(path, stream_options={"include_usage": True}))
    assert all(event["choices"] and event["usage"] is None for event in events)
    assert (last["choices"], last["usage"]) == ([], usage)


@BOTH
async def test_a_stream_counts_its_tokens_all_the_way_if_asked(serve: Serve, path: str) -> None:
    it = serve()
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, last = await it.events(path, **asked(path, stream_options=options))
    prompt = last["usage"]["prompt_tokens"]
    counted = [event["usage"] for event in events if event["usage"] is not None]
    assert [usage["completion_tokens"] for usage in counted][:3] == [1, 2, 3]
    assert all(usage["prompt_tokens"] == prompt for usage in counted)
    assert all(usage["total_tokens"] == prompt + usage["completion_tokens"] for usage in counted)
    events = await it.events(path, **asked(path, n=2, stream_options={"continuous_usage_stats": True}))
    counts: dict[int, int] = {}
    for event in events:
        (choice,) = event["choices"]
        counts[choice["index"]] = event.get("usage", {}).get("completion_tokens")
    assert counts == {0: 3, 1: 3}


@BOTH
@pytest.mark.parametrize("stop", [None, " two"])
async def test_an_answer_tells_how_much_of_its_prompt_was_not_computed(
    serve: Serve, path: str, stop: str | None
) -> None:
    it = serve(cached=2)
    whole = (await it.post(path, **asked(path, stop=stop))).json()
    *_, last = await it.events(path, **asked(path, stop=stop, stream_options={"include_usage": True}))
    assert whole["usage"]["prompt_tokens_details"] == last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    two = (await serve(cached=2).post("completions", prompt=["abc", "abd"])).json()
    assert two["usage"] == counts(prompt=6, completion=6, cached=4)


@MODES
async def test_each_of_many_prompts_is_a_choice_in_its_place(serve: Serve, stream: bool) -> None:
    it = serve(lambda submit: [ONE] * (submit.prompt[0] + 1) + [EOS])
    body = {"prompt": [[2], [0], [1]], "max_tokens": 9}
    if stream:
        texts = {0: "", 1: "", 2: ""}
        for event in await it.events("completions", **body):
            (choice,) = event["choices"]
            texts[choice["index"]] += choice["text"]
        assert texts == {0: " one one one", 1: " one", 2: " one one"}
    else:
        whole = (await it.post("completions", **body)).json()
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
        assert [choice["text"] for choice in whole["choices"]] == [" one one one", " one", " one one"]
        assert whole["usage"] == counts(prompt=3, completion=9)


# ---------------------------------------------------------------- what reaches the scheduler


async def test_settings_reach_the_scheduler_and_null_is_its_choice(serve: Serve) -> None:
    it = serve()
    given = {
        "temperature": 1, "top_k": 5, "top_p": 0.5, "min_p": 0.25, "seed": -1, "stop_token_ids": [7], "max_tokens": 3,
    }  # fmt: skip
    await it.post("completions", prompt="hello", **given)
    await it.post("completions", prompt="hello", **dict.fromkeys(given))
    await it.post("completions", prompt="hello", top_k=-1)
    set_, unset, off = it.submitted
    assert off.top_k == 0
    assert (set_.temperature, set_.top_k, set_.top_p, set_.min_p) == (1.0, 5, 0.5, 0.25)
    assert (set_.seed, set_.stop_token_ids.tolist(), set_.max_tokens) == (2**64 - 1, [7], 3)
    assert (unset.temperature, unset.top_k, unset.top_p, unset.min_p) == (1.0, 0, 1.0, 0.0)
    assert (unset.stop_token_ids.tolist(), unset.max_tokens) == ([], 16)


@BOTH
@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 2}, 2),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 5}, 3),
        ({"max_completion_tokens": None, "max_tokens": 5}, 5),
    ],
)
async def test_exactly_as_many_tokens_come_as_were_asked_for(
    serve: Serve, path: str, more: dict[str, Any], limit: int
) -> None:
    answer = (await serve(goes_on).post(path, **asked(path, **more))).json()
    assert answer["usage"]["completion_tokens"] == limit


async def test_without_a_limit_a_completion_has_16_tokens_and_a_chat_the_context(serve: Serve) -> None:
    it = serve(goes_on)
    assert (await it.post("completions", prompt="a")).json()["usage"]["completion_tokens"] == 16
    assert (await it.post("chat/completions", messages=[USER])).json()["usage"]["total_tokens"] == CONTEXT


@pytest.mark.parametrize(
    ("content", "rendered"),
    [
        ({"content": None}, ""),
        ({}, ""),
        ({"content": "hi"}, "hi"),
        ({"content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}, "h\ni"),
    ],
    ids=["null", "missing", "text", "parts"],
)
async def test_content_of_every_form_is_rendered_and_nothing_is_no_none(
    serve: Serve, content: dict[str, Any], rendered: str
) -> None:
    it = serve()
    await it.post("chat/completions", messages=[USER, {"role": "assistant", **content}])
    (submit,) = it.submitted
    assert submit.prompt.tolist() == word_text(*WORDS).tokenizer.encode(f"user: hello\nassistant: {rendered}\n")


@BOTH
async def test_bos_comes_once(serve: Serve, path: str) -> None:
    template = ChatTemplate("<s>{{ messages[0].content }}", {"bos_token": "<s>"})
    it = serve(text=ModelText(byte_level_tokenizer(), template), vocab_size=400)
    await it.post(path, **asked(path))
    assert it.submitted[0].prompt.tolist().count(0) == 1
    assert it.submitted[0].prompt[0] == 0


async def test_without_a_chat_template_completions_work_and_chats_are_refused_in_words(serve: Serve) -> None:
    it = serve(text=word_text(*WORDS, template=None))
    assert (await it.post("completions", prompt="a")).status_code == 200
    assert "chat template" in error_of(await it.post("chat/completions", messages=[USER]), 400)["message"]


@BOTH
async def test_fields_that_nobody_knows_and_the_user_are_passed_over(serve: Serve, path: str) -> None:
    body = asked(path, colour="blue", user="me", metadata={"a": [1]}, store=False, model=None)
    assert (await serve().post(path, **body)).status_code == 200


# ---------------------------------------------------------------- what is refused


WRONG_EVERYWHERE: dict[str, list[Any]] = {
    "max_tokens": [0, -1, -2, 1.5, 5.0, "5", True, [], 2**31, 2**63],
    "max_completion_tokens": [0, -1, "3", 2**31, 2**70],
    "temperature": [-1, -0.1, 1e300, "1", True, [1]],
    "top_p": [-0.1, 1.5, "0.5", False],
    "top_k": [-2, 1.5, "5", True, 2**31, 2**70],
    "min_p": [-0.1, 2, "0"],
    "seed": [2**63, 2**64, 2**70, -(2**63) - 1, 1.5, "7", True],
    "stop": ["", [""], ["a", ""], 5, [5], {"a": 1}, ["a"] * 65, [["a"]]],
    "stop_token_ids": [[-1], ["5"], [True], [2**32], [2**65], 5, [1] * 257, [1.0]],
    "ignore_eos": [1, "true", []],
    "stream": [1, "true", "yes"],
    "stream_options": ["yes", {"include_usage": 1}, {"include_usage": "true"}, {"include_obfuscation": True}],
    "model": [5, ["words"], True],
    "n": [0, -1, 129, 10**6, 2**70, True, "1", 1.5],
    "best_of": [0, 2, 10**6, True, "1", 1.5],
    "timeout": [0, -1, 0.0001, 1e10, "5", True, [5]],
    "top_logprobs": [-1, 21, 5, 1.5, "1", True, 2**70],
    "tools": [[{"type": "function", "function": {"name": "f"}}]],
    "response_format": [{"type": "json_object"}, "text"],
    "logit_bias": [
        {"60000": 5},
        {"-1": 5},
        {"abc": 1},
        {"1": 1000},
        {"1": -101},
        {"1": "5"},
        {"1": None},
        {"1": True},
        {"01": 5},
        {"1.0": 5},
        {"": 5},
        {"²": 5},
        {str(2**65): 5},
        {"9" * 5000: 5},
        [1],
        "1",
        5,
        {str(token): 5 for token in range(1025)},
    ],
    "presence_penalty": [2.1, -2.1, "1", True, [1]],
    "frequency_penalty": [2.1, -2.1, "1", True],
    "repetition_penalty": [0, -1, 101, "1", True],
    "min_tokens": [-1, 1.5, "5", True, 2**31, 2**70, 63],
    "allowed_token_ids": [[], [-1], ["5"], [True], [2**65], [VOCABULARY], 5, [1] * 1025],
    "bad_words": ["a", [""], [5], ["b" * 33], [f"{i:03}" for i in range(129)], ["a"] * 1025, ["a" * 20_000]],
    "echo": [0, "yes"],
    "prompt_logprobs": [-1, 21, 2**70, True, "1", 1.5],
}
WRONG_LOGPROBS: dict[str, list[Any]] = {
    "completions": [-1, 21, 2**70, True, False, "1", 1.5],
    "chat/completions": [1, 0, "true", []],
}
WRONG_PROMPTS: list[Any] = [
    "", [""], [], [[]], ["a", ""], [[1], []], None, 5, 1.5, True, {}, [1, "a"], ["a", [1]], [[1], "a"], [None], [1.5],
    [[1.5]], [True], [[True]], [["a"]], [-1], [[-1]], [2**62], [[2**32]], [VOCABULARY], [[1], [VOCABULARY]],
    ["a"] * (MOST_CHOICES + 1), ["a"] * 100_000, "a" * CONTEXT, "a" * 33 * CONTEXT, [1] * CONTEXT,
]  # fmt: skip
WRONG_MESSAGES: list[Any] = [
    [], None, "hello", {}, [5], ["hello"], [[]], [{}], [{"role": "nobody", "content": "a"}], [{"content": "a"}],
    [{"role": "user", "content": 5}], [{"role": "user", "content": True}], [{"role": "user", "content": {"a": 1}}],
    [{"role": "user", "content": ["a"]}], [{"role": "user", "content": [{"type": "image_url"}]}],
    [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"type": "text", "text": None}]}],
    [{"role": "user", "content": "a" * CONTEXT}], [USER] * 5000,
]  # fmt: skip
WRONG = [
    *[(path, name, value) for path in ("completions", "chat/completions") for name, values in WRONG_EVERYWHERE.items()
      for value in values],
    *[(path, "logprobs", value) for path, values in WRONG_LOGPROBS.items() for value in values],
    *[("completions", "prompt", value) for value in WRONG_PROMPTS],
    *[("chat/completions", "messages", value) for value in WRONG_MESSAGES],
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "presence_penalty",
     "frequency_penalty", "min_tokens"],
)  # fmt: skip
def test_numbers_have_the_limits_of_the_message_that_they_go_into(name: str) -> None:
    (declared,) = get_type_hints(Generate, include_extras=True)[name].__metadata__
    kind: Any = declared.kind if isinstance(declared, Maybe) else declared
    high = kind.high
    for value in (kind.low, high):
        (ask,) = parameters(CompletionParameters, {"prompt": "a", "echo": True, name: value}).generates()
        assert getattr(ask, name) == value
    with pytest.raises(ApiError):
        parameters(CompletionParameters, {"prompt": "a", name: high * 2})


def test_lists_have_the_limits_of_the_message_that_they_go_into() -> None:
    hints = get_type_hints(Generate, include_extras=True)
    stops, messages = hints["stop"].__metadata__[0].most, hints["messages"].__metadata__[0].kind.most
    (ask,) = parameters(ChatParameters, {"messages": [USER] * messages, "stop": ["a"] * stops}).generates()
    assert (len(ask.messages or ()), len(ask.stop)) == (messages, stops)
    for more in ({"messages": [USER] * (messages + 1)}, {"messages": [USER], "stop": ["a"] * (stops + 1)}):
        with pytest.raises(ApiError):
            parameters(ChatParameters, more)


@pytest.mark.parametrize(("path", "name", "value"), WRONG, ids=lambda value: f"{value}"[:40])
async def test_what_is_wrong_is_400_before_anything_is_sent_and_names_the_parameter(
    serve: Serve, path: str, name: str, value: Any
) -> None:
    it = serve(goes_on)
    for stream in (False, True):
        body = asked(path, stream=stream, max_tokens=50) | {name: value}
        if name == "stream_options":
            body["stream"] = True
        error = error_of(await it.post(path, **body), 400)
        assert error["type"] == "invalid_request_error"
        assert error["param"] == name
        assert error["code"]
    await it.idle()
    assert it.aborted == [submit.request for submit in it.submitted]
    assert (await it.post(path, **asked(path))).status_code == 200


@pytest.mark.parametrize(
    ("more", "message", "code"),
    [
        (
            {"max_tokens": 0},
            "max_tokens: must be at least 1 without echo or prompt_logprobs, got 0",
            "invalid_value",
        ),
        ({"max_tokens": -1}, "max_tokens: must be at least 0, got -1", "integer_below_min_value"),
        ({"max_tokens": 2**31}, "max_tokens: must be at most 2147483647, got 2147483648", "integer_above_max_value"),
        ({"max_tokens": 5.0}, "max_tokens: must be an integer, got 5.0", "invalid_type"),
        ({"max_tokens": "5"}, 'max_tokens: must be an integer, got "5"', "invalid_type"),
        ({"temperature": -1}, "temperature: must be at least 0, got -1", "decimal_below_min_value"),
        ({"temperature": True}, "temperature: must be a number, got true", "invalid_type"),
        ({"timeout": 0}, "timeout: must be at least 0.001, got 0", "decimal_below_min_value"),
        ({"top_p": 1.5}, "top_p: must be at most 1, got 1.5", "decimal_above_max_value"),
        ({"seed": "é" * 100}, 'seed: must be an integer, got "' + "é" * 59 + " …", "invalid_type"),
        ({"stream": {"a": None}}, 'stream: must be true or false, got {"a": null}', "invalid_type"),
        ({"model": 5}, "model: must be a string, got 5", "invalid_type"),
        ({"stream_options": []}, "stream_options: must be an object, got []", "invalid_type"),
        (
            {"stream_options": {"include_usage": 1}},
            "stream_options.include_usage: must be true or false, got 1",
            "invalid_type",
        ),
        (
            {"stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation: must be false, got true",
            "invalid_type",
        ),
        ({"logprobs": 21}, "logprobs: must be at most 20, got 21", "integer_above_max_value"),
        ({"stream_options": {}}, 'stream_options: only allowed with "stream": true', "invalid_value"),
        ({"stop": ["a", False]}, 'stop: must be a string or a list of strings, got ["a", false]', "invalid_type"),
        ({"stop": ["a", ""]}, "stop[1]: must not be empty", "invalid_value"),
        ({"stop": ""}, "stop: must not be empty", "invalid_value"),
        ({"stop": ["a"] * 65}, "stop: must hold at most 64 strings, got 65", "invalid_value"),
        ({"stop_token_ids": [1, "2"]}, 'stop_token_ids[1]: must be a token id, got "2"', "invalid_type"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]: must be from 0 to 4294967295, got -1", "invalid_value"),
        (
            {"prompt": None},
            "prompt: must be a string, a list of token ids, or a list of either, got null",
            "invalid_type",
        ),
        (
            {"prompt": [1, None]},
            "prompt: must be all strings, all token ids, or all lists of token ids, got [1, null]",
            "invalid_type",
        ),
        ({"prompt": [[1], []]}, "prompt[1]: must not be empty", "invalid_value"),
        ({"prompt": [[1], [2, True]]}, "prompt[1][1]: must be a token id, got true", "invalid_type"),
        ({"prompt": ["a"] * 257}, "prompt: must hold at most 256 prompts, got 257", "invalid_value"),
        ({"suffix": 2}, 'suffix: 2 is not supported; leave it out, or send null or ""', "unsupported_parameter"),
        (
            {"response_format": {"type": "json_object", "strict": True}},
            'response_format: {"type": "json_object", "strict": true} is not supported; leave it out, or send null or '
            '{"type": "text"}',
            "unsupported_parameter",
        ),
        (
            {"response_format": {str(token): 5 for token in range(1000)}},
            'response_format: {"0": 5, "1": 5, "2": 5, "3": 5, "4": 5, "5": 5, "6": 5, "7" … is not supported; leave '
            'it out, or send null or {"type": "text"}',
            "unsupported_parameter",
        ),
        ({"repetition_penalty": 0}, "repetition_penalty: must be at least 0.01, got 0", "decimal_below_min_value"),
        ({"presence_penalty": 3}, "presence_penalty: must be at most 2, got 3", "decimal_above_max_value"),
        ({"logit_bias": {"a": 1}}, 'logit_bias["a"]: must be named by a token id', "invalid_type"),
        ({"logit_bias": {"5": 101}}, 'logit_bias["5"]: must be from -100 to 100, got 101', "invalid_value"),
        ({"min_tokens": 17}, "min_tokens: must be at most 16, as many as there may be, got 17", "invalid_value"),
        ({"model": "gpt-4"}, 'there is no model "gpt-4" here; this server serves "words"', "model_not_found"),
    ],
    ids=lambda value: f"{value}"[:40],
)
async def test_an_error_says_what_is_allowed_and_shows_what_came_as_json(
    serve: Serve, more: dict[str, Any], message: str, code: str
) -> None:
    answer = await serve().post("completions", **({"prompt": "a"} | more))
    error = error_of(answer, 404 if code == "model_not_found" else 400)
    assert (error["message"], error["code"]) == (message, code)


def strict(answer: Any) -> Any:
    """What JSON of the strictest kind holds."""

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is no JSON")

    return json.loads(answer.text, parse_constant=refuse)


async def test_a_completion_tells_log_probabilities_as_openai_does(serve: Serve) -> None:
    it = serve()
    body = asked("completions", logprobs=2)
    told = strict(await it.post("completions", **body))["choices"][0]["logprobs"]
    assert told == {
        "tokens": [" one", " two", "</s>"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [{"A": -1.0, "B": -2.0, token: -0.5} for token in (" one", " two", "</s>")],
        "text_offset": [0, 4, 8],
    }
    events = await it.events("completions", **body)
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert {name: [each for part in parts if part for each in part[name]] for name in told} == told
    assert (await it.events("completions", **asked("completions")))[0]["choices"][0]["logprobs"] is None


async def test_a_chat_tells_log_probabilities_as_openai_does(serve: Serve) -> None:
    it = serve()
    body = asked("chat/completions", logprobs=True, top_logprobs=1)
    told = strict(await it.post("chat/completions", **body))["choices"][0]["logprobs"]
    top = [{"token": "A", "logprob": -1.0, "bytes": [65]}]
    assert told == {
        "content": [
            {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": top}
            for token in (" one", " two", "</s>")
        ],
        "refusal": None,
    }
    events = await it.events("chat/completions", **body)
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert [each for part in parts if part for each in part["content"]] == told["content"]
    alone = strict(await it.post("chat/completions", **asked("chat/completions", logprobs=True)))
    assert [each["top_logprobs"] for each in alone["choices"][0]["logprobs"]["content"]] == [[], [], []]


@BOTH
async def test_log_probabilities_are_strict_json_however_low(
    serve: Serve, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpDriver, "listed", lambda self, submit, token: [(token, -9999.0), (word(0), -9999.0)])
    more = {"logprobs": 1} if path == "completions" else {"logprobs": True, "top_logprobs": 1}
    assert "-9999.0" in (await serve().post(path, **asked(path, **more))).text


async def test_tokens_that_are_pieces_of_a_character_are_told_one_by_one(serve: Serve) -> None:
    it = serve(lambda submit: [*word_text(*WORDS).tokenizer.encode("é", add_special=False), EOS])
    body = asked("chat/completions", logprobs=True)
    events = await it.events("chat/completions", **body)
    told = [each for event in events for each in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert bytes(byte for each in told[:2] for byte in each["bytes"]) == "é".encode()
    assert [each["token"] for each in told[:2]] == ["\ufffd"] * 2
    assert "".join(text_of("chat/completions", event["choices"][0]) for event in events) == "é"


@BOTH
async def test_the_settings_of_logits_reach_the_scheduler(serve: Serve, path: str) -> None:
    it = serve()
    more = {
        "repetition_penalty": 1.2, "presence_penalty": -2, "frequency_penalty": 2, "min_tokens": 2, "max_tokens": 9,
        "logit_bias": {"7": -100, "0": 2.5}, "allowed_token_ids": [7, 8], "bad_words": ["a"],
    }  # fmt: skip
    assert (await it.post(path, **asked(path, **more))).status_code == 200
    (submit,) = it.submitted
    penalties = (submit.repetition_penalty, submit.presence_penalty, submit.frequency_penalty)
    assert (penalties, submit.min_tokens) == ((1.2, -2.0, 2.0), 2)
    lists = (submit.bias_token_ids, submit.bias, submit.allowed_token_ids)
    assert [column.tolist() for column in lists if column is not None] == [[7, 0], [-100.0, 2.5], [7, 8]]
    assert submit.banned_token_ids is not None


@BOTH
@pytest.mark.parametrize(
    "nothing",
    [
        {"logit_bias": {}},
        {"top_logprobs": 0},
        {"bad_words": []},
        {"presence_penalty": 0},
        {"repetition_penalty": 1},
        {"min_tokens": 0},
    ],
    ids=str,
)
async def test_settings_that_ask_for_nothing_adjust_nothing(serve: Serve, path: str, nothing: dict[str, Any]) -> None:
    it = serve()
    for more in (nothing, dict.fromkeys(nothing)):
        assert (await it.post(path, **asked(path, **more))).status_code == 200
    assert not any(is_adjusted(submit) or submit.logprobs is not None for submit in it.submitted)


@pytest.mark.parametrize(("path", "name"), [("completions", "prompt"), ("chat/completions", "messages")])
async def test_what_must_be_given_is_named(serve: Serve, path: str, name: str) -> None:
    error = error_of(await serve().post(path), 400)
    assert (error["message"], error["param"]) == (f"{name}: must be given", name)
    assert error["code"] == "missing_required_parameter"


async def test_of_several_parameters_that_are_not_served_the_first_is_named(serve: Serve) -> None:
    for names in (["suffix", "functions", "tools"], ["tools", "suffix", "functions"]):
        error = error_of(await serve().post("completions", prompt="a", **dict.fromkeys(names, 5)), 400)
        assert error["param"] == names[0]


@pytest.mark.parametrize(
    ("path", "more", "param", "code"),
    [
        ("completions", {"prompt": "a" * CONTEXT}, "prompt", "context_length_exceeded"),
        ("completions", {"prompt": "a" * 33 * CONTEXT}, "prompt", "context_length_exceeded"),
        ("completions", {"prompt": [1] * CONTEXT}, "prompt", "context_length_exceeded"),
        ("completions", {"prompt": [VOCABULARY]}, "prompt", "invalid_value"),
        ("completions", {"stop_token_ids": [VOCABULARY]}, "stop_token_ids", "invalid_value"),
        ("completions", {"stop": "a" * 20_000}, "stop", "invalid_value"),
        ("chat/completions", {"messages": [USER | {"content": "a" * CONTEXT}]}, "messages", "context_length_exceeded"),
        ("chat/completions", {"messages": [USER | {"role": "robot"}]}, "messages", "invalid_value"),
        ("chat/completions", {"stop": "a" * 20_000}, "stop", "invalid_value"),
    ],
    ids=lambda value: f"{value}"[:40],
)
async def test_what_the_core_refuses_names_the_parameter_too(
    serve: Serve, path: str, more: dict[str, Any], param: str, code: str
) -> None:
    error = error_of(await serve().post(path, **asked(path, **more)), 400)
    assert (error["param"], error["code"]) == (param, code)


async def test_of_many_prompts_the_one_that_is_wrong_is_named(serve: Serve) -> None:
    it = serve()
    error = error_of(await it.post("completions", prompt=[[1], [2], [1] * CONTEXT]), 400)
    assert error["message"].startswith(f"prompt[2]: the prompt has {CONTEXT} tokens")
    assert error["param"] == "prompt"
    error = error_of(await it.post("completions", prompt=["a", "b"], stop="a" * 20_000), 400)
    assert error["message"].startswith("the stop strings have 20000 characters")


@pytest.mark.parametrize("name", sorted(NEUTRAL))
async def test_what_is_not_served_yet_is_400_by_name_and_its_neutral_values_are_200(serve: Serve, name: str) -> None:
    it = serve()
    for path in ("completions", "chat/completions"):
        assert error_of(await it.post(path, **asked(path, **{name: "something"})), 400)["param"] == name
        for neutral in (None, *NEUTRAL[name]):
            assert (await it.post(path, **asked(path, **{name: neutral}))).status_code == 200


@BOTH
@pytest.mark.parametrize("value", [True, False, 1, 0])
async def test_special_tokens_are_added_as_ever_or_it_is_refused(serve: Serve, path: str, value: object) -> None:
    usual = path == "completions"
    answer = await serve().post(path, **asked(path, add_special_tokens=value))
    if value is usual:
        assert answer.status_code == 200
    else:
        assert error_of(answer, 400)["param"] == "add_special_tokens"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("return_token_ids", True),
        ("logits_processors", ["a"]),
    ],
)
async def test_what_vllm_serves_and_we_do_not_is_not_passed_over(serve: Serve, name: str, value: object) -> None:
    for path in ("completions", "chat/completions"):
        assert error_of(await serve().post(path, **asked(path, **{name: value})), 400)["param"] == name


async def test_a_salt_goes_along_to_the_scheduler(serve: Serve) -> None:
    driver = serve()
    for path in ("completions", "chat/completions"):
        assert (await driver.post(path, **asked(path, cache_salt="mine"))).status_code == 200
        assert driver.submitted[-1].cache_salt == "mine"
        for wrong in ("", "x" * 257, 5):
            assert error_of(await driver.post(path, **asked(path, cache_salt=wrong)), 400)["param"] == "cache_salt"


async def test_a_priority_goes_along_to_the_scheduler(serve: Serve) -> None:
    driver = serve()
    for path in ("completions", "chat/completions"):
        assert (await driver.post(path, **asked(path))).status_code == 200
        assert driver.submitted[-1].priority == 0
        for given, sent in [(None, 0), (-3, -3), (2**31 - 1, 2**31 - 1)]:
            assert (await driver.post(path, **asked(path, priority=given))).status_code == 200
            assert driver.submitted[-1].priority == sent
        for wrong in ("1", 1.0, True, 2**31, -(2**31) - 1):
            assert error_of(await driver.post(path, **asked(path, priority=wrong)), 400)["param"] == "priority"


@BOTH
async def test_a_priority_that_does_not_count_is_named(serve: Serve, path: str) -> None:
    it = serve(goes_on, fails="priority: 5 only counts with --scheduling-policy priority")
    it.fails_as = Finish.REFUSED
    error = error_of(await it.post(path, **asked(path, priority=5)), 400)
    assert (error["message"], error["param"], error["code"]) == (it.fails, "priority", "invalid_value")
    it.fails = "that: is no parameter"
    assert error_of(await it.post(path, **asked(path)), 400)["param"] is None


async def test_whatever_could_not_be_served_as_it_was_is_counted(serve: Serve) -> None:
    it = serve()
    for wrong in ({"n": 0}, {"prompt": 5}, {"prompt": "a" * CONTEXT}, {"model": "gpt-4"}):
        await it.post("completions", **asked("completions", **wrong))
    await it.client.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
    assert it.it.core.counters["refused"] == 5
    await it.post("completions", prompt="a")
    it.it.core.draining = True
    await it.post("completions", prompt="a")
    assert it.it.core.counters["refused"] == 5


async def test_a_user_goes_along_to_the_scheduler(serve: Serve) -> None:
    driver = serve()
    for path in ("completions", "chat/completions"):
        for given, sent in [(None, ""), ("", ""), ("Ann", "Ann")]:
            assert (await driver.post(path, **asked(path, user=given))).status_code == 200
            assert driver.submitted[-1].user == sent
        for wrong in (5, ["Ann"], "x" * 257):
            assert error_of(await driver.post(path, **asked(path, user=wrong)), 400)["param"] == "user"


async def test_options_of_a_stream_need_one(serve: Serve) -> None:
    answer = await serve().post("completions", prompt="a", stream_options={"include_usage": True})
    assert error_of(answer, 400)["param"] == "stream_options"


@BOTH
@MODES
@pytest.mark.parametrize("where", ["prompt", "content", "stop", "model", "user", "key", "deep"])
async def test_half_a_surrogate_pair_is_refused_anywhere_and_a_whole_one_is_a_character(
    serve: Serve, path: str, stream: bool, where: str
) -> None:
    it = serve()

    def body(text: str) -> str:
        places: dict[str, dict[str, Any]] = {
            "prompt": {"prompt": "X", "messages": [USER | {"name": "X"}]},
            "content": {"messages": [USER | {"content": "X"}], "prompt": ["X"]},
            "stop": {"stop": ["X"]},
            "model": {"model": "words", "also": "X"},
            "user": {"user": "X"},
            "key": {"X": 1},
            "deep": {"metadata": [{"a": ["X"]}]},
        }
        return json.dumps(asked(path, stream=stream) | places[where]).replace("X", text)

    headers = {"content-type": "application/json"}
    bad = await it.client.post(f"/v1/{path}", content=body("\\ud800"), headers=headers)
    assert "surrogate" in error_of(bad, 400)["message"]
    good = await it.client.post(f"/v1/{path}", content=body("\\ud83d\\ude42"), headers=headers)
    assert good.status_code == 200, good.text
    if where == "prompt" and path == "completions":
        assert it.submitted[-1].prompt.tolist() == word_text(*WORDS).tokenizer.encode("🙂")


@BOTH
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "application/json"),
        (b"", "application/json"),
        (b"[]", "application/json"),
        (b"null", "application/json"),
        (b'"a"', "application/json"),
        (b"5", "application/json"),
        (b'{"a": 1} x', "application/json"),
        (b"{'a': 1}", "application/json"),
        (b'{"prompt": "a", "temperature": NaN}', "application/json"),
        (b'{"prompt": "a", "other": Infinity}', "application/json"),
        (b'{"prompt": "a", "other": -Infinity}', "application/json"),
        (b'{"prompt": "a", "messages": [{"role": "user"}], "temperature": 1e999}', "application/json"),
        (b'{"prompt": "a", "other": 9223372036854775808}', "application/json"),
        (b'{"prompt": "a", "other": ' + b"9" * 5000 + b"}", "application/json"),
        ('{"prompt": "é"}'.encode("latin-1"), "application/json"),
        ('{"prompt": "a"}'.encode("utf-16"), "application/json"),
        (b'\xef\xbb\xbf{"prompt": "a"}', "application/json"),
        (b'{"prompt": "\x00"}', "application/json"),
        (b"[" * 500 + b"]" * 500, "application/json"),
        (b'{"prompt": "a", "other": ' + b"[" * 500 + b"]" * 500 + b"}", "application/json"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"prompt": "a"}', "text/plain"),
        (b"prompt=a", "application/x-www-form-urlencoded"),
        (b'{"prompt": "a"}', ""),
        (b'{"prompt": "a", "temperature": 0, "temperature": 1}', "application/json"),
        (b'{"prompt": "a", "other": [{"a": 1, "b": 2, "a": 1}]}', "application/json"),
        (b'{"prompt": "a", "\\ud800": 1, "\\ud800": 1}', "application/json"),
        (b'{"prompt": "a", "other": 1e999}', "application/json"),
        (b'{"' + b"a" * 100_000 + b'": 9223372036854775808}', "application/json"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_body_that_is_no_plain_json_object_is_400(serve: Serve, path: str, body: bytes, kind: str) -> None:
    it = serve()
    answer = await it.client.post(f"/v1/{path}", content=body, headers={"content-type": kind} if kind else {})
    error_of(answer, 400)
    assert (await it.post(path, **asked(path))).status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body must be a JSON object, and is empty"),
        (b'[{"prompt": "a"}, null]', 'the body must be a JSON object, got [{"prompt": "a"}, null]'),
        (
            b"{'a': 1}",
            "the body is not valid JSON: expecting property name enclosed in double quotes at line 1, column 2",
        ),
        (b'{"a": "\n"}', "the body is not valid JSON: invalid control character at line 1, column 8"),
        (b'{"a": 1,\n"b', "the body is not valid JSON: unterminated string starting at line 2, column 1"),
        (b'["\\ud800"]', 'the body must be a JSON object, got ["?"]'),
        (b'{"a": NaN}', "the body is not valid JSON: NaN is no number"),
        (b'{"a": -1e999}', "a: a number is too large"),
        (b'{"seed": 9223372036854775808}', "seed: an integer does not fit into 64 bits"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "an integer in the body does not fit into 64 bits"),
        (b'{"a": {"b": 1, "c": [{}], "b": 1}}', 'the body has "b" twice in one object'),
        (
            b'\xef\xbb\xbf{"prompt": "a"}',
            "the body begins with a byte order mark, which JSON does not have: leave it out",
        ),
        (b'{"prompt": "\xe9"}', "the body is not valid UTF-8: invalid continuation byte at byte 12"),
        (b'{"prompt": ["\\ud800"]}', "prompt: a string has a lone surrogate (U+D800) at position 0"),
        (b"[" * 500 + b"]" * 500, f"the body must be a JSON object, got {'[' * 60} …"),
        (b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}", f"a: nests deeper than {DEEPEST} levels"),
        (b"[" * 100_000, f"the body nests deeper than {DEEPEST} levels"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_with_a_body_is_said_in_words(body: bytes, message: str) -> None:
    with pytest.raises(ApiError) as error:
        object_of(body)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "flood",
    [
        b'"x": [' + b"[]," * 2_700_000 + b"0]",
        b'"x": [' + b"{}," * 2_700_000 + b"0]",
        b'"x": [' + b'"",' * 2_700_000 + b"0]",
        b'"x": [' + b'{"":""},' * 1_000_000 + b"0]",
        b'"x": [' + b'",\\\\",' * 1_200_000 + b"0]",
        b'"x": [' + (b"9" * 4000 + b",") * 2000 + b"0]",
    ],
    ids=lambda flood: flood[:12].decode(),
)
def test_a_body_that_takes_seconds_to_read_is_refused_in_words_before_that(flood: bytes) -> None:
    body = b'{"prompt": "a", ' + flood + b"}"
    began = time.process_time()
    with pytest.raises(ApiError, match=r"entries in lists and objects: send it in parts|does not fit into 64 bits"):
        object_of(body)
    assert time.process_time() - began < 0.3


@pytest.mark.parametrize("room", [0, -1])
@pytest.mark.parametrize(
    ("opening", "entry"),
    [(b'{"x":[', b'"\\\\\\",[{"'), (b'{"x":{', b'"N":",[{\\\\"')],
    ids=["list", "object"],
)
def test_entries_are_counted_to_the_last_and_what_texts_hold_is_not(opening: bytes, entry: bytes, room: int) -> None:
    count = MOST_ENTRIES - 1 - room
    entries = b",".join(entry.replace(b"N", b"%d" % each) for each in range(count))
    body = opening + entries + (b"]}" if opening.endswith(b"[") else b"}}")
    if room < 0:
        with pytest.raises(ApiError) as error:
            object_of(body)
        assert error.value.status == 413
    else:
        assert len(object_of(body)["x"]) == count


@pytest.mark.parametrize("piece", [b"a, ", b'\\",[', b"{\\n\\\\", b", \xc3\xa9"], ids=repr)
def test_a_text_of_8_mib_has_one_entry_and_is_read_at_once(piece: bytes) -> None:
    text = piece * (8 * 2**20 // len(piece))
    began = time.process_time()
    assert list(object_of(b'{"prompt": "' + text + b'"}')) == ["prompt"]
    assert time.process_time() - began < 0.3


def test_a_prompt_of_two_hundred_thousand_token_ids_is_read() -> None:
    body = json.dumps({"prompt": list(range(200_000))}).encode()
    assert len(object_of(body)["prompt"]) == 200_000


async def test_a_body_that_is_said_to_be_something_else_is_told_what_it_must_be(serve: Serve) -> None:
    it = serve()
    for kind, came in (("text/plain; charset=utf-8", '"text/plain; charset=utf-8"'), ("", "none")):
        headers = {"content-type": kind} if kind else {}
        error = error_of(await it.client.post("/v1/completions", content=b"{}", headers=headers), 400)
        assert error["message"] == f"the body must be JSON, with content-type: application/json, got {came}"


async def test_a_body_that_is_packed_is_told_that_it_must_not_be(serve: Serve) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = await serve().client.post("/v1/completions", content=b"\x1f\x8b\x08\x00", headers=headers)
    assert error_of(answer, 400)["message"] == ('the body must come as it is, without content-encoding, got "gzip"')


async def test_a_content_type_may_name_its_charset_and_some_nesting_is_allowed(serve: Serve) -> None:
    it = serve()
    nested = b"[" * (DEEPEST - 1) + b"]" * (DEEPEST - 1)  # in the object
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    body = b'{"prompt": "a", "other": ' + nested + b"}"
    assert (await it.client.post("/v1/completions", content=body, headers=headers)).status_code == 200


async def test_a_body_over_the_limit_is_413_said_or_not(serve: Serve) -> None:
    it = serve(config=ServeConfig(max_body_mib=0.001))
    error = error_of(await it.post("completions", prompt="a" * 2000), 413)
    assert error["message"] == "the body is larger than the 0.001 MiB that --max-body-mib allows"

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    headers = {"content-type": "application/json"}
    error_of(await it.client.post("/v1/completions", content=pieces(), headers=headers), 413)


async def test_paths_methods_and_models_that_are_not_there_are_said_in_the_same_shape(serve: Serve) -> None:
    it = serve()
    others = "/metrics, /tokenize, /detokenize, /reset_prefix_cache"
    timeline = "/timeline, /timeline/live, /timeline/status, /timeline/file, /timeline/start, /timeline/stop"
    texts = "/v1/completions, /v1/chat/completions, /v1/responses"
    health = "/v1/models, /health, /ready, /version"
    there = f"there are {texts}, {health}, {others}, {timeline}, /openapi.json"
    message = error_of(await it.client.post("/chat/completions"), 404)["message"]
    assert message == f"POST /chat/completions: there is no such path here; {there}"
    error_of(await it.client.get("/v1/" + "nothing" * 1000), 404)
    error_of(await it.client.get("/"), 404)
    error_of(await it.client.get("/docs"), 404)
    wrong_method = error_of(await it.client.get("/v1/completions"), 405)["message"]
    assert wrong_method == "GET /v1/completions: method not allowed, only POST is"
    error_of(await it.client.post("/health"), 405)
    for path in ("completions", "chat/completions"):
        error = error_of(await it.post(path, **asked(path, model="gpt-4")), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error_of(await it.client.get("/v1/models/gpt-4"), 404)["code"] == "model_not_found"


async def test_with_a_key_only_those_who_bring_it_are_served_but_health_is_open(serve: Serve) -> None:
    it = serve(config=ServeConfig(api_key="secret"))
    for brought in (None, b"Bearer wrong", b"secret", "Bearer é".encode()):
        raw = {} if brought is None else {b"authorization": brought}
        for request in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/nothing")):
            answer = await it.client.request(*request, headers=raw)
            assert error_of(answer, 401)["code"] == "invalid_api_key"
    for scheme in ("bearer", "BEARER"):
        answer = await it.client.get("/v1/models", headers={"authorization": f"{scheme} secret"})
        assert answer.status_code == 200
    answer = await it.client.get("/v1/models", headers={"authorization": "Bearer secret"})
    assert answer.status_code == 200
    assert (await it.client.get("/health")).status_code == 200


async def test_pages_of_sites_that_are_named_may_ask_and_no_others(serve: Serve) -> None:
    page, other = "https://chat.example", "https://other.example"
    it = serve(config=ServeConfig(allowed_origin=(page, "http://localhost:3000"), api_key="secret"))
    allowed, expose = "access-control-allow-origin", "access-control-expose-headers"
    beforehand = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for path in ("/v1/chat/completions", "/v1/models"):
        answer = await it.client.options(path, headers={"origin": page, **beforehand})
        assert (answer.status_code, answer.headers[allowed]) == (200, page)
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()
        assert (await it.client.options(path, headers={"origin": other, **beforehand})).headers.get(allowed) is None
    key = {"authorization": "Bearer secret"}
    for stream in (False, True):
        body = asked("chat/completions", stream=stream)
        answer = await it.client.post("/v1/chat/completions", json=body, headers={"origin": page, **key})
        assert (answer.status_code, answer.headers[allowed], answer.headers[expose]) == (200, page, "x-request-id")
    refused = await it.client.get("/v1/models", headers={"origin": page})
    assert (refused.status_code, refused.headers[allowed]) == (401, page), "a page must see why"
    assert allowed not in (await it.client.get("/v1/models", headers={"origin": other, **key})).headers
    reset = await it.client.post("/reset_prefix_cache", headers={"origin": page, **key})
    assert error_of(reset, 403)["message"] == "pages of other sites may not reset the prefix cache"


async def test_unless_sites_are_named_browsers_let_none_ask(serve: Serve) -> None:
    answer = await serve().client.get("/v1/models", headers={"origin": "https://chat.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origin", ["", "chat.example", "https://chat.example/", "https://Chat.example", "https://a/b"])
def test_what_no_browser_calls_a_site_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="--allowed-origin is what a browser says of a page"):
        ServeConfig(allowed_origin=(origin,))


# ---------------------------------------------------------------- errors on the way


@BOTH
async def test_an_error_in_a_stream_is_an_event_and_the_stream_ends_as_others_do(serve: Serve, path: str) -> None:
    it = serve(goes_on, fails="the model's output was not a number (NaN)", fails_after=2)
    *events, last = await it.events(path, **asked(path))
    assert "".join(text_of(path, event["choices"][0]) for event in events) == " one two"
    assert last["error"].keys() == {"message", "type", "param", "code"}
    assert (last["error"]["message"], last["error"]["type"]) == (it.fails, "server_error")


@BOTH
@MODES
async def test_an_error_before_the_first_token_has_a_status(serve: Serve, path: str, stream: bool) -> None:
    it = serve(goes_on, fails="computing it failed", fails_after=0)
    assert error_of(await it.post(path, **asked(path, stream=stream)), 500)["message"] == it.fails


@BOTH
@MODES
async def test_a_full_queue_is_429_and_says_when_to_come_back(serve: Serve, path: str, stream: bool) -> None:
    it = serve(goes_on, fails="9 requests wait already, as many as may: try later")
    it.fails_as = Finish.BUSY
    answer = await it.post(path, **asked(path, stream=stream))
    error = error_of(answer, 429)
    assert answer.headers["retry-after"] == "1"
    assert (error["message"], error["type"], error["code"]) == (it.fails, "rate_limit_error", "rate_limit_exceeded")


@MODES
async def test_a_prompt_that_is_refused_takes_the_others_of_its_request_along(serve: Serve, stream: bool) -> None:
    it = serve(goes_on)
    error_of(await it.post("completions", prompt=[[1, 2], [3], [VOCABULARY]], max_tokens=60, stream=stream), 400)
    await it.idle()
    assert it.submitted
    assert it.aborted == [submit.request for submit in it.submitted]


async def test_a_timeout_goes_along_to_the_scheduler(serve: Serve) -> None:
    it = serve()
    for path in ("completions", "chat/completions"):
        for given, told in ((2.5, 2.5), (3, 3.0), (0.001, 0.001), (None, 0.0)):
            assert (await it.post(path, **asked(path, timeout=given))).status_code == 200
            assert it.submitted[-1].timeout == pytest.approx(told)


@BOTH
@pytest.mark.parametrize(("stream", "after"), [(False, 0), (False, 2), (True, 0)])
async def test_an_answer_that_is_not_complete_in_time_is_504_and_nobody_is_to_try_again(
    serve: Serve, path: str, stream: bool, after: int
) -> None:
    it = serve(goes_on, fails="it is late", fails_after=after)
    it.fails_as = Finish.TIMEOUT
    answer = await it.post(path, **asked(path, stream=stream, timeout=2))
    error = error_of(answer, 504)
    assert error["message"] == "the answer was not complete within its timeout"
    assert (error["type"], error["param"], error["code"]) == ("server_error", "timeout", "timeout")
    assert answer.headers["x-should-retry"] == "false"


@BOTH
async def test_a_stream_whose_time_is_up_ends_with_an_error_behind_all_of_its_text(serve: Serve, path: str) -> None:
    it = serve(goes_on, fails="it is late", fails_after=3)
    it.fails_as = Finish.TIMEOUT
    *events, last = await it.events(path, **asked(path, timeout=2, stop="STOP!"))
    assert "".join(text_of(path, event["choices"][0]) for event in events) == " one two STOP"
    assert all(event["choices"][0]["finish_reason"] is None for event in events)
    assert last["error"]["code"] == "timeout"


class Text(str):
    """A text whose end can be seen."""

    __slots__ = ("__weakref__",)


@MODES
async def test_the_text_of_a_prompt_is_kept_until_it_is_asked_and_no_longer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    texts: list[weakref.ref[Text]] = []
    kept: list[int] = []

    def generates(self: CompletionParameters) -> list[Generate]:
        prompts = [Text(prompt) for prompt in self.prompt]
        texts.extend(map(weakref.ref, prompts))
        return [self.generate(index, 9, prompt=prompt) for index, prompt in enumerate(prompts)]

    def script(submit: Submit) -> list[int]:
        kept.append(sum(text() is not None for text in texts))
        return ends_by_itself(submit)

    monkeypatch.setattr(CompletionParameters, "generates", generates)
    assert (await serve(script).post("completions", prompt=["a", "b", "c"], stream=stream)).status_code == 200
    assert kept == [3, 2, 1]


@BOTH
async def test_nothing_new_is_taken_when_it_shuts_down(serve: Serve, path: str) -> None:
    it = serve()
    it.it.core.draining = True
    for answer in (await it.post(path, **asked(path)), await it.client.get("/v1/models")):
        error_of(answer, 503)
        assert int(answer.headers["retry-after"]) > 0
    for path in ("/health", "/ready"):
        state = await it.client.get(path)
        assert (state.status_code, state.json()["reason"]) == (503, "the server is shutting down")
        assert state.headers["retry-after"] == "1"


async def test_ready_is_whether_a_request_would_be_served_where_health_is_whether_all_is_well(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = serve(schedulers=2, attach=False, config=ServeConfig(api_key="secret"))
    assert (await it.client.get("/ready")).json()["status"] == "unavailable"
    it.it.attach(1)
    ready, health = [await it.client.get(path) for path in ("/ready", "/health")]
    assert (ready.status_code, ready.json()) == (200, {"status": "ok"})
    assert (health.status_code, health.json()["reason"]) == (503, "the scheduler at scheduler 0 is not attached")
    monkeypatch.setattr("frontend.http.gate.MOST_CALLS", 0)
    full = await it.client.get("/ready")
    assert (full.status_code, "overloaded" in full.json()["reason"]) == (503, True)


async def test_before_a_scheduler_is_there_everything_is_503(serve: Serve) -> None:
    it = serve(attach=False)
    error_of(await it.post("completions", prompt="a"), 503)
    error_of(await it.client.get("/v1/models"), 503)
    health = await it.client.get("/health")
    assert health.status_code == 503
    assert "scheduler 0 is not attached" in health.json()["reason"]


async def test_more_requests_than_can_be_held_are_told_to_come_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.http.gate.MOST_CALLS", 1)
    it = serve(goes_on)
    first, second = await asyncio.gather(*[it.post("completions", prompt="a") for _ in range(2)])
    assert first.status_code == 200
    assert "overloaded" in error_of(second, 503)["message"]
    assert (await it.post("completions", prompt="a")).status_code == 200


async def test_bodies_are_parsed_one_by_one_when_the_process_says_so(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = serve()
    parsed: list[bytes] = []

    def parse(body: bytes) -> dict[str, Any]:
        parsed.append(body)
        return object_of(body)

    monkeypatch.setattr("frontend.http.app.object_of", parse)
    with monkeypatch.context() as away:
        away.setattr(it, "_turn", lambda: None)
        asking = [asyncio.create_task(it.post("completions", prompt="a")) for _ in range(3)]
        for _ in range(20):
            await it.idle()
        for done in range(3):
            assert len(parsed) == done
            assert it.callers.do_next()
        assert len(parsed) == 3
    assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200] * 3


async def test_those_whose_bodies_do_not_arrive_count_too_until_their_time_is_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.http.gate.MOST_CALLS", 1)
    monkeypatch.setattr("frontend.http.body.BODY_SECONDS", 0.2)
    it = serve()

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    headers = {"content-type": "application/json"}
    slow = asyncio.create_task(it.client.post("/v1/completions", content=never(), headers=headers))
    await asyncio.sleep(0.05)
    assert "overloaded" in error_of(await it.post("completions", prompt="a"), 503)["message"]
    assert (await it.client.get("/v1/models")).status_code == 200, "to list the models takes nothing"
    assert "did not arrive" in error_of(await slow, 408)["message"]
    assert (await slow).headers["connection"] == "close"
    assert (await it.post("completions", prompt="a")).status_code == 200


async def test_the_version_is_told(serve: Serve) -> None:
    assert (await serve().client.get("/version")).json()["version"]


async def test_every_path_is_in_the_published_schema_with_its_methods_and_no_other_is(serve: Serve) -> None:
    it = serve()
    document = (await it.client.get("/openapi.json")).json()
    told = {(path, method) for path, methods in document["paths"].items() for method in methods}
    routes = [route for route in it.app.routes if isinstance(route, Route) and route.include_in_schema]
    served = {(route.path.replace(":path", ""), method.lower()) for route in routes for method in route.methods or ()}
    assert told == served


async def test_the_published_schema_says_what_may_be_asked_for_that_is_not_served(serve: Serve) -> None:
    schemas = (await serve().client.get("/openapi.json")).json()["components"]["schemas"]
    for kind in (CompletionParameters, ChatParameters):
        told = schemas[kind.__name__]["properties"]
        known = {**NEUTRAL, **kind.neutral}
        assert {name: told[name]["enum"] for name in known} == {name: [None, *known[name]] for name in known}
        assert told.keys() == known.keys() | kind.model_fields.keys()
