"""Tokenizers come out of model folders and GGUF files with the ids that the model was trained on."""

import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from checkpoint.errors import CheckpointError
from checkpoint.gguf_tokenizer import build_tokenizer, special_tokens
from checkpoint.tokenizer import load_text
from frontend.text_error import TextError
from frontend.tokenizer import TextTokenizer
from tests.tiny_tokenizers import HARD_TEXTS, byte_level_tokenizer

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def metadata(pre: str | None = "gpt-2", **changes: Any) -> dict[str, Any]:
    """Describe the tiny byte-level tokenizer as a GGUF file would; a change to None removes the entry."""
    state = json.loads(byte_level_tokenizer().to_str())
    tokens = sorted(state["model"]["vocab"], key=state["model"]["vocab"].__getitem__)
    tokens += ["<tool call>", "[PAD]"]
    types = [CONTROL, CONTROL] + [NORMAL] * (len(tokens) - 4) + [USER_DEFINED, UNUSED]
    entries = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": [" ".join(merge) for merge in state["model"]["merges"]],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    entries |= changes
    return {f"tokenizer.ggml.{key}": value for key, value in entries.items() if value is not None}


def save_folder(folder: Path, tokenizer: Tokenizer | None = None, **config: Any) -> Path:
    (tokenizer or byte_level_tokenizer()).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def cuts(pre: str, text: str) -> list[str]:
    """Return the pieces that a named split makes of an ASCII text."""
    splitter = build_tokenizer(metadata(pre)).pre_tokenizer
    assert splitter is not None
    return [text[a:b] for _, (a, b) in splitter.pre_tokenize_str(text)]


@pytest.fixture(scope="module")
def default_tokenizer(default_model_path: Path) -> Tokenizer:
    return load_text(default_model_path).tokenizer


def test_the_default_model_splits_digits_one_by_one(default_tokenizer: Tokenizer) -> None:
    assert default_tokenizer.encode("a\n\n1.").ids == [81, 1116, 33, 30]


