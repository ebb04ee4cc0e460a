"""The error for text that a user sent and that cannot be served as it is."""


class TextError(ValueError):
    """A prompt, message or stop string is at fault; the words are meant for the user."""


def require_unicode(text: str, what: str) -> None:
    """Raise `TextError` if `text` holds half of a surrogate pair, which no byte sequence can carry."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise TextError(f"{what} has a lone surrogate (U+{code:04X}) at position {error.start}") from None
