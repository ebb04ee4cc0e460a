"""Chat messages to one prompt text, by the template that came with the model."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

from jinja2 import TemplateSyntaxError

from frontend.chat_environment import chat_environment
from frontend.text_error import TextError, require_unicode, shown
from frontend.tokenizer import TextTokenizer

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]

ROLES = get_args(Role)


class ChatTemplate:
    """A compiled chat template; one without a source exists too and refuses every chat in words."""

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile `source`; `special_tokens` are the strings that templates print, such as `bos_token`.

        A template that does not compile raises `TextError`, so that it is met at start-up and not by a user.
        """
        self._special_tokens = dict(special_tokens or {})
        self._template = None
        if source is None:
            return
        # Few templates know the developer role, the newer name of system.
        self._knows_developer = "developer" in source
        try:
            self._template = chat_environment(now).from_string(source)
        except TemplateSyntaxError as error:
            raise TextError(f"the chat template is broken at line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """Return the prompt text of `messages`, ending where the assistant is to go on.

        A message has a `role` (one of `ROLES`) and a `content`: a string, a list of `{"type": "text", "text": ...}`
        parts (joined by line ends), or nothing, which renders as nothing. Its other keys reach the template as they
        are, those that are None excepted. `TextError` says what is wrong: no template, no messages, a bad message,
        or what the template itself objects to.
        """
        if self._template is None:
            raise TextError("this model has no chat template; send a plain prompt to completions instead")
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
            raise _wrong("messages", "must be a list", messages)
        if not messages:
            raise TextError("messages is empty", at_fault="messages")
        cleaned = [self._clean(message, f"messages[{i}]") for i, message in enumerate(messages)]
        try:
            text = self._template.render(
                self._special_tokens,
                messages=cleaned,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:  # a template is a program: it may fail in any way, and none may end the server
            raise TextError(
                f"the model's chat template refused these messages: {error}", at_fault="messages"
            ) from error
        require_unicode(text, "a message", at_fault="messages")
        return text

    def encode(
        self, messages: Sequence[Mapping[str, Any]], tokenizer: TextTokenizer, *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the ids of the rendered chat. BOS is the template's business alone, so it never comes twice."""
        return tokenizer.encode(self.render(messages, add_generation_prompt=add_generation_prompt), add_special=False)

    def _clean(self, message: Mapping[str, Any], where: str) -> dict[str, Any]:
        if not isinstance(message, Mapping):
            raise _wrong(where, "must be an object", message)
        role = message.get("role")
        if role not in ROLES:
            raise _wrong(f"{where}.role", f"must be one of {', '.join(ROLES)}", role)
        if role == "developer" and not self._knows_developer:
            role = "system"
        given = {key: value for key, value in message.items() if value is not None}
        return given | {"role": role, "content": _content(message.get("content"), f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise _wrong(where, "must be a string, a list of text parts, or null", content)
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        raise _wrong(where, "must be an object", part)
    if part.get("type") != "text":
        raise _wrong(f"{where}.type", 'must be "text", which is all that is read here', part.get("type"))
    text = part.get("text")
    if not isinstance(text, str):
        raise _wrong(f"{where}.text", "must be a string", text)
    return text


def _wrong(where: str, rule: str, value: Any) -> TextError:
    return TextError(f"{where}: {rule}, got {shown(value)}", at_fault="messages")
