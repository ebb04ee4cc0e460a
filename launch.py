"""`python launch.py --model M`: start frontend, scheduler and GPU worker, watch them, and end them together.

Options of the parts are taken here and handed on. This process computes nothing and serves nobody: it owns the others.
Each child hangs on a pipe from this one, so that none outlives it, however it ends (protocol/lifeline.py).
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from checkpoint import CheckpointError, check_tokenizer, locate, served_name
from client import Client, StepaheadError
from client.printing import print_stream
from frontend.config import FrontendConfig, TextConfig
from gpu_worker.config import EngineConfig, WorkerConfig
from protocol.endpoints import DEFAULT_ADDRESS, PrivateDirectory, check_free
from protocol.errors import ProtocolError
from protocol.lifeline import FAILED, PROGRESS, READY, SHARE, ChildPipes
from protocol.options import option, parse_options, to_arguments
from protocol.progress_lines import ProgressLines
from protocol.stop_signal import StopSignal
from scheduler_proc.config import SchedulerConfig, SchedulingConfig

GRACE_SECONDS = 3.0
"""Children that have not ended so long after SIGTERM are killed: everything is over within 5 s."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """What to start, and where clients find it."""

    zmq: str = option("address for clients; with --prompt, which needs none, a private one", DEFAULT_ADDRESS, "ADDRESS")
    prompt: str | None = option("answer this, streaming to standard output, and exit", None, "TEXT")
    first_prompt: str | None = option("answer this, streaming to standard output, then serve", None, "TEXT")
    max_tokens: int = option("at most so many tokens of an answer to --prompt or --first-prompt", 512, "N")
    workers: int = option("GPU workers, each with a replica of the model", 1, "N")
    schedulers: int = option("schedulers, which share the workers out among them", 1, "N")
    start_timeout: float = option("seconds until everything must be ready", 600.0, "SECONDS")
    run_dir: str | None = option("where to make the directory for sockets (default: the system's)", None, "PATH")

    def __post_init__(self) -> None:
        """Raise `ValueError` for what can't be meant."""
        if not 1 <= self.schedulers <= self.workers:
            raise ValueError(
                f"--workers {self.workers} and --schedulers {self.schedulers}: each scheduler needs a worker"
            )
        if not 0 < self.start_timeout < inf:
            raise ValueError(f"--start-timeout must be more than 0 and finite, got {self.start_timeout}")
        if self.max_tokens < 1:
            raise ValueError(f"--max-tokens must be at least 1, got {self.max_tokens}")
        if "" in (self.prompt, self.first_prompt):
            raise ValueError("the prompt is empty")
        if self.prompt is not None and self.first_prompt is not None:
            raise ValueError("give --prompt or --first-prompt, not both")

    @property
    def needs_no_address(self) -> bool:
        """Whether nobody but this process will ask: then a server that runs already is in nobody's way."""
        return self.prompt is not None and self.zmq == DEFAULT_ADDRESS


class StartError(Exception):
    """Something could not be started, or has ended; the text is for the user."""

    def __init__(self, text: str, code: int = 1) -> None:
        """Remember what to tell, and the exit code: 2 where the user can put it right."""
        super().__init__(text)
        self.code = code


class Progress:
    """Lines on standard error that say what a start is busy with."""

    def __init__(self) -> None:
        """Start the clock."""
        self._started = time.monotonic()
        self._lines = ProgressLines(sys.stderr)

    def __call__(self, name: str, text: str) -> None:
        """Say what `name` is doing."""
        self._lines.say(name, self._line(name, text))

    def share(self, name: str, done: float, text: str) -> None:
        """Say how much of it `name` has done, from 0 to 1."""
        self._lines.show(name, done, self._line(name, text))

    def end(self) -> None:
        """Leave the terminal to what is said next."""
        self._lines.end()

    def _line(self, name: str, text: str) -> str:
        return f"[{time.monotonic() - self._started:6.1f} s] {name}: {text}"


@dataclass(slots=True)
class Child:
    """One process of ours."""

    name: str
    process: subprocess.Popen[bytes]
    pipes: ChildPipes
    ready: bool = False
    failure: str = ""
    unread: bytes = b""

    def how_it_ended(self) -> str:
        """Return in words why it is gone; it must be."""
        if self.failure:
            return self.failure
        code = self.process.wait()
        return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


