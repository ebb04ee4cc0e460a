"""POST /v1/responses: a chat in the words of OpenAI's newer API, whole and as typed events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from openai.types.responses import Response

from protocol.messages import Finish, Submit
from tests.http_driver import HttpDriver
from tests.word_tokenizer import EOS, word, word_text

WORDS = ("Ġone", "Ġtwo", "ĠSTOP", "Ġthree")
ONE, TWO, STOP, THREE = (word(i) for i in range(len(WORDS)))
VOCABULARY, CONTEXT = 300, 128
LOGPROBS = "message.output_text.logprobs"
BE = [{"type": "input_text", "text": "be"}, {"type": "input_text", "text": ""}]
MODES = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

OPENING = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
CLOSING = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
DELTA = "response.output_text.delta"


def ends_by_itself(submit: Submit) -> list[int]:
    return [ONE, TWO, EOS]


def goes_on(submit: Submit) -> list[int]:
    return [ONE, TWO, STOP, THREE] * CONTEXT


Serve = Callable[..., HttpDriver]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Make drivers; nothing of a request may be left in them at the end."""
    drivers: list[HttpDriver] = []

    def make(script: Callable[[Submit], list[int]] = ends_by_itself, **settings: Any) -> HttpDriver:
        text = settings.pop("text", None) or word_text(*WORDS)
        drivers.append(HttpDriver(text, script, vocab_size=VOCABULARY, max_model_len=CONTEXT, **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.check()
        await driver.client.aclose()


async def events(it: HttpDriver, **body: Any) -> list[dict[str, Any]]:
    """What the events of a stream hold; they must be named by their type and numbered from 0."""
    answer = await it.post("responses", **({"input": "hello", "stream": True} | body))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *told, nothing = answer.text.split("\n\n")
    assert nothing == ""
    contents = []
    for number, each in enumerate(told):
        name, data = each.split("\n")
        contents.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {contents[-1]['type']}"
        assert contents[-1]["sequence_number"] == number
    return contents


async def whole(it: HttpDriver, **body: Any) -> dict[str, Any]:
    answer = await it.post("responses", **({"input": "hello"} | body))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def text_of(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    return str(part["text"])


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what is another each time."""
    fixed = response | {"id": "resp_", "created_at": 0}
    return fixed | {"output": [item | {"id": "msg_"} for item in response["output"]]}


async def test_a_response_has_openais_shape(serve: Serve) -> None:
    told = await whole(serve(cached=2))
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": " one two"}
    (item,) = told["output"]
    assert item.keys() == {"id", "type", "status", "role", "content"}
    assert (item["type"], item["role"], item["status"], item["content"]) == (
        "message",
        "assistant",
        "completed",
        [part],
    )
    assert told["id"].startswith("resp_")
    assert item["id"].startswith("msg_")
    assert (told["object"], told["status"], told["model"]) == ("response", "completed", "words")
    assert told["usage"] == {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }


@MODES
async def test_a_response_is_what_openais_own_types_say_it_is(serve: Serve, stream: bool) -> None:
    it = serve()
    told = (await events(it))[-1]["response"] if stream else await whole(it)
    told["usage"]["input_tokens_details"]["cache_write_tokens"] = 0  # which nobody here counts
    response = Response.model_validate(told, strict=True)
    assert response.output_text == " one two"
    assert (response.model_extra or {}).keys() <= {"store"}, "the types lack what their service answers"


@pytest.mark.parametrize(
    ("script", "more", "text", "status"),
    [
        (ends_by_itself, {}, " one two", "completed"),
        (goes_on, {"stop": " STOP"}, " one two", "completed"),
        (goes_on, {"max_output_tokens": 2}, " one two", "incomplete"),
        (goes_on, {"max_output_tokens": 100_000}, None, "incomplete"),
        (ends_by_itself, {"include": [LOGPROBS], "top_logprobs": 2}, " one two", "completed"),
        (lambda _: [EOS], {}, "", "completed"),
    ],
    ids=["end token", "stop string", "limit", "context", "log probabilities", "nothing"],
)
async def test_events_come_in_order_and_add_up_to_the_whole_response(
    serve: Serve, script: Callable[[Submit], list[int]], more: dict[str, Any], text: str | None, status: str
) -> None:
    it = serve(script)
    told = await whole(it, **more)
    came = await events(it, **more)
    kinds = [event["type"] for event in came]
    deltas = [event for event in came if event["type"] == DELTA]
    assert kinds == [*OPENING, *[DELTA] * len(deltas), *CLOSING, f"response.{status}"]
    assert told["status"] == status
    assert told["incomplete_details"] == ({"reason": "max_output_tokens"} if status == "incomplete" else None)
    if text is not None:
        assert text_of(told) == text
    created, in_progress, added, part_added = came[: len(OPENING)]
    done, part_done, item_done, last = came[-4:]
    assert without_ids(last["response"]) == without_ids(told)
    assert created["response"] == in_progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    assert {event["response"]["id"] for event in (created, last)} == {last["response"]["id"]}
    (item,) = last["response"]["output"]
    (part,) = item["content"]
    assert item_done["item"] == item
    assert added["item"] == item | {"status": "in_progress", "content": []}
    assert part_added["part"] == part | {"text": "", "logprobs": []}
    assert part_done["part"] == part
    assert (done["text"], done["logprobs"]) == (part["text"], part["logprobs"])
    assert "".join(event["delta"] for event in deltas) == part["text"]
    assert [each for event in deltas for each in event["logprobs"]] == part["logprobs"]
    assert all(event["item_id"] == item["id"] for event in (part_added, *deltas, done, part_done))
    assert all(event["output_index"] == 0 for event in came[2:-1])


async def test_log_probabilities_come_if_they_are_to_be_included(serve: Serve) -> None:
    it = serve()
    told = await whole(it, include=[LOGPROBS], top_logprobs=1)
    top = [{"token": "A", "logprob": -1.0, "bytes": [65]}]
    assert told["output"][0]["content"][0]["logprobs"] == [
        {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": top}
        for token in (" one", " two", "</s>")
    ]
    assert told["top_logprobs"] == 1
    assert (await whole(it))["output"][0]["content"][0]["logprobs"] == []
    await whole(it, include=["reasoning.encrypted_content"])
    assert [submit.logprobs for submit in it.submitted] == [1, None, None]


@pytest.mark.parametrize(
    ("said", "rendered"),
    [
        ("hi", "user: hi\n"),
        ([{"role": "user", "content": "hi"}], "user: hi\n"),
        ([{"role": "developer", "content": "be brief", "type": "message"}], "system: be brief\n"),
        (
            [
                {"role": "system", "content": BE},
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {
                    "id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
                    "content": [{"type": "output_text", "text": "ho", "annotations": [], "logprobs": []}],
                },
                {"role": "user", "content": []},
            ],
            "system: be\n\nuser: hi\nassistant: ho\nuser: \n",
        ),
    ],
    ids=["text", "message", "developer", "conversation"],
)  # fmt: skip
@pytest.mark.parametrize("instructions", [None, "", "rhyme"])
async def test_input_of_every_form_is_a_chat_that_begins_with_the_instructions(
    serve: Serve, said: Any, rendered: str, instructions: str | None
) -> None:
    it = serve()
    told = await whole(it, input=said, instructions=instructions)
    before = f"system: {instructions}\n" if instructions else ""
    (submit,) = it.submitted
    expected = word_text(*WORDS).tokenizer.encode(before + rendered, add_special=False)
    assert submit.prompt.tolist() == expected
    assert told["instructions"] == instructions


async def test_an_answer_can_be_sent_back_as_input(serve: Serve) -> None:
    it = serve()
    first = await whole(it)
    user = {"role": "user", "content": "again"}
    assert (await whole(it, input=[user, *first["output"], user]))["status"] == "completed"


async def test_settings_reach_the_scheduler_and_are_told_again(serve: Serve) -> None:
    it = serve()
    given = {"temperature": 1.5, "top_p": 0.5, "max_output_tokens": 3, "metadata": {"a": "b"}, "user": "Ann"}
    told = await whole(it, **given, parallel_tool_calls=False, tool_choice="none")
    assert {name: told[name] for name in given} == given
    assert (told["parallel_tool_calls"], told["tool_choice"]) == (False, "none")
    unset = await whole(it, **dict.fromkeys(given))
    assert {name: unset[name] for name in given} == dict.fromkeys(given) | {"metadata": {}}
    both, neither = it.submitted
    assert (both.temperature, both.top_p, both.max_tokens, both.user) == (1.5, 0.5, 3, "Ann")
    assert neither.max_tokens == CONTEXT - len(neither.prompt)


@pytest.mark.parametrize("store", [True, False, None])
async def test_nothing_is_stored_and_the_response_says_so(serve: Serve, store: bool | None) -> None:
    told = await whole(serve(), store=store)
    assert (told["store"], told["background"], told["previous_response_id"]) == (False, False, None)


NEUTRAL: dict[str, list[Any]] = {
    "background": [False],
    "include": [[], ["file_search_call.results", LOGPROBS]],
    "max_tokens": [],
    "metadata": [{}, {"k" * 64: "v" * 512}],
    "n": [1],
    "previous_response_id": [],
    "reasoning": [{}, {"effort": "none"}, {"effort": None, "summary": None}],
    "stream_options": [{}, {"include_obfuscation": False}],
    "text": [{}, {"format": {"type": "text"}}, {"format": {"type": "text"}, "verbosity": "medium"}],
    "tool_choice": ["auto", "none"],
    "tools": [[]],
    "truncation": ["disabled"],
}
"""What asks for nothing that is not served, beside null."""

WRONG: dict[str, list[tuple[Any, str]]] = {
    "background": [(True, "answers are waited for")],
    "conversation": [("conv_1", "nothing is kept here")],
    "include": [
        (["everything"], 'include[0]: must be one of message.output_text.logprobs, '),
        ("all", 'include: must be a list of strings, got "all"'),
        ([["a"]], "include[0]: must be one of"),
    ],
    "input": [
        (None, "input: must be a string or a list of messages, got null"),
        (5, "input: must be a string or a list of messages, got 5"),
        ([], "input: must not be empty"),
        (["hi"], 'input[0]: must be an object, got "hi"'),
        ([{"role": "user", "content": "a"}, {"type": "function_call_output", "call_id": "c", "output": "x"}],
         'input[1].type: must be "message", which is all that is read here, got "function_call_output"'),
        ([{"role": "tool", "content": "a"}], "input[0].role: must be one of user, assistant, system, developer"),
        ([{"content": "a"}], "input[0].role: must be one of"),
        ([{"role": ["user"], "content": "a"}], "input[0].role: must be one of"),
        ([{"role": "user"}], "input[0].content: must be a string or a list of text parts, got null"),
        ([{"role": "user", "content": ["a"]}], 'input[0].content[0]: must be an object, got "a"'),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
         'input[0].content[0].type: must be "input_text" or "output_text", which is all that is read here, got '
         '"input_image"'),
        ([{"role": "user", "content": [{"type": "input_text", "text": 5}]}],
         "input[0].content[0].text: must be a string, got 5"),
        ("a" * CONTEXT, "the prompt has"),
    ],
    "instructions": [(["be brief"], 'instructions: must be a string, got ["be brief"]')],
    "max_completion_tokens": [(5, "it is called max_output_tokens here")],
    "max_output_tokens": [(0, "max_output_tokens: must be at least 1, got 0"), ("5", "must be an integer")],
    "max_tokens": [(5, "max_tokens: 5 is not supported: it is called max_output_tokens here; leave it")],
    "metadata": [
        ([1], "metadata: must be an object of strings, got [1]"),
        ({"a": 1}, 'metadata["a"]: must be a string, got 1'),
        ({"k" * 65: "v"}, "must have a name of at most 64 characters, got 65"),
        ({"k": "v" * 513}, 'metadata["k"]: must have at most 512 characters, got 513'),
        ({str(number): "" for number in range(17)}, "metadata: must hold at most 16 entries, got 17"),
    ],
    "n": [(2, "n: 2 is not supported; leave it out, or send null or 1")],
    "previous_response_id": [
        ("resp_1", 'previous_response_id: "resp_1" is not supported: nothing is kept here, so all that was said must '
         "come as input; leave it out, or send null"),
    ],
    "prompt": [({"id": "pmpt_1"}, "is not supported")],
    "reasoning": [
        ({"effort": "high"}, 'reasoning.effort: must be null, for there is no reasoning here apart from the answer'),
        ({"summary": "auto"}, "reasoning.summary: must be null"),
        ("high", "reasoning: must be an object"),
    ],
    "stream_options": [
        ({"include_obfuscation": True}, "stream_options.include_obfuscation: must be false, got true"),
        ({"continuous_usage_stats": True}, "continuous_usage_stats has no place in the events of a response"),
    ],
    "text": [
        ({"format": {"type": "json_schema", "name": "a"}}, 'text.format: must be {"type": "text"} or null'),
        ({"verbosity": "low"}, 'text.verbosity: must be "medium" or null, got "low"'),
        ("json", 'text: must be an object, got "json"'),
    ],
    "tool_choice": [("required", 'null or "none" or "auto"'), ({"type": "function", "name": "f"}, "not supported")],
    "tools": [([{"type": "web_search"}], "tools: ")],
    "top_logprobs": [(2, f'top_logprobs: only allowed with "include": ["{LOGPROBS}"]'), (21, "must be at most 20")],
    "truncation": [("auto", 'truncation: "auto" is not supported: what is too long is refused')],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [(name, *each) for name, values in WRONG.items() for each in values],
    ids=lambda value: f"{value}"[:40],
)
async def test_what_is_not_served_is_400_in_words_and_names_the_parameter(
    serve: Serve, name: str, value: Any, message: str
) -> None:
    it = serve()
    for stream in (False, True) if name != "stream_options" else (True,):
        answer = await it.post("responses", **({"input": "hello", "stream": stream} | {name: value}))
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert message in error["message"]
        assert (error["type"], error["param"]) == ("invalid_request_error", name)
        assert error["code"]
    assert not it.submitted


@pytest.mark.parametrize("name", sorted(NEUTRAL))
async def test_what_asks_for_nothing_else_is_answered(serve: Serve, name: str) -> None:
    it = serve()
    for value in (None, *NEUTRAL[name]):
        assert (await it.post("responses", input="hello", stream=True, **{name: value})).status_code == 200


@MODES
async def test_an_error_before_the_first_token_has_a_status(serve: Serve, stream: bool) -> None:
    it = serve(goes_on, fails="computing it failed")
    answer = await it.post("responses", input="hello", stream=stream)
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, it.fails)


async def test_an_error_in_a_stream_is_an_event_and_the_response_has_failed(serve: Serve) -> None:
    it = serve(goes_on, fails="it is late", fails_after=2)
    it.fails_as = Finish.TIMEOUT
    *told, error, last = await events(it)
    assert [event["type"] for event in told] == [*OPENING, DELTA, DELTA]
    flat = {name: error[name] for name in ("code", "message", "param")}
    assert flat == {"code": "timeout", "message": "the answer was not complete within its timeout", "param": "timeout"}
    assert (error["type"], error["error"]) == ("error", flat | {"type": "server_error"})
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": flat["message"]}
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert text_of(last["response"]) == " one two"
