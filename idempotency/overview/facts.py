"""What an overview is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from idempotency.client.breaker import State as BreakerState
from idempotency.core.states import State
from idempotency.observability.vitals import Vitals
from idempotency.traffic import Traffic


@dataclass(frozen=True, slots=True)
class StateCount:
    """How many keys are in a state."""

    state: State
    #: None: nobody knows without counting them.
    number: int | None
    #: Of the planner; else they were counted.
    estimated: bool = False
    #: Counting stopped there.
    or_more: bool = False


@dataclass(frozen=True, slots=True)
class Keys:
    """The table of keys."""

    states: tuple[StateCount, ...]
    #: Since the oldest key that is PROCESSING was claimed first; None: there is none.
    oldest_processing: timedelta | None
    #: When the estimates were made; None: never, or nobody knows.
    estimated_at: datetime | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table, with all its partitions."""

    name: str
    #: An estimate; None: never analysed.
    rows: int | None
    #: With indexes and what is stored out of line.
    size: int
    indexes: int


@dataclass(frozen=True, slots=True)
class Day:
    """A day's partitions of responses and events together."""

    day: date
    rows: int
    size: int
    #: Whether both are attached; a detached one is about to be dropped, or was left.
    attached: bool


@dataclass(frozen=True, slots=True)
class Storage:
    """What the tables take. Only PostgreSQL says."""

    tables: tuple[Table, ...]
    #: The oldest first; empty where there are no partitions.
    days: tuple[Day, ...]
    #: The oldest day that may be dropped as soon as no live key needs it, and from when on.
    next_drop: tuple[date, datetime] | None


@dataclass(frozen=True, slots=True)
class Breaker:
    """Whether an operation of a dependency is called at the moment."""

    operation: str
    state: BreakerState
    #: Seconds until an open one lets a probe through; None: only its own process knows.
    opens_for: float | None


@dataclass(frozen=True, slots=True)
class Dependency:
    """What is called, and what its breakers and its retry budget say."""

    name: str
    breakers: tuple[Breaker, ...]
    #: First attempts and retries of the last minute; None: only each process knows.
    attempts: tuple[int, int] | None

    @property
    def calm(self) -> bool:
        """Every call is let through."""
        return all(breaker.state is BreakerState.CLOSED for breaker in self.breakers)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Those that are not calm first."""

    found: tuple[Dependency, ...] = ()
    #: What has to be known to read them rightly; may be empty.
    note: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """A statement that the overview needed, without its values."""

    sql: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Overview:
    """How the service stands. What could not be read is None, and ``problems`` says why."""

    at: datetime
    using: str
    keys: Keys | None
    vitals: Vitals | None
    storage: Storage | None
    traffic: Traffic | None
    #: Why there is no traffic; empty where there is.
    traffic_missing: str
    dependencies: Dependencies
    problems: tuple[str, ...] = ()
    queries: tuple[Query, ...] = ()
    #: What needs somebody, the most urgent first.
    attention: tuple[str, ...] = field(default=())
