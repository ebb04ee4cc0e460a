"""The error of a timeline that can't be asked."""


class TimelineUnavailableError(Exception):
    """No collector answers; the text is one line for the user."""
