"""The published schema is true: whatever is made from it is answered as it says, and what it excludes is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pydantic import ValidationError

from frontend.http.errors import ApiError
from frontend.http.openapi import OPERATIONS, PATH, Operation
from frontend.http.openapi import document as document_of
from frontend.http.parameters import ChatParameters, CompletionParameters, Parameters
from frontend.http.response_parameters import ResponseParameters
from frontend.http.unsupported import refuse_unsupported
from tests import test_http, test_responses
from tests.http_driver import HttpDriver
from tests.http_server import HttpServer
from tests.stub_scheduler import StubScheduler
from tests.test_http_process import WORDS, script
from tests.word_model import write_word_model
from tests.word_tokenizer import EOS, word_text

schemathesis = pytest.importorskip("schemathesis")
jsonschema_rs = pytest.importorskip("jsonschema_rs")
requests = pytest.importorskip("requests")

WITH_BODIES = [each for each in OPERATIONS if each.body is not None]
EXAMPLES = 4
"""Random bodies for an operation, of those that it takes and of those that it does not; long runs have more."""

BEYOND_A_SCHEMA = {"context_length_exceeded", "invalid_value", "model_not_found"}
"""Codes of what a schema does not say: what fits the model, and which parameters fit each other."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("openapi")
    model = write_word_model(folder / "model", *WORDS)
    with (
        StubScheduler(f"ipc://{folder / 'scheduler'}", script, max_model_len=512, eos=(EOS,)) as scheduler,
        HttpServer(folder, model, scheduler.address) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def document(server: HttpServer) -> dict[str, Any]:
    return dict(server.client.get(PATH).json())


def examples(document: dict[str, Any], operation: Operation, *, good: bool) -> Any:
    """What an operation may be asked, or what it may not, at random."""
    mode = schemathesis.GenerationMode.POSITIVE if good else schemathesis.GenerationMode.NEGATIVE
    schema = schemathesis.openapi.from_dict(document)
    return schema[operation.path][operation.method.upper()].as_strategy(generation_mode=mode)


def whole_numbers(value: Any) -> Any:
    """A value in which whole numbers have no decimal point: JSON Schema takes 5.0 for an integer, which we do not."""
    if isinstance(value, dict):
        return {name: whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [whole_numbers(each) for each in value]
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if whole else value


def random(count: int) -> settings:
    most = 50 * count if settings.get_current_profile_name() == "long" else count
    return settings(max_examples=most, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)


def events_of(document: dict[str, Any], operation: Operation) -> Any:
    """What validates an event of an operation's streams."""
    kinds: list[Any] = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in operation.events]
    return jsonschema_rs.validator_for({"anyOf": kinds or [False], "components": document["components"]})


USER = test_http.USER
COUNTED = {"include_usage": True, "continuous_usage_stats": True}
FULL: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"prompt": ["ab", "cd"], "n": 2, "logprobs": 2, "stream_options": COUNTED, "echo": True}),
    ("completions", {"prompt": "abc", "prompt_logprobs": 1}),
    ("chat/completions", {"messages": [USER], "prompt_logprobs": 0}),
    ("chat/completions", {"messages": [USER], "stream_options": COUNTED, "logprobs": True, "top_logprobs": 2}),
    (
        "responses",
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
            "include": [test_responses.LOGPROBS], "top_logprobs": 2, "max_output_tokens": 3, "instructions": "be brief",
            "metadata": {"a": "b"}, "user": "Ann", "temperature": 0.5,
        },
    ),
]  # fmt: skip
"""Bodies whose answers have all that there may be."""

UNFIT = [("cache_salt", ""), ("cache_salt", "x" * 257), ("user", "x" * 257), ("user", 5), ("priority", 2**31)]


def component(name: str) -> Any:
    """What validates a value by a named part of the schema."""
    components = document_of("1")["components"]
    return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": components})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "body"), FULL, ids=[path for path, _ in FULL])
