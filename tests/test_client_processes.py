"""Clients in processes of their own: each is told its line, and whatever goes wrong with one is said."""

from __future__ import annotations

import pytest

from bench.client_processes import ClientProcesses
from bench.contestant import BenchmarkError

pytestmark = pytest.mark.processes


def test_each_is_told_its_own_line_and_an_error_or_an_end_is_said() -> None:
    with ClientProcesses("tests.telling_client", 2, "hello") as clients:
        assert len(clients) == 2
        clients.tell(['{"number": 1}', '{"number": 2}'])
        assert clients.answers("asking") == [{"word": "hello", "number": 1}, {"word": "hello", "number": 2}]
        clients.tell(["{}", '{"error": "out of luck"}'])
        with pytest.raises(BenchmarkError, match="^asking: out of luck$"):
            clients.answers("asking")
        clients.tell(["{}", "null"])
        with pytest.raises(BenchmarkError, match="^a client's process has ended, exit code 3$"):
            clients.answers("asking")
        with pytest.raises(BenchmarkError, match="^a client's process has ended, exit code 3$"):
            clients.tell(["{}", "{}"])
