"""One answer on standard output, beside whatever else a program does."""

from __future__ import annotations

import os
import sys
import threading

from client import Client, StepaheadError
from client.printing import print_stream


class AnswerThread(threading.Thread):
    """Streams the likeliest answer to a chat message to standard output.

    Its descriptor becomes readable when it is done; `error` then has what went wrong.
    """

    def __init__(self, address: str, prompt: str, max_tokens: int) -> None:
        """Be ready to ask the server at `address`."""
        super().__init__(name="answer", daemon=True)
        self._client = Client(address)
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._done, self._end = os.pipe()
        self.error: StepaheadError | OSError | None = None

    def run(self) -> None:
        """Ask and print."""
        try:
            messages = [{"role": "user", "content": self._prompt}]
            print_stream(self._client.stream_chat(messages, temperature=0.0, max_tokens=self._max_tokens))
        except BrokenPipeError:  # whoever read the answer has seen enough
            _let_go_of_stdout()
        except OSError as error:  # a full disk
            _let_go_of_stdout()
            self.error = error
        except StepaheadError as error:
            self.error = error
        finally:
            self._client.close()
            os.write(self._end, b"!")

    def cancel(self) -> None:
        """Let the rest of the answer be."""
        self._client.close()

    def fileno(self) -> int:
        """Return the descriptor to select on."""
        return self._done


def _let_go_of_stdout() -> None:
    """Send what is still buffered nowhere: at exit Python would try to write it once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
