"""The errors of the protocol."""


class ProtocolError(Exception):
    """Bytes, a message or an address that the protocol does not allow; the text says what and where."""


class FieldError(ProtocolError):
    """A `field` of a message that holds what its declaration does not allow; `why` says so to those who know it."""

    def __init__(self, message: str, field: str, why: str) -> None:
        """Say where: in a field of the message of that name."""
        super().__init__(f"{message}.{field}: {why}")
        self.field = field
        self.why = why
