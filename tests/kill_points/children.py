"""Processes that are forked for one piece of work each, and may be killed."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Seconds after which a child that hangs is ended by its alarm.
PATIENCE = 60


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, negative for a signal, and what it said."""

    code: int
    said: Any

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def value(self) -> Any:
        """What the work returned. Fails when it raised, or was ended."""
        assert self.code == 0, f"ended with {self.code}\n{self.said or ''}"
        return self.said


def forked(work: Callable[[], Any]) -> Ended:
    """Do the work in a process of its own; its result has to be JSON-able."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(PATIENCE)
        os._exit(_child(work, write))
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ended(code, json.loads(text) if text else None)


def _child(work: Callable[[], Any], write: int) -> int:
    code = 0
    try:
        said = work()
    except BaseException:
        code, said = 1, traceback.format_exc()
    with os.fdopen(write, "w") as pipe:
        json.dump(said, pipe)
    return code
