"""An event loop whose clock jumps to the next timer: waits take no time, and are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Waits by moving the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits for something that never comes")
        self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """For one thread: what another thread does is not waited for."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run the function in a loop of its own, and fail where it leaves a task behind."""
    loop = VirtualLoop()

    async def whole() -> T:
        try:
            return await main()
        finally:
            await settled()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    try:
        return loop.run_until_complete(whole())
    finally:
        loop.close()


async def settled() -> None:
    """Let everything happen that needs no time."""
    for _ in range(10):
        await asyncio.sleep(0)
