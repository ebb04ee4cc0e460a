"""/tokenize says what a prompt would become, and /detokenize is the way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from frontend.chat import ChatTemplate
from frontend.config import ServeConfig
from frontend.model_text import ModelText
from frontend.reading import MOST_CHARACTERS_A_TOKEN
from tests.http_driver import HttpDriver
from tests.test_http import USER, error_of
from tests.tiny_tokenizers import byte_level_tokenizer
from tests.word_tokenizer import EOS

TOKENIZER = byte_level_tokenizer()
BOS = 0
"""The id of `<s>`."""
SIZE = TOKENIZER.get_vocab_size()
CONTEXT = 64
TEMPLATE = "<s>{{ messages[0].content }}{% if add_generation_prompt %} >{% endif %}"

Serve = Callable[..., HttpDriver]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Make drivers; nothing of a request may be left in them at the end."""
    drivers: list[HttpDriver] = []

    def make(template: str | None = TEMPLATE, **settings: Any) -> HttpDriver:
        text = ModelText(TOKENIZER, ChatTemplate(template, {"bos_token": "<s>"}))
        settings.setdefault("vocab_size", SIZE)
        drivers.append(HttpDriver(text, lambda _: [EOS], max_model_len=CONTEXT, **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.check()
        await driver.client.aclose()


async def ask(it: HttpDriver, path: str, **body: Any) -> httpx.Response:
    return await it.client.post(f"/{path}", json=body)


async def tokens(it: HttpDriver, **body: Any) -> list[int]:
    answer = await ask(it, "tokenize", **body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told.keys() == {"count", "max_model_len", "tokens", "token_strs"}
    assert (told["count"], told["max_model_len"]) == (len(told["tokens"]), CONTEXT)
    return list(told["tokens"])


async def test_the_tokens_are_those_that_the_scheduler_would_get(serve: Serve) -> None:
    it = serve()
    for path, body in (("completions", {"prompt": "hello fox"}), ("chat/completions", {"messages": [USER]})):
        told = await tokens(it, **body)
        await it.post(path, **body, max_tokens=1)
        assert it.submitted[-1].prompt.tolist() == told
        assert told.count(BOS) == 1


async def test_special_tokens_and_the_generation_prompt_are_as_they_are_asked_for(serve: Serve) -> None:
    it = serve()
    plain = await tokens(it, prompt="fox", add_special_tokens=False)
    assert await tokens(it, prompt="fox") == await tokens(it, prompt="fox", add_special_tokens=None) == [BOS, *plain]
    chat = await tokens(it, messages=[USER])
    assert await tokens(it, messages=[USER], add_special_tokens=True) == [BOS, *chat]
    closed = await tokens(it, messages=[USER], add_generation_prompt=False)
    assert chat[: len(closed)] == closed != chat
    assert await tokens(it, prompt="", add_special_tokens=False) == []


async def test_names_of_tokens_come_if_asked_for(serve: Serve) -> None:
    it = serve()
    told = (await ask(it, "tokenize", prompt="a fox", return_token_strs=True)).json()
    assert told["token_strs"] == [TOKENIZER.id_to_token(token) for token in told["tokens"]]
    assert (await ask(it, "tokenize", prompt="a fox")).json()["token_strs"] is None


async def test_a_prompt_may_be_longer_than_the_context_but_not_beyond_all_measure(serve: Serve) -> None:
    it = serve()
    assert len(await tokens(it, prompt="x " * CONTEXT)) > CONTEXT
    longest = max(map(len, TOKENIZER.get_vocab()))
    most = min(longest, MOST_CHARACTERS_A_TOKEN) * CONTEXT
    error = error_of(await ask(it, "tokenize", prompt="x" * (most + 1)), 400)
    assert error["message"].startswith(f"the prompt has {most + 1} characters, at most {most} are read")
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    await tokens(it, prompt="x" * most)


@pytest.mark.parametrize("text", ["hello world", " é 🙂 naïve", "<s>fox</s>", "", "two  spaces\n\nlines"])
async def test_detokenize_is_the_way_back(serve: Serve, text: str) -> None:
    it = serve()
    ids = await tokens(it, prompt=text, add_special_tokens=False)
    answer = await ask(it, "detokenize", tokens=ids, model="words")
    assert (answer.status_code, answer.json()) == (200, {"prompt": text})


async def test_ids_that_the_tokenizer_does_not_know_but_the_model_has_are_no_text(serve: Serve) -> None:
    it = serve(vocab_size=SIZE + 10)
    ids = await tokens(it, prompt="fox", add_special_tokens=False)
    assert (await ask(it, "detokenize", tokens=[SIZE + 3, *ids])).json() == {"prompt": "fox"}


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("tokenize", {}, "prompt", "prompt: either it or messages must be given"),
        ("tokenize", {"prompt": "a", "messages": [USER]}, "prompt", "prompt: either it or messages must be given"),
        ("tokenize", {"prompt": ["a"]}, "prompt", 'prompt: must be a string, got ["a"]'),
        ("tokenize", {"messages": []}, "messages", "messages: must not be empty"),
        ("tokenize", {"messages": [{"role": "robot"}]}, "messages", "messages[0].role: must be one of"),
        ("tokenize", {"messages": [USER], "tools": [{}]}, "tools", "tools: [{}] is not supported"),
        (
            "tokenize",
            {"prompt": "a", "add_special_tokens": 1},
            "add_special_tokens",
            "add_special_tokens: must be true",
        ),
        (
            "tokenize",
            {"prompt": "a", "add_generation_prompt": False},
            "add_generation_prompt",
            "add_generation_prompt: only allowed with messages",
        ),
        ("tokenize", {"messages": [USER], "continue_final_message": True}, "continue_final_message", "continue_final_"),
        ("detokenize", {}, "tokens", "tokens: must be given"),
        ("detokenize", {"tokens": "fox"}, "tokens", 'tokens: must be a list of token ids, got "fox"'),
        ("detokenize", {"tokens": [1, -1]}, "tokens", "tokens[1]: must be from 0"),
        ("detokenize", {"tokens": [1, 2.0]}, "tokens", "tokens[1]: must be a token id, got 2.0"),
        (
            "detokenize",
            {"tokens": [SIZE]},
            "tokens",
            f"tokens: token id {SIZE} is not below the vocabulary's size of {SIZE}",
        ),
    ],
    ids=str,
)
async def test_what_is_wrong_is_400_and_named(
    serve: Serve, path: str, body: dict[str, Any], param: str, message: str
) -> None:
    error = error_of(await ask(serve(), path, **body), 400)
    assert error["param"] == param
    assert error["message"].startswith(message)


@pytest.mark.parametrize(("path", "body"), [("tokenize", {"prompt": "a"}), ("detokenize", {"tokens": [5]})])
async def test_models_keys_and_states_are_as_everywhere(serve: Serve, path: str, body: dict[str, Any]) -> None:
    it = serve(config=ServeConfig(api_key="secret"))
    error_of(await ask(it, path, **body), 401)
    it.client.headers["authorization"] = "Bearer secret"
    assert error_of(await ask(it, path, **body, model="gpt-4"), 404)["code"] == "model_not_found"
    error_of(await it.client.get(f"/{path}"), 405)
    it.it.core.draining = True
    error_of(await ask(it, path, **body), 503)
    error_of(await ask(serve(attach=False), path, **body), 503)


async def test_without_a_chat_template_a_chat_is_refused_in_words(serve: Serve) -> None:
    error = error_of(await ask(serve(template=None), "tokenize", messages=[USER]), 400)
    assert "chat template" in error["message"]


@pytest.mark.parametrize(("path", "body"), [("tokenize", {"prompt": "fox"}), ("detokenize", {"tokens": [5]})])
async def test_texts_are_read_one_by_one_when_the_process_says_so(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    it = serve()
    with monkeypatch.context() as away:
        away.setattr(it, "_turn", lambda: None)
        asking = [asyncio.create_task(ask(it, path, **body)) for _ in range(2)]
        for done in range(3):
            for _ in range(20):
                await it.idle()
            assert sum(task.done() for task in asking) == done
            assert it.callers.do_next() is (done < 2)
    assert [(await task).status_code for task in asking] == [200, 200]