@dataclass(slots=True)
class Family:
    """All children, and what they say. `stop` ends them in any case."""

    children: list[Child] = field(default_factory=list)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def start(self, name: str, module: str, arguments: Sequence[str]) -> None:
        """Start `python -m module`, in a session of its own so that a terminal's Ctrl-C comes to us alone."""
        pipes = ChildPipes()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, *pipes.arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=pipes.pass_fds,
                start_new_session=True,
            )
        except OSError as error:
            pipes.close()
            raise StartError(f"{name} can't be started: {error}") from None
        pipes.started()
        child = Child(name, process, pipes)
        self.children.append(child)
        self.selector.register(pipes.status, selectors.EVENT_READ, child)

    def listen(self, seconds: float, tell: Progress) -> Child | None:
        """Hear what children say for at most `seconds`, or until one is gone: that one is returned."""
        for key, _ in self.selector.select(seconds):
            if isinstance(key.data, Child) and not self._hear(key.data, tell):
                self.selector.unregister(key.fd)
                return key.data
        return None

    def _hear(self, child: Child, tell: Progress) -> bool:
        data = child.pipes.read_status()
        *lines, child.unread = (child.unread + data).split(b"\n")
        for line in lines:
            what, _, text = line.decode(errors="replace").partition(" ")
            if what == PROGRESS:
                tell(child.name, text)
            elif what == SHARE:
                done, _, text = text.partition(" ")
                tell.share(child.name, float(done), text)
            elif what == READY:
                child.ready = True
                tell(child.name, "ready")
            elif what == FAILED:
                child.failure = text
        return bool(data)

    @property
    def ready(self) -> bool:
        """Whether all children serve."""
        return all(child.ready for child in self.children)

    def stop(self) -> None:
        """End all children: ask, wait a little, insist."""
        for child in self.children:
            child.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for child in self.children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            child.pipes.close()
        self.selector.close()


def start_all(
    family: Family,
    launch: LaunchConfig,
    engine: EngineConfig,
    scheduling: SchedulingConfig,
    text: TextConfig,
    run: PrivateDirectory,
    for_clients: str,
) -> None:
    """Start every process; they find each other through sockets in `run`, clients find them at `for_clients`."""
    workers = [run.address(f"worker-{number}") for number in range(launch.workers)]
    schedulers = [run.address(f"scheduler-{number}") for number in range(launch.schedulers)]
    for number, address in enumerate(workers):
        name = _name("worker", number, launch.workers)
        family.start(name, "gpu_worker", to_arguments(WorkerConfig(bind=address), engine))
    for number, address in enumerate(schedulers):
        config = SchedulerConfig(bind=address, worker=tuple(workers[number :: launch.schedulers]))
        family.start(_name("scheduler", number, launch.schedulers), "scheduler_proc", to_arguments(config, scheduling))
    frontend = FrontendConfig(scheduler=tuple(schedulers), bind=for_clients, model=engine.model, seed=engine.seed)
    family.start("frontend", "frontend", to_arguments(frontend, text))


def find_model(engine: EngineConfig, tell: Progress) -> EngineConfig:
    """Return what to tell the parts of the model once it is here, fetched from the hub if need be: where it lies.

    Raises `CheckpointError`.
    """
    path = locate(
        engine.model,
        need_weights=engine.load_format != "dummy",
        revision=engine.revision,
        tell=lambda text: tell("model", text),
    )
    check_tokenizer(path)
    if engine.model is None:
        return engine
    name = engine.served_model_name or served_name(engine.model, path)
    return replace(engine, model=str(path), revision=None, served_model_name=name)


def check_address(launch: LaunchConfig) -> None:
    """Raise `ProtocolError` if clients can't be served where they are to be."""
    if not launch.needs_no_address:
        try:
            check_free(launch.zmq)
        except ProtocolError as error:
            raise ProtocolError(f"{error} (another address: --zmq ADDRESS)") from None


def _name(what: str, number: int, total: int) -> str:
    return what if total == 1 else f"{what} {number}"


