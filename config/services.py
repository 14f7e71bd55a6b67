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
    """A service dies as often as it is started; the text holds the end of its log."""


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
    started: deque[float] = field(default_factory=lambda: deque(maxlen=STARTS))

    def __enter__(self) -> "Service":
        self.log.unlink(missing_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.started.append(time.monotonic())
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
        if len(self.started) == STARTS and time.monotonic() - self.started[0] < WINDOW:
            raise GivenUp(
                f"{self.name} died {STARTS} times in {WINDOW:.0f} seconds; {self.log} ends:\n"
                f"{tail(self.log)}"
            )
        if self.process:
            _kill_session(self.process)
        self.start()


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it left in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
