"""`python -m client "prompt"`: ask a running server. `python -m client batch IN OUT` asks it a whole file."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from client.ask import Settings
from client.batch import main as batch
from client.client import Client
from client.errors import ServerLostError, StepaheadError
from client.printing import print_stream
from protocol.endpoints import DEFAULT_ADDRESS

MAX_TOKENS = 512
"""Somebody reads along: an answer that never ends is no answer."""

CONNECT_SECONDS = 3.0
"""Somebody sits in front of it."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m client",
        description="Ask a running Stepahead server.",
        epilog="python -m client batch IN OUT asks all that a file asks; batch --help says how.",
        allow_abbrev=False,
    )
    parser.add_argument("prompt", help="what to ask; - reads it from standard input")
    parser.add_argument("--address", default=DEFAULT_ADDRESS, help="where the server is (%(default)s)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--chat", dest="raw", action="store_false", help="the prompt is a user's message (the default)")
    form.add_argument("--raw", dest="raw", action="store_true", help="the prompt is a text to be continued")
    parser.set_defaults(raw=False)
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help="at most so many new tokens (%(default)s)"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0 always takes the most likely token")
    parser.add_argument("--top-k", type=int, metavar="K", help="choose among the K most likely tokens; 0 is off")
    parser.add_argument("--top-p", type=float, metavar="P", help="choose among the likeliest that make up P in all")
    parser.add_argument(
        "--min-p", type=float, metavar="P", help="no token less than P times as likely as the likeliest"
    )
    parser.add_argument(
        "--repetition-penalty", type=float, metavar="R", help="above 1: fewer tokens come again; 1 is off"
    )
    parser.add_argument("--presence-penalty", type=float, metavar="P", help="-2 to 2: against tokens the answer has")
    parser.add_argument(
        "--frequency-penalty", type=float, metavar="P", help="-2 to 2: the same for each time it has them"
    )
    parser.add_argument("--bad-word", action="append", metavar="TEXT", help="this does not come; may be given again")
    parser.add_argument("--min-tokens", type=int, metavar="N", help="nothing ends the answer before it has so many")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end where this appears; may be given again")
    parser.add_argument("--ignore-eos", action="store_true", help="go on behind the model's end tokens")
    parser.add_argument(
        "--priority", type=int, metavar="N", help="lower ones first, where the server goes by that; the default is 0"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end the answer after so long")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Stream one answer to standard output; return the exit code: 0, 1 for an error, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["batch"]:
        return batch(arguments[1:])
    given = _parser().parse_args(arguments)
    settings = Settings(
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        min_p=given.min_p,
        repetition_penalty=given.repetition_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        bad_words=given.bad_word,
        min_tokens=given.min_tokens,
        seed=given.seed,
        stop=given.stop,
        ignore_eos=given.ignore_eos,
        priority=given.priority,
        timeout=given.timeout,
    )
    try:
        prompt = sys.stdin.read() if given.prompt == "-" else given.prompt
        _answer(given.address, prompt, settings, raw=given.raw)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        # What standard output still holds would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # whoever read the answer has seen enough
            print(f"client: {error}", file=sys.stderr)
        return 1
    except ServerLostError as error:
        print(f"client: {error} (--address ADDRESS asks another)", file=sys.stderr)
        return 1
    except (StepaheadError, ValueError) as error:
        print(f"client: {error}", file=sys.stderr)
        return 1
    return 0


def _answer(address: str, prompt: str, settings: Settings, *, raw: bool) -> None:
    with Client(address, connect_seconds=CONNECT_SECONDS) as client:
        messages = [{"role": "user", "content": prompt}]
        print_stream(client.stream(prompt, **settings) if raw else client.stream_chat(messages, **settings))


if __name__ == "__main__":
    sys.exit(main())
