"""The thread beside the main one: an event loop with the proxies and the merchants."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from tests.chaos.proxy import Proxy, Weather

T = TypeVar("T")
PATIENCE = 30.0


class Side:
    """Called from the main thread."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.proxies: dict[str, Proxy] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def start_proxy(self, name: str, upstream: int) -> int:
        """Put a proxy before that port; the proxy's own."""
        proxy = Proxy(upstream, random.Random(f"{name} {self._seed}"))
        self.run(proxy.start()).result(PATIENCE)
        self.proxies[name] = proxy
        return proxy.port

    def turn(self, name: str, weather: Weather, share: float = 1.0) -> None:
        self._loop.call_soon_threadsafe(self.proxies[name].turn, weather, share)

    def cut(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self.proxies[name].cut)
