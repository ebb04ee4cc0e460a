"""The one error that everything in this package raises for what lies on disk, and what others say in one line."""


class CheckpointError(Exception):
    """A model's files are missing, damaged or of a kind that is not supported; the text is one line for the user."""

    def __init__(self, text: str) -> None:
        """Take the text; what it quotes of a damaged file may hold line ends and halves of surrogate pairs."""
        super().__init__(" ".join(text.encode("utf-8", "backslashreplace").decode().splitlines()))


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of another library says, its type if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
