"""Eight clients of the database, as gunicorn runs them: two processes with four threads each."""

from __future__ import annotations

import ctypes
import multiprocessing
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any

PROCESSES, THREADS = 2, 4
#: Seconds until a client that does not stop is taken for stuck.
PATIENCE = 60.0

#: Makes a client's requests; each step is one.
Requests = Callable[[], Iterator[None]]
#: When requests began and how long each took, in nanoseconds of the one monotonic clock.
Times = list[tuple[int, int]]


class Clients:
    """Start them before this process opens a connection: they are forked."""

    def __init__(self, requests: Requests, *, pause: float = 0.0) -> None:
        """``pause``: seconds between two requests of a client, which are not timed."""
        context = multiprocessing.get_context("fork")
        self._stop: Any = context.RawValue(ctypes.c_bool, False)
        self._pipes: list[Connection] = []
        for _ in range(PROCESSES):
            ours, theirs = context.Pipe()
            arguments = (requests, theirs, self._stop, pause)
            context.Process(target=_serve, args=arguments, daemon=True).start()
            self._pipes.append(ours)

    def begin(self) -> None:
        """Let all of them go, one request after the other."""
        self._stop.value = False
        for pipe in self._pipes:
            pipe.send("go")

    def end(self) -> Times:
        """Stop them, and return what they did since."""
        self._stop.value = True
        times: Times = []
        for pipe in self._pipes:
            if not pipe.poll(PATIENCE):
                raise AssertionError("a client is stuck")
            times += pipe.recv()
        return times

    def run(self, seconds: float) -> Times:
        self.begin()
        time.sleep(seconds)
        return self.end()


def _serve(requests: Requests, pipe: Connection, stop: Any, pause: float) -> None:
    done: list[array[int]] = [array("q") for _ in range(THREADS)]
    barrier = threading.Barrier(THREADS + 1)

    def work(mine: array[int]) -> None:
        client = requests()
        next(client)  # connects
        while True:
            barrier.wait()
            while not stop.value:
                began = time.monotonic_ns()
                next(client)
                mine.extend((began, time.monotonic_ns() - began))
                if pause:
                    time.sleep(pause)
            barrier.wait()

    for mine in done:
        threading.Thread(target=work, args=(mine,), daemon=True).start()
    while pipe.recv():
        barrier.wait()
        barrier.wait()
        pipe.send(list(chain.from_iterable(map(_pairs, done))))
        for mine in done:
            del mine[:]


def _pairs(times: array[int]) -> zip[tuple[int, int]]:
    return zip(times[::2], times[1::2], strict=True)
