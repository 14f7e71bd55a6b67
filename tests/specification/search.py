"""Look at every world that can be reached, breadth first, so that a story found is a shortest."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass

from tests.specification.protocol import Protocol
from tests.specification.rules import Promise
from tests.specification.world import At, State, World, normal


@dataclass(frozen=True)
class Broken:
    promise: Promise
    #: The steps that lead there.
    story: tuple[str, ...]


@dataclass(frozen=True)
class Searched:
    worlds: int
    steps: int
    #: None: every world was looked at, and every promise holds.
    broken: Broken | None

    @property
    def exhausted(self) -> bool:
        return self.broken is None


class _Space:
    """The worlds found, each with the step that found it."""

    def __init__(self, start: World) -> None:
        self.numbers = {start: 0}
        self.worlds = [start]
        self.found_from = array("l", [0])
        self.found_by = [""]

    def number(self, world: World, parent: int, text: str) -> int:
        number = self.numbers.setdefault(world, len(self.worlds))
        if number == len(self.worlds):
            self.worlds.append(world)
            self.found_from.append(parent)
            self.found_by.append(text)
        return number

    def story(self, number: int) -> tuple[str, ...]:
        steps = []
        while number:
            steps.append(self.found_by[number])
            number = self.found_from[number]
        return tuple(reversed(steps))


def search(protocol: Protocol) -> Searched:
    """Every world there is, up to the first broken promise."""
    space = _Space(normal(protocol.start()))
    before, after = array("l"), array("l")
    done = 0
    while done < len(space.worlds):
        for step in protocol.steps(space.worlds[done]):
            if step.broken:
                story = (*space.story(done), step.text)
                broken = Broken(step.broken, story)
                return Searched(len(space.worlds), len(before), broken)
            before.append(done)
            after.append(space.number(normal(step.world), done, step.text))
        done += 1
    stuck = _stuck(protocol, space.worlds, before, after)
    broken = None if stuck is None else Broken(Promise.SETTLES, space.story(stuck))
    return Searched(len(space.worlds), len(before), broken)


def settled(protocol: Protocol, world: World) -> bool:
    """Nobody is at the key, and it has its answer, or is free for its request. Where there is no
    operator, it may wait for one."""
    if any(process.at != At.IDLE for process in world.processes):
        return False
    ends = [State.SUCCEEDED, State.FAILED] + [State.IN_DOUBT] * (not protocol.bounds.operator)
    return world.row is None or world.row.state in ends


def _stuck(
    protocol: Protocol, worlds: list[World], before: array[int], after: array[int]
) -> int | None:
    """The first world from which none that is settled can be reached, by walking backwards."""
    into: list[list[int]] = [[] for _ in worlds]
    for source, target in zip(before, after, strict=True):
        into[target].append(source)
    reached = bytearray(settled(protocol, world) for world in worlds)
    queue = deque(number for number, yes in enumerate(reached) if yes)
    while queue:
        for source in into[queue.popleft()]:
            if not reached[source]:
                reached[source] = 1
                queue.append(source)
    stuck = reached.find(0)
    return None if stuck < 0 else stuck