def test_the_default_model_knows_its_special_tokens_template_and_size(default_model_path: Path) -> None:
    text = load_text(default_model_path)
    assert text.special_tokens["bos_token"] == "<|im_start|>"
    assert text.special_tokens["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in (text.chat_template or "")
    assert text.tokenizer.get_vocab_size() == 49_152
    assert text.tokenizer.encode("<|im_end|>").ids == [2]
    assert text.tokenizer.encode("hi").ids == text.tokenizer.encode("hi", add_special_tokens=False).ids  # no BOS


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_the_default_model_encodes_and_decodes_without_loss(default_tokenizer: Tokenizer, text: str) -> None:
    assert default_tokenizer.decode(default_tokenizer.encode(text).ids) == text


def test_gguf_metadata_gives_the_tokenizer_it_was_made_from() -> None:
    rebuilt, original = build_tokenizer(metadata()), byte_level_tokenizer()
    for text in [*HARD_TEXTS, "<s>hello</s> a<tool call>b"]:
        assert rebuilt.encode(text).ids == original.encode(text, add_special_tokens=False).ids
        assert rebuilt.decode(rebuilt.encode(text).ids) == text.replace("<s>", "").replace("</s>", "")


def test_padding_of_the_vocabulary_is_no_token() -> None:
    tokenizer = build_tokenizer(metadata())
    assert tokenizer.token_to_id("[PAD]") is None
    assert tokenizer.token_to_id("<tool call>") == tokenizer.get_vocab_size() - 1


def test_each_family_of_splits_cuts_as_its_models_do() -> None:
    text = "It'S 12345 x\n\n  y!\n"
    assert cuts("gpt-2", text) == ["It", "'", "S", " 12345", " x", "\n\n ", " y", "!", "\n"]
    assert cuts("smollm", text) == ["It", "'", "S", " ", "1", "2", "3", "4", "5", " x", "\n\n ", " y", "!", "\n"]
    assert cuts("qwen2", text) == ["It", "'S", " ", "1", "2", "3", "4", "5", " x", "\n\n", " ", " y", "!\n"]
    assert cuts("llama-bpe", text) == ["It", "'S", " ", "123", "45", " x", "\n\n", " ", " y", "!\n"]


@given(st.text(max_size=60))
def test_qwen2_splits_as_transformers_splits(text: str) -> None:
    from transformers import Qwen2Tokenizer

    theirs = Qwen2Tokenizer(vocab={"<|endoftext|>": 0}, merges=[]).backend_tokenizer.pre_tokenizer
    ours = build_tokenizer(metadata("qwen2")).pre_tokenizer
    assert theirs is not None
    assert ours is not None
    assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


@given(st.text(max_size=60))
def test_llama3_splits_as_transformers_splits(text: str) -> None:
    from tokenizers import Regex
    from transformers.convert_slow_tokenizer import TikTokenConverter

    pattern = TikTokenConverter(vocab_file="unused").pattern  # type: ignore[no-untyped-call]
    theirs = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    ours = build_tokenizer(metadata("llama-bpe")).pre_tokenizer
    assert ours is not None
    assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


def test_qwen2_composes_characters_first() -> None:
    composed, apart = unicodedata.normalize("NFC", "e\u0301"), "e\u0301"
    assert build_tokenizer(metadata("qwen2")).encode(apart).ids == build_tokenizer(metadata()).encode(composed).ids
    assert build_tokenizer(metadata()).encode(apart).ids != build_tokenizer(metadata()).encode(composed).ids


def test_llama3_takes_a_whole_token_without_its_merges() -> None:
    whole = metadata("llama-bpe")
    whole["tokenizer.ggml.tokens"][-1], whole["tokenizer.ggml.token_type"][-1] = "zqzq", NORMAL
    last = len(whole["tokenizer.ggml.tokens"]) - 1
    assert build_tokenizer(whole).encode("zqzq", add_special_tokens=False).ids == [last]
    whole["tokenizer.ggml.pre"] = "gpt-2"
    assert last not in build_tokenizer(whole).encode("zqzq").ids


def test_bos_and_eos_are_added_when_the_file_says_so() -> None:
    bare = build_tokenizer(metadata()).encode("hello").ids
    assert build_tokenizer(metadata(add_bos_token=True)).encode("hello").ids == [0, *bare]
    assert build_tokenizer(metadata(add_bos_token=True, add_eos_token=True)).encode("hello").ids == [0, *bare, 1]
    llama = build_tokenizer(metadata("llama-bpe"))  # older files do not say it
    assert llama.encode("hello").ids[0] == 0
    assert build_tokenizer(metadata("llama-bpe", add_bos_token=False)).encode("hello").ids[0] != 0


def test_special_token_names_come_from_their_ids() -> None:
    assert special_tokens(metadata(padding_token_id=1, unknown_token_id=10**6)) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre": "deepseek-llm"}, "'deepseek-llm'"),
        ({"pre": None}, "'default'"),
        ({"model": "llama"}, "'llama'"),
        ({"model": None}, "tokenizer.ggml.model"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"merges": ["no such"]}, "tokenizer.ggml.merges"),
        ({"merges": ["nospace"]}, "tokenizer.ggml.merges"),
        ({"token_type": [1, 1]}, "2 entries"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "twice"),
        ({"add_bos_token": True, "bos_token_id": None}, "bos_token"),
    ],
)
def test_what_cannot_be_read_rightly_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        build_tokenizer(metadata(**changes))


def test_a_model_folder_gives_its_tokenizer_and_special_tokens(tmp_path: Path) -> None:
    save_folder(tmp_path, bos_token="<s>", eos_token={"content": "</s>", "special": True}, chat_template="T")
    text = load_text(tmp_path)
    assert text.tokenizer.encode("hello").ids == byte_level_tokenizer().encode("hello").ids
    assert text.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert text.chat_template == "T"


def test_a_chat_template_of_the_users_goes_before_the_models(tmp_path: Path) -> None:
    save_folder(tmp_path, chat_template={"not": "a text"})
    given = tmp_path / "given.jinja"
    for source in ("{{ messages[0].content }} é", ""):
        given.write_text(source, encoding="utf-8")
        assert load_text(tmp_path, str(given)).chat_template == source
    given.write_bytes(b"\xff")
    for name in ("given.jinja", "missing.jinja"):
        with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
            load_text(tmp_path, str(tmp_path / name))


