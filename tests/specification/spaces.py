"""What is searched whole: the roads, each in bounds that leave a space which can be finished."""

from __future__ import annotations

from dataclasses import dataclass

from tests.specification.protocol import Protocol
from tests.specification.rules import Bounds
from tests.specification.world import Road

SAME, OTHER = (1, 1), (1, 2)
OPERATIONS = (Road.DEDUPED, Road.UNDEDUPED)


@dataclass(frozen=True)
class Space:
    name: str
    protocol: Protocol


def _space(road: Road, bounds: Bounds, requests: tuple[int, int] = SAME) -> Space:
    parts = [str(road), "two owners" if bounds.clients == 2 else "one owner", "the job"]
    if bounds.operator:
        parts.append("the operator")
    if bounds.on_its_way:
        parts.append("calls that arrive late")
    if bounds.lives > 1:
        parts.append("expiry and reuse")
    if requests == OTHER:
        parts.append("two different requests")
    return Space(", ".join(parts), Protocol(road, requests, bounds))


ALL_FOUR = Bounds(lives=1, releases=0, on_its_way=0)
LATE_CALLS = Bounds(lives=1, operator=False)
REUSE = Bounds(releases=0, on_its_way=0, operator=False)

#: `python -m tests.specification`.
WHOLE = [
    _space(Road.ATOMIC, Bounds(on_its_way=0)),
    _space(Road.ATOMIC, Bounds(on_its_way=0), OTHER),
    *(_space(road, bounds) for road in OPERATIONS for bounds in (ALL_FOUR, LATE_CALLS, REUSE)),
    *(_space(road, Bounds(lives=1, on_its_way=0), OTHER) for road in OPERATIONS),
]

#: The same roads within seconds, for the unit test.
SMALL = [
    _space(Road.ATOMIC, Bounds(lives=1, releases=0, on_its_way=0)),
    *(
        _space(road, bounds)
        for road in OPERATIONS
        for bounds in (
            Bounds(lives=1, releases=0, withdrawals=0, on_its_way=0, operator=False),
            Bounds(lives=1, releases=0, on_its_way=0, clients=1),
        )
    ),
]
