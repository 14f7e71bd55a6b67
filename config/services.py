"""The processes that `make run` supervises: started, watched, started again, stopped."""

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from config import tether
from config.embedded import tail

#: Starts of one service within WINDOW seconds before it is given up.
STARTS = 5
WINDOW = 60.0


class GivenUp(Exception):
    """Something dies as often as it is started; the text holds the end of its log."""


class Patience:
    """How often something may be started again before it is given up."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=STARTS)

    def start(self) -> None:
        """Note a start."""
        self._starts.append(time.monotonic())

    def demand(self, name: str, log: Path) -> None:
        """Raise `GivenUp` when it was started too often lately."""
        if len(self._starts) == STARTS and time.monotonic() - self._starts[0] < WINDOW:
            raise GivenUp(
                f"{name} died {STARTS} times in {WINDOW:.0f} seconds; {log} ends:\n{tail(log)}"
            )


@dataclass
class Service:
    """One command that should run for as long as the stack does."""

    name: str
    command: Sequence[str | Path]
    env: Mapping[str, str]
    log: Path
    #: Seconds to finish what it is doing when asked to stop.
    grace: float
    cwd: Path
    process: subprocess.Popen[bytes] | None = None
    patience: Patience = field(default_factory=Patience)

    def __enter__(self) -> "Service":
        if self.log.exists():
            # The log of the run before, in which the trouble may be, stays beside it.
            self.log.replace(self.log.with_suffix(".previous.log"))
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.patience.start()
        with self.log.open("ab") as log:
            self.process = tether.start(self.command, log=log, env=self.env, cwd=self.cwd)

    def stop(self) -> None:
        """Ask it to stop, then make it; whatever it started goes too."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.grace)
        _kill_session(process)

    def died(self) -> int | None:
        """The exit code if it has died."""
        return self.process.poll() if self.process else None

    def start_again(self) -> None:
        """Replace a process that died. Raises `GivenUp` where that does not help."""
        self.patience.demand(self.name, self.log)
        if self.process:
            _kill_session(self.process)
        self.start()


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it left in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
