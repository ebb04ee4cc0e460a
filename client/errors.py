"""What can go wrong for a client."""


class StepaheadError(Exception):
    """The base of all errors of the client."""


class RequestRefusedError(StepaheadError):
    """The request can never be served as it is; the text says what to change."""


class RequestFailedError(StepaheadError):
    """The server accepted the request and failed at it; the text says how."""


class ServerBusyError(StepaheadError):
    """Too many requests wait already; the same one may be accepted later."""


class ServerLostError(StepaheadError):
    """No server is there, or the one that served the request is gone."""
