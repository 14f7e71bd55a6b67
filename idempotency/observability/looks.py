"""Looks at a database that may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from django.db import connections

T = TypeVar("T")


class NoAnswer(Exception):
    """The time is over and there is no answer."""


class Look:
    """Asks in a thread of its own, on a connection of its own, and stops waiting in time.

    A statement timeout is kept by the server, and a server that hangs keeps none; looking up a
    host's name has no limit at all. The thread waits on for as long as that takes. There is one at
    most: while it hangs, whoever asks next waits as long and starts none.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._under_way = threading.Lock()

    def at(self, question: Callable[[], T]) -> T:
        """The answer, or what the question raises. Raises ``NoAnswer``."""
        deadline = time.monotonic() + self._seconds
        if not self._under_way.acquire(timeout=self._seconds):
            raise NoAnswer
        answer: Future[T] = Future()
        threading.Thread(target=self._ask, args=(question, answer), daemon=True).start()
        try:
            return answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            if not answer.done():
                raise NoAnswer from None
            return answer.result()  # at the last moment, or a TimeoutError of the question's own

    def _ask(self, question: Callable[[], T], answer: Future[T]) -> None:
        try:
            found = question()
        except Exception as error:
            self._finish()
            answer.set_exception(error)
        else:
            self._finish()
            answer.set_result(found)

    def _finish(self) -> None:
        try:
            connections.close_all()
        finally:
            self._under_way.release()
