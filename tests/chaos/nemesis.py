"""The nemesis: breaks the product at random times, out of a seed, and mends it again.

Each fault ends by itself or has its end put on the list of what is due. What needs children to be
started runs in the main thread, as ``stage.py`` wants it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

import redis

from tests.chaos.desk import JOBS
from tests.chaos.history import History
from tests.chaos.proxy import Weather
from tests.chaos.stage import LEASE, Stage

#: Seconds between two faults, in the mean.
GAP = 2.6
#: Sends SIGSTOP and later SIGCONT, whatever becomes of whoever started it.
_PAUSE = 's=$1; shift; kill -STOP "$@"; sleep "$s"; kill -CONT "$@"'
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Bias:
    """How often each fault comes, relative to the others; what is absent never does."""

    weights: dict[str, int]
    gap: float = GAP


EVERYDAY = Bias(
    {
        "kill_web": 14,
        "pause_web": 10,
        "pause_celery": 4,
        "kill_celery": 4,
        "restart_postgres": 5,
        "stop_valkey": 3,
        "flush_valkey": 4,
        "slow_valkey": 4,
        "web_reset": 5,
        "web_lose": 5,
        "web_stall": 3,
        "web_cut": 4,
        "gateway_reset": 5,
        "gateway_lose": 7,
        "gateway_stall": 3,
        "gateway_delay": 4,
        "gateway_kill": 2,
        "step_clock": 3,
        "drop_day": 3,
        "maintenance": 8,
        "force_fail": 12,
        "force_fail_final": 8,
    }
)
PAUSES = Bias({"pause_web": 10, "gateway_lose": 2, "kill_web": 2}, gap=2.0)
LOST_ANSWERS = Bias({"gateway_lose": 8, "kill_web": 4, "gateway_stall": 2, "pause_web": 2})


class Nemesis:
    """Injects one fault after the other; ``counts`` says how many of each kind."""

    def __init__(self, stage: Stage, history: History, seed: int, bias: Bias) -> None:
        self._stage, self._history, self._bias = stage, history, bias
        self._rng = random.Random(f"nemesis {seed}")
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._helpers: list[subprocess.Popen[bytes]] = []
        #: Process -> when it goes on.
        self._paused: dict[int, float] = {}
        self._redis = redis.Redis.from_url(stage.valkey.url, socket_timeout=1.0)
        self.counts: Counter[str] = Counter()

    def run(self, until: float, tell: Callable[[], None]) -> None:
        """Until that moment of ``time.monotonic``. ``tell`` is called every now and then."""
        soon = time.monotonic() + 1.0
        while (now := time.monotonic()) < until:
            self._mend(now)
            self._collect()
            if now >= soon:
                self._strike()
                soon = time.monotonic() + self._rng.expovariate(1 / self._bias.gap)
            for name in self._stage.look_after():
                self._history.note("died", what=name)
            tell()
            time.sleep(0.1)

    def stop(self) -> None:
        """Mend everything."""
        self._mend(float("inf"))
        for helper in self._helpers:
            helper.wait(LEASE * 4)
        for name in ("web", "gateway"):
            self._stage.side.turn(name, Weather.FINE)
        self._stage.clock.write_text("0")
        self._collect(seconds=10.0)

    def _strike(self) -> None:
        weights = self._bias.weights
        name = self._rng.choices(list(weights), list(weights.values()))[0]
        self._history.note("fault", what=name)
        about = getattr(self, f"_{name}")()
        if about is not None:
            self.counts[name] += 1
            self._history.note("fault_done", what=name, about=about)

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        heappush(self._due, (time.monotonic() + seconds, next(self._numbers), action))

    def _mend(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            heappop(self._due)[2]()

    # Processes

    def _kill_web(self) -> Any:
        return self._kill(self._stage.web_workers())

    def _kill_celery(self) -> Any:
        """One that runs tasks, or the worker itself, or beat: these two are started again."""
        return self._kill(self._stage.celery_processes() + self._stage.beat_processes())

    def _kill(self, pids: list[int]) -> Any:
        if not pids:
            return None
        pid = self._rng.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return pid

    def _pause_web(self) -> Any:
        workers = self._stage.web_workers()
        return self._pause([self._rng.choice(workers)]) if workers else None

    def _pause_celery(self) -> Any:
        return self._pause(self._stage.celery_processes())

    def _pause(self, pids: list[int]) -> Any:
        """Beyond the lease, so that somebody else takes over what they were doing."""
        now, seconds = time.monotonic(), LEASE + self._rng.uniform(0.5, 3.0)
        if any(self._paused.get(pid, 0.0) > now for pid in pids):
            return None
        self._paused |= dict.fromkeys(pids, now + seconds)
        command = ["sh", "-c", _PAUSE, "sh", f"{seconds:.2f}", *map(str, pids)]
        self._helpers = [one for one in self._helpers if one.poll() is None]
        self._helpers.append(
            subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        )
        return {"pids": pids, "seconds": round(seconds, 2)}

    def _restart_postgres(self) -> Any:
        began = time.monotonic()
        self._stage.restart_postgres()
        return {"seconds": round(time.monotonic() - began, 2)}

    # Valkey

    def _stop_valkey(self) -> Any:
        if self._stage.valkey.process is None:
            return None
        self._stage.valkey.kill()
        seconds = self._rng.uniform(0.5, 5.0)
        self._later(seconds, self._stage.valkey.start)
        return seconds

    def _flush_valkey(self) -> Any:
        return self._at_valkey("FLUSHALL")

    def _slow_valkey(self) -> Any:
        return self._at_valkey("CLIENT", "PAUSE", str(self._rng.randint(200, 3000)), "ALL")

    def _at_valkey(self, *command: str) -> Any:
        try:
            self._redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except redis.RedisError:
            return None  # it is stopped, or paused already
        return list(command)

    # Connections

    def _web_reset(self) -> Any:
        return self._turn("web", Weather.RESET)

    def _web_lose(self) -> Any:
        return self._turn("web", Weather.LOSE)

    def _web_stall(self) -> Any:
        return self._turn("web", Weather.STALL)

    def _web_cut(self) -> Any:
        self._stage.side.cut("web")
        return True

    def _gateway_reset(self) -> Any:
        return self._turn("gateway", Weather.RESET)

    def _gateway_lose(self) -> Any:
        return self._turn("gateway", Weather.LOSE)

    def _gateway_stall(self) -> Any:
        return self._turn("gateway", Weather.STALL)

    def _turn(self, name: str, weather: Weather) -> Any:
        share, seconds = self._rng.choice((0.2, 0.5, 1.0)), self._rng.uniform(0.5, 3.0)
        self._stage.side.turn(name, weather, share)
        self._later(seconds, lambda: self._stage.side.turn(name, Weather.FINE))
        return {"share": share, "seconds": round(seconds, 2)}

    # The gateway

    def _gateway_delay(self) -> Any:
        delay = round(self._rng.uniform(0.2, 2.5), 2)
        if not self._at_gateway(delay):
            return None
        self._later(self._rng.uniform(1.0, 4.0), lambda: self._at_gateway(0.0))
        return delay

    def _at_gateway(self, delay: float) -> bool:
        if not self._stage.gateway.running:
            return False
        self._stage.gateway.control(delay=delay)
        return True

    def _gateway_kill(self) -> Any:
        if not self._stage.gateway.running:
            return None
        self._stage.gateway.kill()
        self._later(self._rng.uniform(0.3, 3.0), self._stage.gateway.start)
        return True

    # Time

    def _step_clock(self) -> Any:
        step = self._rng.choice((HOUR, -HOUR))
        self._stage.clock.write_text(f"{step}")
        self._later(self._rng.uniform(3.0, 10.0), lambda: _write(self._stage, "0"))
        return step

    # What people and jobs do

    def _drop_day(self) -> Any:
        return self._tell(self._rng.randrange(2), "drop_day", self._rng.getrandbits(32))

    def _maintenance(self) -> Any:
        """One job in two processes at once, or two jobs."""
        first = self._rng.choice(JOBS)
        second = self._rng.choice((first, self._rng.choice(JOBS)))
        begun = [self._tell(0, "job", first), self._tell(1, "job", second)]
        return begun if any(begun) else None

    def _force_fail(self) -> Any:
        return self._end_a_key(final=False)

    def _force_fail_final(self) -> Any:
        return self._end_a_key(final=True)

    def _end_a_key(self, *, final: bool) -> Any:
        seed = self._rng.getrandbits(32)
        return self._tell(self._rng.randrange(2), "force_fail", seed, final)

    def _tell(self, number: int, *command: Any) -> Any:
        return list(command) if self._stage.desks[number].tell(*command) else None

    def _collect(self, seconds: float = 0.0) -> None:
        """Note what the desks have to say."""
        for desk in self._stage.desks:
            if desk.busy and (answer := desk.answer(seconds)) is not None:
                self._history.note("desk", answer.pop("key", ""), **answer)


def _write(stage: Stage, text: str) -> None:
    stage.clock.write_text(text)
