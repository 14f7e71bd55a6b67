"""What there is: a key's row, whoever works on it, and what the gateway did."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Road(StrEnum):
    """How work is run."""

    ATOMIC = "atomic"
    #: An operation; the gateway answers a repeated key with the first effect.
    DEDUPED = "operation, the gateway dedupes"
    #: An operation; the gateway would repeat the effect.
    UNDEDUPED = "operation, the gateway does not dedupe"


# Plain numbers: an enumeration's hash is slow, and a world is hashed millions of times.


class State:
    PROCESSING = 0
    SUCCEEDED = 1
    FAILED = 2
    IN_DOUBT = 3


class Answer:
    NONE = 0
    #: The effect happened, and this is its answer.
    DONE = 1
    #: An operator ended the key.
    ENDED = 2


class At:
    """Where a process is: what it does next."""

    IDLE = 0
    LOOKED = 1
    WON = 2
    #: It has worked, and nothing of it is committed.
    WORKED = 3
    #: Past its recovery point, about to make the first call.
    PREPARED = 4
    ANSWERED = 5
    UNKNOWN = 6
    NOT_SENT = 7
    #: An operator who has taken the key over; what he found is in ``write``.
    SETTLING = 8
    #: Has written in its transaction, and holds the row's lock.
    WRITTEN = 9


class Write:
    """What a transaction is going to commit."""

    NOTHING = 0
    COMPLETE = 1
    PREPARE = 2
    WITHDRAW = 3


class Row(NamedTuple):
    """The key's row. ``generation`` is its id, ``owner`` the token of its attempt."""

    generation: int
    request: int
    state: int
    owner: int
    leased: bool
    #: The downstream key of the intent, set at the recovery point; 0: none.
    intent: int = 0
    #: Intents that were withdrawn in this generation.
    withdrawn: int = 0
    answer: int = Answer.NONE
    expired: bool = False
    #: A ghost: which life of the key it is. A key lives until it expires.
    life: int = 0


class Process(NamedTuple):
    at: int = At.IDLE
    generation: int = 0
    owner: int = 0
    life: int = 0
    #: The downstream key it calls with.
    key: int = 0
    #: It made the intent itself, so no call was made before its own.
    first: bool = False
    write: int = Write.NOTHING
    #: What it read; None: nothing, or that there is no row.
    seen: Row | None = None
    #: A ghost: somebody took its lease over, or ended it.
    lost: bool = False


class World(NamedTuple):
    row: Row | None
    #: Two clients' requests, the job, the operator.
    processes: tuple[Process, ...]
    #: Generations there were.
    generations: int
    #: Lives that ended by expiry.
    life: int
    #: Effects in each life: committed work, or money that the gateway moved.
    effects: tuple[int, ...]
    #: The downstream keys that the gateway has answered.
    answered: frozenset[int]
    #: Calls that were sent, given up, and may still arrive: key and life.
    on_its_way: tuple[tuple[int, int], ...]
    #: How often a handler may still be refused, for the space to be finite.
    releases: int


IDLE = Process()
NAMES = ("client A", "client B", "the job", "the operator")
CLIENTS, JOB, OPERATOR = (0, 1), 2, 3


def normal(world: World) -> World:
    """The same world with its tokens numbered from 1 in the order they are found: only whether two
    are equal ever counts."""
    numbers = {0: 0}
    row = world.row
    if row is not None:
        numbers[row.owner] = 1
    changed = row is not None and row.owner != 1
    for process in world.processes:
        for token in (process.owner, process.seen.owner if process.seen else 0):
            if token not in numbers:
                numbers[token] = len(numbers)
            changed = changed or numbers[token] != token
    if not changed:
        return world
    return world._replace(
        row=row and row._replace(owner=numbers[row.owner]),
        processes=tuple(_renumbered(process, numbers) for process in world.processes),
    )


def _renumbered(process: Process, numbers: dict[int, int]) -> Process:
    if process is IDLE:
        return process
    seen = process.seen and process.seen._replace(owner=numbers[process.seen.owner])
    return process._replace(owner=numbers[process.owner], seen=seen)


def unused_token(world: World) -> int:
    """A token that nobody has had, as a new UUID is."""
    tokens = [world.row.owner if world.row else 0]
    for process in world.processes:
        tokens += (process.owner, process.seen.owner if process.seen else 0)
    return max(tokens) + 1
