from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import idempotency.client
from tests.unit.client.clocks import SteeredClock

CLIENT = str(Path(idempotency.client.__file__).parent)


@pytest.fixture
def clock() -> SteeredClock:
    return SteeredClock(1000.0)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Have threads give way in the middle of the client half's statements, so that a race shows.

    Left alone, the interpreter would hardly ever switch inside a method as short as these. Reaches
    the threads that are started within the test.
    """
    threading.settrace(_trace)
    yield
    threading.settrace(None)  # type: ignore[arg-type]


def _trace(frame: FrameType, event: str, argument: object) -> Any:
    if not frame.f_code.co_filename.startswith(CLIENT):
        return None
    frame.f_trace_lines, frame.f_trace_opcodes = False, True
    return _give_way


def _give_way(frame: FrameType, event: str, argument: object) -> Any:
    if random.random() < 0.05:
        time.sleep(1e-6)
    return _give_way
