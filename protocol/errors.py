"""The one error of the protocol."""


class ProtocolError(Exception):
    """Bytes, a message or an address that the protocol does not allow; the text says what and where."""