def wait_until_ready(family: Family, stop: StopSignal, seconds: float, tell: Progress) -> bool:
    """Return True once all serve, False if told to stop before. Raises `StartError` if one can't, or time is up."""
    deadline = time.monotonic() + seconds
    while not family.ready:
        if stop.is_set:
            return False
        left = deadline - time.monotonic()
        if left <= 0:
            late = ", ".join(child.name for child in family.children if not child.ready)
            raise StartError(f"not ready within {seconds:g} s: {late}")
        if (gone := family.listen(left, tell)) is not None:
            raise StartError(f"{gone.name}: {gone.how_it_ended()}", 2 if gone.failure else 1)
    return True


class Answer(threading.Thread):
    """Streams the likeliest answer to a chat message to standard output, beside whoever watches the children.

    Its descriptor becomes readable when it is done.
    """

    def __init__(self, address: str, prompt: str, max_tokens: int) -> None:
        """Ask the server at `address`."""
        super().__init__(name="answer", daemon=True)
        self._address = address
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._done, self._end = os.pipe()
        self.error: StepaheadError | None = None

    def run(self) -> None:
        """Ask and print."""
        try:
            with Client(self._address) as client:
                messages = [{"role": "user", "content": self._prompt}]
                print_stream(client.stream_chat(messages, temperature=0.0, max_tokens=self._max_tokens))
        except StepaheadError as error:
            self.error = error
        except BrokenPipeError:  # whoever read the answer has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            os.write(self._end, b"!")

    def fileno(self) -> int:
        """Return the descriptor to select on."""
        return self._done


def ask(family: Family, launch: LaunchConfig, address: str, prompt: str, stop: StopSignal, tell: Progress) -> None:
    """Answer a prompt, unless told to stop or a child is gone before. Raises `StartError`."""
    answer = Answer(address, prompt, launch.max_tokens)
    family.selector.register(answer, selectors.EVENT_READ)
    answer.start()
    watch(family, stop, tell, until=answer)
    family.selector.unregister(answer)
    if answer.error is not None:
        raise StartError(f"the prompt was not answered: {answer.error}")


def watch(family: Family, stop: StopSignal, tell: Progress, until: Answer | None = None) -> None:
    """Return when told to stop, or `until` is done; raises `StartError` if a child is gone before."""
    while not stop.is_set and (until is None or until.is_alive()):
        gone = family.listen(1.0 if until is not None else 3600.0, tell)
        if gone is not None and not stop.is_set:
            raise StartError(f"{gone.name} is gone: {gone.how_it_ended()}; everything is stopped")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the launcher; return its exit code: 0 when all went well or it was told to stop.

    1 is a part that failed, 2 a mistake of the user, 130 a --prompt that was interrupted.
    """
    launch, engine, scheduling, text = parse_options(
        "python launch.py",
        "Serve a language model: a frontend, a scheduler one step ahead, and a GPU worker.",
        LaunchConfig,
        EngineConfig,
        SchedulingConfig,
        TextConfig,
        arguments=arguments,
    )
    stop = StopSignal()
    tell = Progress()
    try:
        check_address(launch)
        engine = find_model(engine, tell)
        run = PrivateDirectory(launch.run_dir)
    except (CheckpointError, ProtocolError) as error:
        print(f"stepahead: {error}", file=sys.stderr)
        return 2
    address = run.address("clients") if launch.needs_no_address else launch.zmq
    family = Family()
    family.selector.register(stop, selectors.EVENT_READ)
    try:
        start_all(family, launch, engine, scheduling, text, run, address)
        if wait_until_ready(family, stop, launch.start_timeout, tell):
            prompt = launch.prompt or launch.first_prompt
            if prompt is not None:
                ask(family, launch, address, prompt, stop, tell)
            if launch.prompt is None and not stop.is_set:
                tell("serving", f'{address} (python -m client "…" asks it; Ctrl-C stops it)')
                watch(family, stop, tell)
    except StartError as error:
        tell.end()
        print(f"stepahead: {error}", file=sys.stderr)
        return error.code
    finally:
        tell.end()
        family.stop()
        run.remove()
    interrupted = launch.prompt is not None and stop.is_set
    return 128 + signal.SIGINT if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
