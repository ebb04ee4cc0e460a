"""`python -m gpu_worker --bind ADDRESS --model PATH`: one GPU worker process."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

import zmq

from checkpoint import CheckpointError
from gpu_worker.config import EngineConfig, WorkerConfig
from protocol.descriptors import allow_many_descriptors
from protocol.endpoints import clear_away
from protocol.errors import ProtocolError
from protocol.lifeline import Lifeline
from protocol.logs import LogConfig, set_up_logs
from protocol.messages import Joined
from protocol.options import parse_options
from protocol.sockets import bind_router
from protocol.stop_signal import StopSignal
from timeline.link import TimelineLink, this_host

OPENMP_SPINS = 10_000
"""How many turns an idle thread of torch's OpenMP team looks for work before it sleeps (libgomp's GOMP_SPINCOUNT).

Left alone it is billions: fastest on a quiet machine, by a twentieth, and nearly a standstill beside any program that
keeps one core busy, because the threads that compute then wait for the ones that spin.
"""


def main() -> int:
    """Run the process; return its exit code: 0 after a signal, 2 for a mistake of the user."""
    allow_many_descriptors()
    config, engine_config, logs = parse_options(
        "python -m gpu_worker",
        "Hold one replica of a model and compute the plans of one scheduler at a time.",
        WorkerConfig,
        EngineConfig,
        LogConfig,
    )
    set_up_logs(config.name, logs)
    lifeline = Lifeline(config.name, config.lifeline, logs)
    stop = StopSignal()
    with ExitStack() as undo:
        undo.callback(clear_away, config.bind)
        context: zmq.Context[zmq.Socket[bytes]] = undo.enter_context(zmq.Context())
        try:
            router = undo.enter_context(bind_router(context, config.bind))  # first: a busy address shows at once
            lifeline.progress("importing torch")
            os.environ.setdefault("GOMP_SPINCOUNT", str(OPENMP_SPINS))  # read once, when torch is imported
            from gpu_worker.building import build_engine
            from gpu_worker.process import WorkerProcess

            engine = build_engine(engine_config, lifeline.progress, share=lifeline.share)
        except (ProtocolError, CheckpointError) as error:
            lifeline.failed(str(error))
            return 2
        undo.callback(engine.device.close)
        me = Joined(config.name, "worker", os.getpid(), this_host(), str(engine.device.torch_device), engine.about)
        timeline = TimelineLink(context, config.timeline, me)
        undo.callback(timeline.close)
        timeline.greet()
        lifeline.ready()
        WorkerProcess(engine, router, stop, timeline).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
