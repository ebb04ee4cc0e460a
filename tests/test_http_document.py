"""docs/http.md is true: what its examples ask is answered as it says, by a model that says the same words."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http_driver import HttpDriver
from tests.word_tokenizer import EOS, word, word_text

DOCUMENT = (Path(__file__).parent.parent / "docs" / "http.md").read_text(encoding="utf-8")
BASE = "http://127.0.0.1:8000"
MODEL, CONTEXT = "SmolLM2-135M-Instruct", 8192

EXAMPLES = re.findall(r"^```\n(curl .*?)^```\n^```(?:json)?\n(.*?)^```\n", DOCUMENT, re.DOTALL | re.MULTILINE)
"""Each request with its answer."""

OF = ("prompt", "completion", "input", "output", "total")
"""What tokens are counted of."""


def objects(answer: str) -> list[dict[str, Any]]:
    """Return the JSON objects of an answer, or of the events of a stream."""
    lines = [line.removeprefix("data: ") for line in answer.splitlines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def words_of(answer: str) -> tuple[list[str], bool]:
    """Return the pieces of text in an answer, and whether the model ended it by itself."""
    told = objects(answer)
    choices = [choice for each in told for choice in each.get("choices", ())]
    texts = [str(choice.get("text") or choice.get("message", {}).get("content")) for choice in choices]
    texts += [str(part["text"]) for each in told for item in each.get("output", ()) for part in item["content"]]
    ended = any(choice["finish_reason"] == "stop" for choice in choices)
    return texts, ended or any(each.get("status") == "completed" for each in told)


def alike(answer: Any) -> Any:
    """Return an answer without what is another each time: ids, times, and how many tokens another model makes of it."""
    if isinstance(answer, list):
        return [alike(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    fixed = {key: alike(value) for key, value in answer.items()}
    for key in ("id", "created", "created_at", *(f"{of}_tokens" for of in OF)):
        if key in fixed and (key != "id" or fixed.keys() & {"choices", "output", "content"}):
            fixed[key] = type(fixed[key])
    return fixed


async def asked(driver: HttpDriver, command: str) -> httpx.Response:
    """Send what a curl command would."""
    parts = shlex.split(command.replace("\\\n", ""))
    assert parts.pop(0) == "curl"
    headers, body, url = {}, None, ""
    while parts:
        match parts.pop(0):
            case "-H":
                name, _, value = parts.pop(0).partition(": ")
                headers[name] = value
            case "-d":
                body = parts.pop(0).encode()
            case "-N":
                pass
            case part:
                url = part
    assert url.startswith(BASE)
    method = "GET" if body is None else "POST"
    return await driver.client.request(method, url.removeprefix(BASE), headers=headers, content=body)


def test_there_is_an_example_for_whatever_may_be_asked() -> None:
    asked_for = " ".join(command for command, _ in EXAMPLES)
    paths = ("health", "v1/models", "v1/completions", "v1/chat/completions", "v1/responses")
    assert all(f"{BASE}/{path}" in asked_for for path in paths)
    assert '"stream": true' in asked_for
    assert any('{"error"' in answer for _, answer in EXAMPLES)
    section = DOCUMENT.partition("\n## Examples\n")[2].partition("\n## ")[0]
    assert len(EXAMPLES) == section.count("```\ncurl ")


@pytest.mark.parametrize(("command", "answer"), EXAMPLES, ids=[command[5:60] for command, _ in EXAMPLES])
async def test_an_example_is_answered_as_the_document_says(command: str, answer: str) -> None:
    texts, ended = words_of(answer)
    text = word_text(*[text.replace(" ", "Ġ").replace("\n", "Ċ") for text in texts])
    tokens = [*map(word, range(len(texts))), *([EOS] if ended else [])]
    it = HttpDriver(text, lambda _: tokens, vocab_size=1000, max_model_len=CONTEXT, attach=False)
    it.it.attach(model=MODEL)
    it.it.said_to_scheduler()
    came = await asked(it, command)
    assert alike(objects(came.text)) == alike(objects(answer))
    assert came.text.count("[DONE]") == answer.count("[DONE]")
    assert came.status_code == (400 if '{"error"' in answer else 200)
    it.check()
    await it.client.aclose()
