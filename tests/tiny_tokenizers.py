"""Tokenizers of a few hundred tokens, built on the spot: one byte-level, one in the manner of SentencePiece."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_CORPUS = [
    "The quick brown fox jumps over the lazy dog. The quick brown fox said hello, hello, hello to the world.",
    "ภาษาไทย ภาษาไทย 你好世界 你好 🙂🙂 👩‍👩‍👧‍👦 naïve café résumé",
]

# Texts that are hard on a stream: their characters are longer than their tokens.
HARD_TEXTS = [
    "plain words, two  spaces and\n\nlines",
    " leading space",
    "  two leading spaces",
    "🙂🙃 emoji 🚀",
    "ภาษาไทยไม่มีช่องว่าง",
    "你好，世界。漢字かな交じり文",
    "e\u0301 a\u0308 n\u0303 combining marks",
    "family: 👩‍👩‍👧‍👦 flag: 🇹🇭 skin: 👍🏽",
    "a real \ufffd in the text",
    "Ġ <0x41> look like parts of tokens",
    "",
]


@cache
def byte_level_tokenizer() -> Tokenizer:
    """Return a byte-level BPE that puts BOS `<s>` in front of texts; `</s>` is special, `<tool call>` is not."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False), AddedToken("é!", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


@cache
def sentencepiece_tokenizer() -> Tokenizer:
    """Return a BPE with byte fallback whose decoder drops the first space of a text, as Llama 2's does."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    tokens += ["▁", *"abcdefghijklmnopqrstuvwxyzPT,.", "好"]
    merges = [("P", "a"), ("r", "i"), ("ri", "s"), ("Pa", "ris"), ("▁", "Paris"), ("▁", "a"), ("▁", "▁")]
    tokens += [left + right for left, right in merges]
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that is surely there."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found
