"""A byte-level BPE tokenizer rebuilt from the metadata of a GGUF file.

GGUF stores a vocabulary, its merges and a *name* for the way text is split before merging; the split itself is not
in the file. A wrong split gives plausible but wrong ids, so only names whose split is known exactly are accepted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from checkpoint.errors import CheckpointError

# Token types of GGUF. Unused tokens only pad the vocabulary to the size of the embedding: no text has them.
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

_SPECIAL_NAMES = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


@dataclass(frozen=True)
class _Split:
    """How a family of tokenizers cuts text before merging, and what else the name implies."""

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    nfc: bool = False  # text is brought to Unicode NFC first
    ignore_merges: bool = False  # a piece that is a whole token is taken without replaying its merges
    adds_bos: bool = False  # used only when the file does not say


def _plain() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits_first() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _plain()])


def _by_pattern(digits: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    pattern = "|".join(
        [
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",  # English contractions
            r"[^\r\n\p{L}\p{N}]?\p{L}+",  # a word, with one leading space or sign
            digits,
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",  # punctuation keeps the line ends behind it
            r"\s*[\r\n]+",
            r"\s+(?!\S)",  # a run of blanks leaves its last one to the next word
            r"\s+",
        ]
    )

    def build() -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    return build


_LLAMA3 = _Split(_by_pattern(r"\p{N}{1,3}"), ignore_merges=True, adds_bos=True)
_SPLITS = {
    "gpt-2": _Split(_plain),
    "gpt2": _Split(_plain),
    "phi-2": _Split(_plain),
    "smollm": _Split(_single_digits_first),
    "starcoder": _Split(_single_digits_first),
    "refact": _Split(_single_digits_first),  # Granite says so too
    "qwen2": _Split(_by_pattern(r"\p{N}"), nfc=True),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
}


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that `tokenizer.ggml.*` describes; `CheckpointError` says what is missing or unknown."""
    split = _split_of(metadata)
    tokens, types = _vocabulary(metadata)
    vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED}
    if len(vocab) != sum(kind != _UNUSED for kind in types):
        raise CheckpointError("tokenizer.ggml.tokens names a token twice")
    merges = [_pair(merge) for merge in _require_list(metadata, "tokenizer.ggml.merges", str)]
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=split.ignore_merges))
    except Exception as error:  # the library raises its bare base class for a merge outside the vocabulary
        raise CheckpointError(f"tokenizer.ggml.merges does not fit its vocabulary: {error}") from error
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_added(tokens, types, (_CONTROL, _UNKNOWN), special=True))
    tokenizer.add_tokens(_added(tokens, types, (_USER_DEFINED,), special=False))
    _add_ends(tokenizer, metadata, split)
    return tokenizer


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the strings behind `bos_token`, `eos_token`, `unk_token` and `pad_token`, those that the file names."""
    tokens: list[str] = _require_list(metadata, "tokenizer.ggml.tokens", str)
    ids = {name: metadata.get(key) for name, key in _SPECIAL_NAMES.items()}
    return {name: tokens[i] for name, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}


def _require(metadata: Mapping[str, Any], key: str) -> Any:
    value = metadata.get(key)
    if value is None:
        raise CheckpointError(f"the GGUF file has no {key}, so it holds no tokenizer that can be used")
    return value


def _require_list(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    value = _require(metadata, key)
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise CheckpointError(f"{key} is no list of {kind.__name__}")
    return value


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")  # a token's own spaces are written otherwise
    return left, right


def _split_of(metadata: Mapping[str, Any]) -> _Split:
    model = _require(metadata, "tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(f"tokenizer.ggml.model is {model!r}; only 'gpt2' (byte-level BPE) can be read from GGUF")
    name = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(name, str) or name not in _SPLITS:
        known = ", ".join(sorted(_SPLITS))
        raise CheckpointError(
            f"tokenizer.ggml.pre is {name!r}, a way to split text that is not known here exactly (known: {known}); "
            "use a model folder with a tokenizer.json"
        )
    return _SPLITS[name]


def _vocabulary(metadata: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    tokens: list[str] = _require_list(metadata, "tokenizer.ggml.tokens", str)
    types: list[int] = _require_list(metadata, "tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise CheckpointError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    return tokens, types


def _added(tokens: list[str], types: list[int], kinds: tuple[int, ...], *, special: bool) -> list[AddedToken]:
    pairs = zip(tokens, types, strict=True)
    return [AddedToken(token, special=special, normalized=False) for token, kind in pairs if kind in kinds]


def _add_ends(tokenizer: Tokenizer, metadata: Mapping[str, Any], split: _Split) -> None:
    ends = special_tokens(metadata)
    template, used = ["$A"], []
    for name, flag, default in (("bos_token", "add_bos_token", split.adds_bos), ("eos_token", "add_eos_token", False)):
        if not metadata.get(f"tokenizer.ggml.{flag}", default):
            continue
        if name not in ends:
            raise CheckpointError(f"tokenizer.ggml.{flag} is set, but the file names no {name}")
        template = [ends[name], *template] if name == "bos_token" else [*template, ends[name]]
        used.append((ends[name], int(metadata[_SPECIAL_NAMES[name]])))
    if used:
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