def test_truncation_and_padding_left_in_a_folder_are_off(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(byte_level_tokenizer().to_str())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    loaded = load_text(save_folder(tmp_path, tokenizer)).tokenizer
    assert loaded.encode("a much longer text").ids == byte_level_tokenizer().encode("a much longer text").ids


def test_a_token_that_the_configuration_calls_special_is_special(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(byte_level_tokenizer().to_str())
    tokenizer.add_tokens([AddedToken("<end>", special=False)])
    loaded = load_text(save_folder(tmp_path, tokenizer, eos_token="<end>", pad_token="<not there>")).tokenizer
    assert loaded.decode(loaded.encode("hi<end>").ids) == "hi"
    assert loaded.get_vocab_size() == tokenizer.get_vocab_size()


def test_the_chat_template_is_found_wherever_a_folder_keeps_it(tmp_path: Path) -> None:
    save_folder(tmp_path)
    assert load_text(tmp_path).chat_template is None
    save_folder(tmp_path, chat_template=[{"name": "tools", "template": "B"}, {"name": "default", "template": "A"}])
    assert load_text(tmp_path).chat_template == "A"
    (tmp_path / "chat_template.jinja").write_text("C\n", encoding="utf-8")
    assert load_text(tmp_path).chat_template == "C\n"


def test_a_folder_that_cannot_be_used_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        load_text(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="no tokenizer.json"):
        load_text(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="tokenizer.json cannot be read"):
        load_text(tmp_path)
    save_folder(tmp_path, chat_template=7)
    with pytest.raises(CheckpointError, match="chat_template is not a text"):
        load_text(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        load_text(tmp_path)


def test_encoding_adds_bos_once_and_only_when_asked() -> None:
    tokenizer = TextTokenizer(byte_level_tokenizer())
    bare = tokenizer.encode("hello", add_special=False)
    assert tokenizer.encode("hello") == [0, *bare]
    assert tokenizer.encode("", add_special=False) == []


def test_special_tokens_inside_a_text_become_tokens() -> None:
    assert TextTokenizer(byte_level_tokenizer()).encode("</s>", add_special=False) == [1]


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "\ude00\ud83d"])
def test_a_lone_surrogate_is_refused_in_words(text: str) -> None:
    with pytest.raises(TextError, match=r"lone surrogate \(U\+D"):
        TextTokenizer(byte_level_tokenizer()).encode(text)


def broken(**changes: Any) -> str:
    """Return the tiny byte-level tokenizer's file with parts of it replaced."""
    return json.dumps(json.loads(byte_level_tokenizer().to_str()) | changes)


NO_IDS_BUT_FOR_A = {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]}
PANICS_AT_BOS: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
}
PANICS_AT_BOS |= {"pair": [], "special_tokens": {}}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": NO_IDS_BUT_FOR_A, "pre_tokenizer": None, "post_processor": None, "added_tokens": []},
        {"post_processor": PANICS_AT_BOS},
    ],
)
def test_a_text_that_a_tokenizer_has_no_ids_for_is_refused_in_words(changes: dict[str, Any]) -> None:
    tokenizer = TextTokenizer(Tokenizer.from_str(broken(**changes)))
    with pytest.raises(TextError, match="the model's tokenizer cannot read this text"):
        tokenizer.encode("abc")


@pytest.mark.parametrize(
    "changes",
    [
        {"post_processor": PANICS_AT_BOS},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "?"}, "post_processor": None},
    ],
)
def test_a_tokenizer_that_fails_when_it_is_used_is_refused_by_name(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(broken(**changes))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        load_text(tmp_path)


def test_an_escaped_emoji_is_a_character_like_any_other() -> None:
    tokenizer = TextTokenizer(byte_level_tokenizer())
    assert tokenizer.encode(json.loads('"\\ud83d\\ude00"')) == tokenizer.encode("😀")


def test_nothing_about_text_imports_torch_or_transformers() -> None:
    modules = ["checkpoint.tokenizer", "frontend.tokenizer", "frontend.chat", "frontend.detokenizer"]
    modules += ["frontend.stop_strings"]
    code = f"import sys, {', '.join(modules)}; print(sorted({{'torch', 'transformers'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
