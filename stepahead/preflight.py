"""What is made sure of before anything starts that takes long."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from checkpoint import describe, locate, served_name
from checkpoint.sampling import SamplingDefaults, overridden
from frontend.config import ServeConfig, TextConfig
from frontend.text_error import TextError
from gpu_worker.config import EngineConfig, served_length
from protocol.endpoints import PrivateDirectory, check_free, listen
from protocol.errors import ProtocolError
from stepahead.launch_config import LaunchConfig
from stepahead.progress import Progress


def find_model(engine: EngineConfig, tell: Progress) -> EngineConfig:
    """Return what to tell the parts of the model once it is here, fetched from the hub if need be: where it lies.

    Raises `CheckpointError`.
    """
    path = locate(
        engine.model,
        need_weights=engine.load_format != "dummy",
        need_tokenizer=True,
        revision=engine.revision,
        tell=lambda text: tell("model", text),
    )
    if engine.max_model_len is not None:  # a worker would say so, too, seconds later
        served_length(engine.max_model_len, describe(path))
    if engine.model is None:
        return engine
    name = engine.served_model_name or served_name(engine.model, path)
    return replace(engine, model=str(path), revision=None, served_model_name=name)


def check_addresses(launch: LaunchConfig, serve: ServeConfig) -> None:
    """Raise `ProtocolError` if clients can't be served where they are to be; it names every address that is taken."""
    problems = []
    with ExitStack() as held:
        if serve.http:
            try:
                held.enter_context(listen(serve.host, serve.port))  # for both: they may be given the same port
            except ProtocolError as error:
                problems.append(f"{error} (elsewhere: --host HOST, --port PORT; no HTTP: --no-http)")
        if not launch.needs_no_address:
            try:
                check_free(launch.zmq)
            except ProtocolError as error:
                problems.append(f"{error} (elsewhere: --zmq ADDRESS)")
    if problems:
        raise ProtocolError("; ".join(problems))


def check_text(text: TextConfig) -> None:
    """Raise `CheckpointError` or `TextError` for what a frontend would refuse to do about text."""
    if text.override_generation_config is not None:
        overridden(SamplingDefaults(), text.override_generation_config)
    if text.chat_template is not None:
        from checkpoint.tokenizer import read_chat_template  # a third of a second that few starts need
        from frontend.chat import ChatTemplate

        try:
            ChatTemplate(read_chat_template(text.chat_template))
        except TextError as error:
            raise TextError(f"--chat-template: {text.chat_template}: {error}") from None


def directory_for_sockets(launch: LaunchConfig) -> PrivateDirectory:
    """Return a new directory for the sockets between the parts; raises `ProtocolError`."""
    try:
        return PrivateDirectory(launch.run_dir)
    except ProtocolError as error:
        raise ProtocolError(f"{error} (elsewhere: --run-dir PATH)") from None
