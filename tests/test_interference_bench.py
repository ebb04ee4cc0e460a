"""The interference benchmark does the same requests offline and streamed, and says what streaming costs."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import interference
from bench.__main__ import main as bench_main
from bench.bare import Bare
from bench.contestant import BenchmarkError
from bench.continuous_peer import SYNC, Batcher, ContinuousPeer, encoder, modes_on
from bench.shapes import SHAPES
from bench.streaming_clients import _all
from bench.thin import PATIENCE_SECONDS, Answered, ThinClient
from bench.workload import Workload
from client import AsyncClient, Piece
from protocol.codec import encode
from protocol.messages import Attached, Deltas, Message, Unattached
from scheduler_proc.config import SchedulingConfig
from tests.word_model import write_word_model
