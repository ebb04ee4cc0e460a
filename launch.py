"""`python launch.py --model M`: start frontend, scheduler and GPU worker, watch them, and end them together.

Options of the parts are taken here and handed on. This process computes nothing and serves nobody: it owns the others.
Each child hangs on a pipe from this one, so that none outlives it, however it ends (protocol/lifeline.py).
"""

from __future__ import annotations

import selectors
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from checkpoint import CheckpointError
from frontend.config import ServeConfig, TextConfig
from frontend.text_error import TextError
from gpu_worker.config import EngineConfig
from protocol.endpoints import DEFAULT_ADDRESS, url_host
from protocol.errors import ProtocolError
from protocol.logs import LogConfig, set_up_logs
from protocol.options import parse_options
from protocol.stop_signal import StopSignal
from scheduler_proc.config import SchedulingConfig
from stepahead.answer_thread import AnswerThread
from stepahead.family import Family, StartError
from stepahead.launch_config import LaunchConfig
from stepahead.preflight import check_addresses, check_text, directory_for_sockets, find_model
from stepahead.progress import PROCESS, Progress
from stepahead.start import start_all, wait_until_ready, watch
from timeline.config import TimelineConfig
from timeline.errors import TraceError

CUT_SECONDS = 3.0
"""How long after the end of the grace a frontend may take to cut off what still runs."""

ANSWER_SECONDS = 2.0
"""How long a frontend that is asked to end may say nothing at all; then it hangs, and nobody waits for what it has."""

MAX_TOKENS = 512
"""Of an answer to a prompt on our own command line: somebody reads along, and a small model may never end."""


def ask(family: Family, launch: LaunchConfig, address: str, prompt: str, stop: StopSignal, tell: Progress) -> None:
    """Answer a prompt, unless told to stop or a child is gone before. Raises `StartError`."""
    answer = AnswerThread(address, prompt, launch.max_tokens or MAX_TOKENS)
    family.selector.register(answer, selectors.EVENT_READ)
    answer.start()
    watch(family, stop, tell, until=answer)
    family.selector.unregister(answer)
    if answer.is_alive():
        answer.cancel()
    elif answer.error is not None:
        raise StartError(f"the prompt was not answered: {answer.error}")


def where(address: str, serve: ServeConfig) -> str:
    """Return in words where clients find what is being served."""
    url = f"http://{url_host(serve.host)}:{serve.port}/v1 and " if serve.http else ""
    return f"{url}{address}; Ctrl-C stops it"


def how_to_ask(address: str) -> str:
    """Return a command that asks a server at `address`, as it can be copied to another terminal in this folder."""
    python, here = Path(sys.executable), Path.cwd()
    command = [str(python.relative_to(here) if python.is_relative_to(here) else python), "-m", "client"]
    if address != DEFAULT_ADDRESS:
        command += ["--address", address]
    return shlex.join([*command, "--temperature", "0", "What is the capital of France?"])


def drain(family: Family, serve: ServeConfig, stop: StopSignal, tell: Progress) -> None:
    """Let what runs finish, then end the processes one after the other: workers, schedulers, frontends.

    When told to stop once more it returns as it is. Raises `StartError` if a child is gone before.
    """
    stop.hush()
    tell("stopping", f"what runs has {serve.drain_timeout:g} s to finish; a second Ctrl-C or SIGTERM ends it at once")
    frontends = [child for child in family.children if child.name.startswith("frontend")]
    for frontend in frontends:
        frontend.ask_to_end()
    asked = time.monotonic()
    while busy := [frontend for frontend in frontends if not frontend.drained]:
        patience = serve.drain_timeout + CUT_SECONDS if any(each.answered for each in busy) else ANSWER_SECONDS
        left = asked + patience - time.monotonic()
        if left <= 0 or stop.times > 1:
            return
        if (gone := family.listen(left, tell)) is not None and stop.times < 2:
            raise StartError(f"{gone.name} is gone before all was finished: {gone.how_it_ended()}")
    family.stop_in_order()


def _program() -> str:
    """Return what we were called by."""
    name = Path(sys.argv[0]).name
    return f"python {name}" if name.endswith(".py") else name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the launcher; return its exit code: 0 when all went well or it was told to stop.

    1 is a part that failed, 2 a mistake of the user, 130 a --prompt that was interrupted.
    """
    launch, serve, engine, scheduling, text, timeline, logs = parse_options(
        _program(),
        "Serve a language model: a frontend, a scheduler one step ahead, and a GPU worker.",
        LaunchConfig,
        ServeConfig,
        EngineConfig,
        SchedulingConfig,
        TextConfig,
        TimelineConfig,
        LogConfig,
        arguments=arguments,
    )
    stop = StopSignal()
    if logs.json:  # this process itself says nothing but what `tell` does
        set_up_logs(PROCESS, logs)
    tell = Progress(logs=logs)
    if launch.prompt is not None:  # nobody but us will ask
        serve = replace(serve, http=False, api_key=None)
    try:
        check_text(text)
        check_addresses(launch, serve)
        timeline.check()
        engine = find_model(engine, tell)
        run = directory_for_sockets(launch)
    except (CheckpointError, ProtocolError, TextError, TraceError) as error:
        tell.failed(str(error))
        return 2
    address = run.address("clients") if launch.needs_no_address else launch.zmq
    family = Family()
    family.selector.register(stop, selectors.EVENT_READ)
    served = broken = False
    try:
        start_all(family, launch, serve, engine, scheduling, text, timeline, run, address, logs)
        served = wait_until_ready(family, stop, launch.start_timeout, tell)
        if served:
            prompt = launch.prompt or launch.first_prompt
            if prompt is not None:
                ask(family, launch, address, prompt, stop, tell)
            if launch.prompt is None:
                if not stop.is_set:
                    tell("serving", where(address, serve))
                    tell("to ask it", how_to_ask(address))
                    if serve.http:
                        page = f"http://{url_host(serve.host)}:{serve.port}/timeline"
                        tell("to see it", f"{page} shows where the time goes")
                    watch(family, stop, tell)
                drain(family, serve, stop, tell)
    except StartError as error:
        broken = True
        tell.failed(str(error))
        return error.code
    finally:
        family.stop(broken=broken)
        run.remove()
        if stop.is_set and launch.prompt is None:
            tell("stopped", "every process has ended")
        if timeline.timeline is not None and not served:
            Path(timeline.timeline).unlink(missing_ok=True)  # of a start that failed there is nothing to see
        elif timeline.timeline is not None and Path(timeline.timeline).exists():
            tell("recorded", f"python -m timeline report {shlex.quote(timeline.timeline)} says where the time went")
        tell.end()
    interrupted = launch.prompt is not None and stop.is_set
    return 128 + signal.SIGINT if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
