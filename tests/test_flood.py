"""Clients that ask for too much at once, or read too little, harm nobody but themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from protocol.codec import encode
from protocol.messages import Attach, Finish
from tests.core_loop import solo, submit
from tests.stub_worker import StubWorker
from tests.test_scheduler_process import scheduler
from tests.thin_client import ThinClient

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_a_client_that_never_reads_while_its_requests_end_is_forgotten_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with StubWorker(address), scheduler(tmp_path, address) as bound, ThinClient(bound) as client:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        rude = context.socket(zmq.DEALER)
        rude.linger = 0
        rude.rcvhwm = 1
        rude.sndhwm = 0
        rude.connect(bound)
        rude.send(encode(Attach(7)))
        refused = encode(submit(1, []))
        for _ in range(120_000):
            rude.send(refused)
        ask = submit(1, [1, 2], 5, ignore_eos=True)
        client.submit(ask)
        client.finish(1)
        assert client.received[1].tokens == solo(ask)
        assert client.received[1].finish is Finish.LENGTH
        rude.close()
        context.term()
