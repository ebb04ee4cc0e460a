"""Chats render as transformers renders them, and what cannot be rendered is refused in words."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.chat import ROLES, ChatTemplate
from frontend.text_error import TextError
from frontend.tokenizer import TextTokenizer
from tests.tiny_tokenizers import byte_level_tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WITH_BOS = "{{ bos_token }}{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"

# Each leans on another corner of the dialect.
DIALECT = {
    "chatml": CHATML,
    "bos": WITH_BOS,
    "blocks on lines of their own": """
    {% for message in messages %}
        {% if message.role == 'user' %}
<user>{{ message.content | trim }}</user>
        {% else %}
<other>{{ message.content }}</other>
        {% endif %}
    {% endfor %}
""",
    "generation": (
        "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{% set x = message.content %}"
        "{{ x }}{% endgeneration %}{{ x }}|{{ eos_token }}{% else %}{{ message.content }}{% endif %}{% endfor %}"
    ),
    "json": (
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}"
        "{{ {'b': '<é>', 'a': 1} | tojson(sort_keys=true, separators=(',', ':')) }}"
        "{{ 'é' | tojson(ensure_ascii=true) }}"
    ),
    "loop control": (
        "{% for message in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{% if message.role == 'system' %}"
        "{% continue %}{% endif %}{{ message.content }}{% endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(count=0) %}{% for m in messages %}{% set ns.count = ns.count + m.content | length %}"
        "{% endfor %}{{ ns.count }}{{ dict(a=1) }}"
    ),
    "undefined": (
        "{{ nothing }}{% if tools %}tools{% endif %}{{ tools is none }}{{ documents is defined }}{{ unk_token }}"
    ),
    "macro": (
        "{% macro turn(m) -%} <{{ m.role }}> {{ m['content'].split('\n')[0] }} {%- endmacro %}{{ turn(messages[1]) }}"
    ),
    "slices": (
        "{% for m in messages[::-1] %}{{ m.content.upper()[:3] }}{% if not loop.last %}-{% endif %}{% endfor %}\n"
    ),
}

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi <b>there</b> & 'all'\nline two 🙂 "},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]


def transformers_render(template: str, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), **SPECIAL)  # type: ignore[no-untyped-call]
    text = tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("name", DIALECT)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_templates_render_as_in_transformers(name: str, add_generation_prompt: bool) -> None:
    ours = ChatTemplate(DIALECT[name], SPECIAL).render(CHAT, add_generation_prompt=add_generation_prompt)
    assert ours == transformers_render(DIALECT[name], CHAT, add_generation_prompt)


@given(
    st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text(max_size=20)), min_size=1, max_size=4)
)
def test_any_chat_renders_as_in_transformers(turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": content} for role, content in turns]
    assert ChatTemplate(CHATML, SPECIAL).render(messages) == transformers_render(CHATML, messages, True)


def test_the_default_model_gets_its_own_system_prompt(default_model_path: Path) -> None:
    from checkpoint.tokenizer import load_text

    text = load_text(default_model_path)
    rendered = ChatTemplate(text.chat_template, text.special_tokens).render([{"role": "user", "content": "Hi"}])
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
@pytest.mark.parametrize("name", ["chatml", "bos", "json"])
def test_missing_content_renders_as_nothing(name: str, message: dict[str, Any]) -> None:
    template = ChatTemplate(DIALECT[name], SPECIAL)
    chat = [{"role": "user", "content": "Hi"}, message, {"role": "user", "content": "still there?"}]
    rendered = template.render(chat)
    assert rendered == template.render([chat[0], {"role": "assistant", "content": ""}, chat[2]])
    assert "None" not in rendered
    assert "null" not in rendered


def test_other_keys_reach_the_template_unless_they_are_none() -> None:
    template = ChatTemplate("{{ messages[0].name }}{% if 'tool_calls' in messages[0] %}calls{% endif %}")
    assert template.render([{"role": "user", "content": "", "name": "Ann", "tool_calls": None}]) == "Ann"


def test_text_parts_are_joined_by_line_ends() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    template = ChatTemplate(WITH_BOS, SPECIAL)
    assert template.render([{"role": "user", "content": parts}]) == "<s>[user]one\ntwo"
    assert template.render([{"role": "user", "content": []}]) == "<s>[user]"


def test_the_messages_are_left_as_they_were() -> None:
    message = {"role": "user", "content": None, "name": None}
    ChatTemplate(CHATML).render([message])
    assert message == {"role": "user", "content": None, "name": None}


def test_every_role_renders_and_developer_means_system_to_templates_that_do_not_know_it() -> None:
    for role in ROLES:
        shown = "system" if role == "developer" else role
        assert ChatTemplate(WITH_BOS, SPECIAL).render([{"role": role, "content": "x"}]) == f"<s>[{shown}]x"
    knows = ChatTemplate("{% if messages[0].role == 'developer' %}yes{% endif %}")
    assert knows.render([{"role": "developer", "content": "x"}]) == "yes"


def test_bos_comes_once_when_template_and_tokenizer_both_add_it() -> None:
    tokenizer = TextTokenizer(byte_level_tokenizer())
    assert tokenizer.encode("hello").count(0) == 1
    ids = ChatTemplate(WITH_BOS, SPECIAL).encode([{"role": "user", "content": "hello"}], tokenizer)
    assert ids[0] == 0
    assert ids.count(0) == 1


def test_a_model_without_template_refuses_chats_in_words() -> None:
    with pytest.raises(TextError, match="no chat template"):
        ChatTemplate(None).render(CHAT)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages is empty"),
        ("hello", 'messages: must be a list, got "hello"'),
        ({"role": "user"}, "messages: must be a list"),
        (["hello"], r'messages\[0\]: must be an object, got "hello"'),
        ([{"content": "x"}], r"messages\[0\].role: .*, got null"),
        (
            [{"role": "robot", "content": "x"}],
            r"messages\[0\].role: must be one of system, developer, .*, got \"robot\"",
        ),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\].role: .*, got \[\"user\"\]"),
        ([{"role": "user", "content": 7}], r"messages\[0\].content: must be a string, .*, got 7"),
        ([{"role": "user", "content": {"type": "text"}}], r"messages\[0\].content: .*, got {\"type\": \"text\"}"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\].content\[0\]: must be an object"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\].type: must be .*, got \"image_url\""),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], r"content\[0\].text: .*, got null"),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
    ],
)
def test_bad_messages_are_refused_in_words(messages: Any, words: str) -> None:
    with pytest.raises(TextError, match=words) as error:
        ChatTemplate(WITH_BOS, SPECIAL).render(messages)
    assert error.value.at_fault == "messages"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refused these messages"),
        ("{{ messages[0].nothing.at_all }}", "refused these messages"),
        ("{{ messages.append(1) }}", "refused these messages"),
        ("{{ ''.__class__.__mro__ }}", "refused these messages"),
        ("{% for i in range(10**9) %}{% endfor %}", "refused these messages"),
        ("{{ 1 / 0 }}", "refused these messages"),
    ],
)
def test_what_a_template_objects_to_is_said(source: str, words: str) -> None:
    with pytest.raises(TextError, match=words):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


def test_a_broken_template_is_met_before_any_chat() -> None:
    with pytest.raises(TextError, match="broken at line 2"):
        ChatTemplate("fine\n{% if %}")


def test_the_clock_of_a_template_can_be_set() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 11, 29))
    assert template.render([{"role": "user", "content": ""}]) == "29 Nov 2026"