async def test_an_answer_that_has_it_all_is_as_the_schema_says(path: str, body: dict[str, Any], stream: bool) -> None:
    it = HttpDriver(word_text(*test_http.WORDS), test_http.goes_on, vocab_size=300, max_model_len=128)
    operation = next(each for each in OPERATIONS if each.path == f"/v1/{path}")
    assert operation.body is not None
    only = "prompt_logprobs" if stream else "stream_options"
    body = {name: value for name, value in body.items() if name != only}
    component(operation.body.__name__).validate(body)
    for fails in ("", "computing it failed"):
        it.fails, it.fails_after = fails, 2
        answer = await it.post(path, stream=stream, **body)
        if stream:
            events = events_of(document_of("1"), operation)
            for line in answer.text.splitlines():
                if line.startswith("data: {"):
                    events.validate(json.loads(line.removeprefix("data: ")))
        else:
            assert isinstance(operation.answer, type)
            component("Error" if fails else operation.answer.__name__).validate(answer.json())
    await it.client.aclose()


def bodies() -> Iterator[tuple[type[Parameters], dict[str, Any]]]:
    """The bodies that tests of each endpoint have for what is wrong, and for what asks for nothing."""
    for path, name, value in test_http.WRONG:
        kind = CompletionParameters if path == "completions" else ChatParameters
        yield kind, test_http.asked(path) | {name: value}
    for name, value in UNFIT:
        yield ChatParameters, {"messages": [USER], name: value}
    for name, told in test_responses.WRONG.items():
        for value, _ in told:
            yield ResponseParameters, {"input": "hello", name: value}
    for name, values in test_responses.NEUTRAL.items():
        for value in (None, *values):
            yield ResponseParameters, {"input": "hello", name: value}


def is_taken(kind: type[Parameters], body: dict[str, Any]) -> bool:
    """Whether each parameter by itself is as it must be."""
    try:
        refuse_unsupported(body, kind.neutral)
        kind.model_validate(body)
    except (ApiError, ValidationError):
        return False
    return True


def test_the_schema_excludes_what_is_refused_for_itself_and_nothing_else() -> None:
    schemas: dict[type[Parameters], Any]
    schemas = {kind: component(kind.__name__) for kind in (CompletionParameters, ChatParameters, ResponseParameters)}
    seen = []
    for kind, body in bodies():
        if repr(whole_numbers(body)) != repr(body):
            continue
        taken = is_taken(kind, body)
        seen.append(taken)
        if not taken or body.get("messages", [USER]) == [USER]:  # others are for the chat template
            assert schemas[kind].is_valid(body) == taken, body
    assert seen.count(True) > 20
    assert seen.count(False) > 200


def unchecked(operation: Operation) -> list[Any]:
    """Checks that are not for an operation: no schema says all that is refused, and no collector is here."""
    schemathesis.checks.load_all_checks()
    names = ["positive_data_acceptance"]
    if operation.path.startswith("/timeline"):
        names.append("not_a_server_error")
    return [schemathesis.checks.CHECKS.get_one(name) for name in names]


@pytest.mark.processes
@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each.body is None], ids=lambda it: str(it.path))
def test_what_needs_no_body_is_answered_as_the_document_says(
    server: HttpServer, document: dict[str, Any], operation: Operation
) -> None:
    schema = schemathesis.openapi.from_dict(document)
    for model in ("stub", "another") if "{model}" in operation.path else ("",):
        parameters = {"model": model} if model else {}
        case = schema[operation.path][operation.method.upper()].Case(path_parameters=parameters)
        with requests.Session() as session:
            case.call_and_validate(server.url, session=session, excluded_checks=unchecked(operation))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("good", [True, False], ids=["good", "bad"])
@pytest.mark.parametrize("operation", WITH_BODIES, ids=lambda operation: str(operation.path))
def test_random_bodies_are_answered_as_the_document_says(
    server: HttpServer, document: dict[str, Any], operation: Operation, good: bool
) -> None:
    """No failure of the server, no status and no shape that is not announced; what is excluded is refused."""
    events = events_of(document, operation)
    with requests.Session() as session:

        @random(EXAMPLES)
        @given(case=examples(document, operation, good=good))
        def ask(case: Any) -> None:
            case.body = whole_numbers(case.body)
            answer = case.call_and_validate(server.url, session=session, excluded_checks=unchecked(operation))
            if good and answer.status_code == 400:
                assert answer.json()["error"]["code"] in BEYOND_A_SCHEMA, answer.text
            if answer.text.startswith(("data:", "event:")):
                for line in answer.text.splitlines():
                    if line.startswith("data: {"):
                        events.validate(json.loads(line.removeprefix("data: ")))

        ask()
