"""`python -m scheduler_proc --bind ADDRESS --worker ADDRESS`: one scheduler process."""

from __future__ import annotations

import sys

from protocol.descriptors import allow_many_descriptors
from protocol.errors import ProtocolError
from protocol.lifeline import Lifeline
from protocol.logs import LogConfig, set_up_logs
from protocol.options import parse_options
from protocol.stop_signal import StopSignal
from scheduler_proc.config import SchedulerConfig, SchedulingConfig
from scheduler_proc.process import SchedulerProcess, StartError


def main() -> int:
    """Run the process; return its exit code: 0 after a signal, 2 for a mistake of the user."""
    allow_many_descriptors()
    config, scheduling, logs = parse_options(
        "python -m scheduler_proc",
        "Schedule for one or more GPU workers, and serve clients that send token ids.",
        SchedulerConfig,
        SchedulingConfig,
        LogConfig,
    )
    set_up_logs(config.name, logs)
    lifeline = Lifeline(config.name, config.lifeline, logs)
    try:
        process = SchedulerProcess(config, scheduling, lifeline, StopSignal())
        lifeline.progress("waiting for a worker")
        try:
            process.run()
        finally:
            process.close()
    except (ProtocolError, StartError) as error:
        lifeline.failed(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
