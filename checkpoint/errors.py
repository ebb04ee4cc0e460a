"""The one error that everything in this package raises for what lies on disk."""


class CheckpointError(Exception):
    """A model's files are missing, damaged or of a kind that is not supported; the text is one line for the user."""
