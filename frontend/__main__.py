"""`python -m frontend --scheduler ADDRESS`: one frontend process."""

from __future__ import annotations

import asyncio
import sys

from checkpoint import CheckpointError
from frontend.config import FrontendConfig, ServeConfig, TextConfig
from frontend.process import FrontendProcess
from frontend.text_error import TextError
from protocol.descriptors import allow_many_descriptors
from protocol.errors import ProtocolError
from protocol.lifeline import Lifeline
from protocol.logs import LogConfig, set_up_logs
from protocol.options import parse_options
from protocol.stop_signal import StopSignal


def main() -> int:
    """Run the process; return its exit code: 0 after a signal, 2 for a mistake of the user."""
    allow_many_descriptors()
    config, text, serve, logs = parse_options(
        "python -m frontend",
        "Put text and HTTP in front of token schedulers.",
        FrontendConfig,
        TextConfig,
        ServeConfig,
        LogConfig,
    )
    set_up_logs(config.name, logs)
    lifeline = Lifeline(config.name, config.lifeline, logs)
    try:
        with FrontendProcess(config, text, serve, lifeline, StopSignal()) as process:
            asyncio.run(process.run())
    except (ProtocolError, CheckpointError, TextError) as error:
        lifeline.failed(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
