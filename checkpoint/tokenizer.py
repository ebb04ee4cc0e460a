"""What turns text into token ids and back: read from a model folder or from a GGUF file, without torch."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from checkpoint import gguf_tokenizer
from checkpoint.errors import CheckpointError
from checkpoint.gguf_file import GGUFFile
from checkpoint.locate import check_tokenizer
from checkpoint.small_file import check_small_file, parse_json, read_small_file

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TextFiles:
    """All that a model brings for text: its tokenizer, its chat template and the special strings templates print."""

    tokenizer: Tokenizer
    chat_template: str | None
    special_tokens: dict[str, str]  # "bos_token" -> "<s>", only those that the model names


def load_text(path: Path, chat_template: str | None = None) -> TextFiles:
    """Read a model folder or a GGUF file once, for everything about text; `CheckpointError` says what is wrong.

    A template in the file `chat_template` takes the place of the model's own, which may then be damaged or missing.
    """
    given = None if chat_template is None else read_chat_template(chat_template)
    if path.is_dir():
        template = _folder_template(path) if given is None else given
        return TextFiles(_folder_tokenizer(path), template, _folder_special_tokens(path))
    metadata = _gguf_metadata(path)
    own = metadata.get("tokenizer.chat_template")
    return TextFiles(
        tokenizer=gguf_tokenizer.build_tokenizer(metadata),
        chat_template=str(own) if given is None and own is not None else given,
        special_tokens=gguf_tokenizer.special_tokens(metadata),
    )


def read_chat_template(file: str) -> str:
    """Return what is in the file of --chat-template; `CheckpointError` says why that can't be read."""
    try:
        return _read_text(Path(os.path.expanduser(file)))
    except CheckpointError as error:
        raise CheckpointError(f"--chat-template: {error}") from None


def _gguf_metadata(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path} is neither a model folder nor a GGUF file")
    return GGUFFile(path).metadata


def _folder_tokenizer(folder: Path) -> Tokenizer:
    check_tokenizer(folder)
    file = folder / "tokenizer.json"
    check_small_file(file)
    try:
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.encode("a")  # some damage shows when it is used, and not before
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises its bare base class for whatever is wrong inside, or panics
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    # Left over from training in some files: they would cut or fill prompts in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # A token that the configuration calls special is special, even where tokenizer.json lists it as a plain one.
    known = [text for text in _folder_special_tokens(folder).values() if tokenizer.token_to_id(text) is not None]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in known])
    return tokenizer


def _folder_template(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _read_text(file)
    template = _read_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several templates by name: the one without a purpose of its own
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"{folder / 'tokenizer_config.json'}: chat_template is not a text")
    return template


def _folder_special_tokens(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):  # the later one wins
        entries = _read_object(folder / name)
        for special in _SPECIAL_NAMES:
            entry = entries.get(special)
            text = entry.get("content") if isinstance(entry, dict) else entry
            if isinstance(text, str):
                found[special] = text
    return found


def _read_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = parse_json(_read_text(file))
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} does not hold a JSON object")
    return value


def _read_text(file: Path) -> str:
    try:
        return read_small_file(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(f"{file} cannot be read: {why}") from error
