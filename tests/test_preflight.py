"""What is checked before anything starts."""

from __future__ import annotations

import socket

import pytest

from frontend.config import ServeConfig
from protocol.errors import ProtocolError
from stepahead.launch_config import LaunchConfig
from stepahead.preflight import check_addresses


def test_all_addresses_that_are_taken_are_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as http, socket.create_server(("127.0.0.1", 0)) as zmq:
        ports = http.getsockname()[1], zmq.getsockname()[1]
        launch = LaunchConfig(zmq=f"tcp://127.0.0.1:{ports[1]}")
        with pytest.raises(ProtocolError) as refused:
            check_addresses(launch, ServeConfig(port=ports[0]))
    assert all(str(port) in str(refused.value) for port in ports)
    assert "--port" in str(refused.value)
    assert "--zmq" in str(refused.value)
    check_addresses(launch, ServeConfig(port=ports[0]))
