"""Clients that were made for OpenAI's servers: they take this one for one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import openai
import pytest

from protocol.messages import Submit
from tests.http_server import HttpServer
from tests.stub_scheduler import StubScheduler
from tests.word_model import write_word_model
from tests.word_tokenizer import EOS, word

WORDS = ("Ġone", "Ġtwo", "Ġthree")
TEXT = " one two three"
USER: Any = {"role": "user", "content": "hello"}
LOGPROBS: Any = ["message.output_text.logprobs"]
TOP = [("A", -1.0), ("B", -2.0)]
"""What the stub takes for the likeliest tokens."""

pytestmark = pytest.mark.processes


def script(submit: Submit) -> list[int]:
    """Three words; for ever if the end token is ignored."""
    words = [word(index) for index in range(len(WORDS))]
    return words * 1000 if submit.ignore_eos else [*words, EOS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("clients")
    model = write_word_model(folder / "model", *WORDS)
    with (
        StubScheduler(f"ipc://{folder / 'scheduler'}", script, max_model_len=4096, eos=(EOS,)) as scheduler,
        HttpServer(folder, model, scheduler.address) as server,
    ):
        yield server


@pytest.fixture
def client(server: HttpServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        yield client


def likeliest(entries: Any) -> list[list[tuple[str, float]]]:
    return [[(top.token, top.logprob) for top in entry.top_logprobs] for entry in entries]


# ---------------------------------------------------------------- OpenAI's own


def test_openais_client_reads_a_response_and_sends_it_back(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="stub", input="hello", instructions="be brief", include=LOGPROBS, top_logprobs=2, metadata={"a": "b"}
    )
    assert (response.output_text, response.status, response.metadata) == (TEXT, "completed", {"a": "b"})
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + 4
    (part,) = response.to_dict()["output"][0]["content"]  # type: ignore[index]
    told = part["logprobs"]
    assert [entry["token"] for entry in told] == [" one", " two", " three", "</s>"]
    assert [[(top["token"], top["logprob"]) for top in entry["top_logprobs"]] for entry in told] == [TOP] * 4
    again: Any = [USER, *response.output, USER]
    assert client.responses.create(model="stub", input=again).output_text == TEXT


def test_openais_client_follows_the_events_of_a_response(client: openai.OpenAI) -> None:
    with client.responses.create(model="stub", input=[USER], stream=True) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    with client.responses.stream(model="stub", input="hello", include=LOGPROBS, top_logprobs=2) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == TEXT
    assert all(TEXT.startswith(snapshot) for snapshot in snapshots)
    assert final.output_text == text == TEXT
    with client.responses.stream(model="stub", input="hello", max_output_tokens=2) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_openais_client_raises_what_goes_wrong_with_a_response(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="nothing is kept here") as error:
        client.responses.create(model="stub", input="hello", previous_response_id="resp_1")
    assert (error.value.param, error.value.code) == ("previous_response_id", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError, match="gpt-4") as gone:
        client.responses.create(model="gpt-4", input="hello")
    assert gone.value.code == "model_not_found"
    late = {"ignore_eos": True, "timeout": 0.1}
    with (
        client.responses.create(model="stub", input="hello", stream=True, extra_body=late) as events,
        pytest.raises(openai.APIError, match="within its timeout"),
    ):
        list(events)


def test_openais_client_sees_log_probabilities_and_every_choice(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="stub", messages=[USER], logprobs=True, top_logprobs=2, n=2)
    assert [choice.message.content for choice in chat.choices] == [TEXT] * 2
    assert all(choice.logprobs and likeliest(choice.logprobs.content) == [TOP] * 4 for choice in chat.choices)
    plain = client.completions.create(model="stub", prompt="a", logprobs=2, max_tokens=2)
    assert plain.choices[0].logprobs is not None
    assert plain.choices[0].logprobs.top_logprobs == [{**dict(TOP), token: -0.5} for token in (" one", " two")]
    with client.chat.completions.stream(model="stub", messages=[USER], stream_options={"include_usage": True}) as it:
        final = it.get_final_completion()
    assert final.choices[0].message.content == TEXT
    assert final.usage is not None
    assert final.usage.completion_tokens == 4


async def test_openais_asynchronous_client_does_it_all_at_once(server: HttpServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:

        async def whole() -> str | None:
            return (await client.chat.completions.create(model="stub", messages=[USER])).choices[0].message.content

        async def streamed() -> str:
            pieces = await client.completions.create(model="stub", prompt="a", stream=True)
            return "".join([piece.choices[0].text async for piece in pieces])

        async def response() -> str:
            return (await client.responses.create(model="stub", input="hello")).output_text

        async def events() -> str:
            async with client.responses.stream(model="stub", input="hello") as stream:
                return (await stream.get_final_response()).output_text

        assert set(await asyncio.gather(whole(), streamed(), response(), events())) == {TEXT}
        with pytest.raises(openai.BadRequestError, match="temperature: must be at least 0"):
            await client.responses.create(model="stub", input="hello", temperature=-1)


# ---------------------------------------------------------------- benchmarks


@pytest.mark.parametrize("path", ["completions", "chat/completions", "responses"])
def test_what_guidellm_sends_is_answered_with_as_many_tokens_as_it_wants(server: HttpServer, path: str) -> None:
    """Its own probes first; then its body for a stream of 5 tokens, of which it reads the counts."""
    assert server.client.get("/health").status_code == 200
    (model,) = server.client.get("/v1/models").json()["data"]
    counted = {"include_usage": True, "continuous_usage_stats": True}
    part = {"text": "hello", "type": "input_text" if path == "responses" else "text"}
    message = {"role": "user", "content": [part]}
    bodies: dict[str, dict[str, Any]] = {
        "completions": {"prompt": "hello", "max_tokens": 5, "stream_options": counted},
        "chat/completions": {"messages": [message], "max_completion_tokens": 5, "stream_options": counted},
        "responses": {"input": [message], "max_output_tokens": 5, "instructions": "be brief"},
    }
    answer = server.post(path, model=model["id"], stream=True, stop=None, ignore_eos=True, **bodies[path])
    assert answer.status_code == 200, answer.text
    counts = '"output_tokens":5,' if path == "responses" else '"completion_tokens":5,'
    assert counts in answer.text.split("data: ")[-1 if path == "responses" else -2]


# ---------------------------------------------------------------- LangChain


@pytest.fixture
async def langchain(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Make LangChain's clients of OpenAI's chats, which must not look anything up elsewhere."""
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    module = pytest.importorskip("langchain_openai")
    tiktoken = pytest.importorskip("tiktoken")

    def refuse(*_: object) -> None:
        raise AssertionError("it would load a tokenizer from elsewhere")

    monkeypatch.setattr(tiktoken, "get_encoding", refuse)
    monkeypatch.setattr(tiktoken, "encoding_for_model", refuse)
    where = {"model": "stub", "base_url": f"{server.url}/v1", "api_key": "-", "max_retries": 0}
    with openai.DefaultHttpxClient() as whole:
        async with openai.DefaultAsyncHttpxClient() as other:
            yield partial(module.ChatOpenAI, **where, http_client=whole, http_async_client=other)


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
async def test_langchain_invokes_streams_and_batches(langchain: Any, responses: bool) -> None:
    chat = langchain(use_responses_api=responses, stream_usage=True)
    answer = chat.invoke("hello")
    assert answer.text == TEXT
    assert answer.usage_metadata["output_tokens"] == 4
    pieces = list(chat.stream([("system", "be brief"), ("user", "hello")]))
    assert "".join(piece.text for piece in pieces) == TEXT
    assert sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata) == 4
    assert [each.text for each in chat.batch(["a", "b", "c"])] == [TEXT] * 3
    assert (await chat.ainvoke("hello")).text == TEXT
    assert "".join([piece.text async for piece in chat.astream("hello")]) == TEXT


async def test_langchains_settings_are_heeded_and_its_mistakes_are_openais_errors(langchain: Any) -> None:
    chat = langchain(logprobs=True, top_logprobs=2, stop=[" three"])
    told = chat.invoke("hello")
    assert told.text == " one two"
    tokens = told.response_metadata["logprobs"]["content"]
    assert [[(top["token"], top["logprob"]) for top in entry["top_logprobs"]] for entry in tokens] == [TOP] * 3
    cut = langchain(max_tokens=1).invoke("hello")
    assert (cut.text, cut.response_metadata["finish_reason"]) == (" one", "length")
    (choices,) = langchain(n=2, temperature=1).generate([[told]]).generations
    assert [each.text for each in choices] == [TEXT] * 2
    with pytest.raises(openai.BadRequestError, match="temperature: must be at least 0"):
        langchain(temperature=-1).invoke("hello")
    with pytest.raises(openai.BadRequestError, match="tools"):
        langchain().bind_tools([{"type": "function", "function": {"name": "f", "parameters": {}}}]).invoke("hello")
