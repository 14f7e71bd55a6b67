"""What steps are made of: writes to the row, effects, and the fences."""

from __future__ import annotations

from tests.specification.rules import Promise, Step
from tests.specification.world import At, Process, Row, State, World


def put(world: World, who: int, process: Process) -> World:
    processes = world.processes
    return world._replace(processes=(*processes[:who], process, *processes[who + 1 :]))


def write(world: World, new: Row | None, *, ends: bool = False) -> World:
    """The world with the row as it is now. Whoever held the token before has lost its lease."""
    old = world.row
    if old is None or (not ends and new is not None and new.owner == old.owner):
        return world._replace(row=new)
    processes = tuple(
        p._replace(lost=True) if p.owner == old.owner and p.at != At.IDLE else p
        for p in world.processes
    )
    return world._replace(row=new, processes=processes)


def effect(text: str, world: World, key: int, life: int) -> Step:
    """Money moves."""
    effects = list(world.effects)
    effects[life] += 1
    broken = Promise.ONE_EFFECT if effects[life] > 1 else None
    return Step(text, world._replace(effects=tuple(effects)), broken)


def owned(world: World, process: Process) -> bool:
    """The fence of every write of an owner."""
    row = world.row
    return (
        row is not None
        and row.generation == process.generation
        and row.owner == process.owner
        and row.state == State.PROCESSING
    )


def claim_breaks(row: Row | None, request: int) -> Promise | None:
    if row is None or row.expired:
        return None
    if row.state == State.IN_DOUBT:
        return Promise.DOUBT
    if row.state == State.SUCCEEDED:
        return Promise.FINAL
    if row.state == State.PROCESSING and row.leased:
        return Promise.LEASE
    return None if row.request == request else Promise.SAME_REQUEST


def doubted(world: World) -> World:
    row = world.row
    assert row is not None
    return write(world, row._replace(state=State.IN_DOUBT, leased=False))


def may_arrive(world: World, key: int) -> bool:
    """Whether a call is on its way, or somebody is about to make it."""
    calling = (At.PREPARED, At.WON, At.NOT_SENT)
    return any(key == sent for sent, _ in world.on_its_way) or any(
        process.key == key and process.at in calling for process in world.processes
    )


def locked(world: World) -> bool:
    """Whether a transaction has written the row and not ended: other writes wait for it."""
    return any(process.at == At.WRITTEN for process in world.processes)
