"""What is known after a run: what clients heard, and what the books of both sides say."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos import answers

CHARGE, REFUND, TRANSFER = "charge", "refund", "transfer"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer that a client heard."""

    status: int
    code: str
    #: Equal for equal answers.
    print: str
    #: What was made, of a 201.
    resource: str = ""
    #: To another request than the first under this key.
    other: bool = False
    replayed: bool = False

    @property
    def final(self) -> bool:
        return answers.is_final(self.status, self.code)


@dataclass(slots=True)
class Client:
    """One key as its client saw it."""

    key: str
    kind: str
    #: Whether it came back until it had an answer.
    returns: bool = True
    requests: int = 0
    #: X-Demo-Fault of its first request.
    fault: str = ""
    #: Each answer that differs from the others, once.
    answers: set[Answer] = field(default_factory=set)

    def finals(self) -> list[Answer]:
        """To its own request."""
        return [it for it in self.answers if it.final and not it.other]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a key's story in the database; ``at`` in seconds, by the database's clock."""

    kind: str
    at: float
    attempt: int
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Row:
    """One key in the table, with the answer that is kept for it."""

    id: int
    key: str
    state: str
    created: float = 0.0
    recovery_point: str = ""
    kept: Answer | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def ended_for_good(self) -> bool:
        """By an operator."""
        forced = (it for it in self.events if it.kind == "force_failed")
        return any(it.data.get("final") for it in forced)


@dataclass(frozen=True, slots=True)
class Movement:
    """One charge, refund or transfer of ours."""

    kind: str
    public_id: str
    key_id: int | None
    status: str
    amount: int
    currency: str
    gateway_reference: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of our ledger."""

    transaction: int
    account: int
    amount: int
    currency: str


@dataclass(frozen=True, slots=True)
class Posting:
    """One transaction of our ledger; ``movement`` is a public id."""

    id: int
    kind: str
    movement: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """One movement of money in the gateway's ledger."""

    id: str
    kind: str
    amount: int
    currency: str
    reference: str


@dataclass(slots=True)
class Facts:
    """All of it."""

    #: Seconds.
    lease: float
    clients: dict[str, Client] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    movements: list[Movement] = field(default_factory=list)
    postings: list[Posting] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    #: Account -> its kept balance.
    balances: dict[int, int] = field(default_factory=dict)
    moved: list[Moved] = field(default_factory=list)


@dataclass(slots=True)
class Case:
    """Everything about one key."""

    key: str
    client: Client | None = None
    rows: list[Row] = field(default_factory=list)
    movements: list[Movement] = field(default_factory=list)
    postings: list[Posting] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)

    @property
    def row(self) -> Row | None:
        return self.rows[0] if self.rows else None

    @property
    def left_open(self) -> bool:
        """Ended for good by an operator when the gateway may have been asked: the one way in which
        a movement stays pending, and the gateway may have moved the money."""
        return any(row.ended_for_good and row.recovery_point for row in self.rows)


def cases(facts: Facts) -> list[Case]:
    """What is known, key by key. What belongs to no key is left out."""
    found: dict[str, Case] = {key: Case(key, it) for key, it in facts.clients.items()}
    names: dict[int, str] = {}
    for row in facts.rows:
        found.setdefault(row.key, Case(row.key)).rows.append(row)
        names[row.id] = row.key
    keys: dict[str, str] = {}
    for movement in facts.movements:
        if movement.key_id in names:
            keys[movement.public_id] = names[movement.key_id]
            found[names[movement.key_id]].movements.append(movement)
    for posting in facts.postings:
        if posting.movement in keys:
            found[keys[posting.movement]].postings.append(posting)
    for moved in facts.moved:
        if moved.reference in keys:
            found[keys[moved.reference]].moved.append(moved)
    return list(found.values())


@dataclass(slots=True)
class Traffic:
    """What a history comes to."""

    clients: dict[str, Client] = field(default_factory=dict)
    requests: int = 0
    replays: int = 0
    #: Requests without an answer, by what the client saw.
    unanswered: Counter[str] = field(default_factory=Counter)
    #: Answers by status and code.
    answered: Counter[str] = field(default_factory=Counter)
    #: X-Demo-Fault that was sent.
    asked_faults: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)

    @property
    def retries(self) -> int:
        return self.requests - sum(1 for it in self.clients.values() if it.requests)


def traffic_of(history: Iterable[dict[str, Any]]) -> Traffic:
    """Read a history."""
    traffic = Traffic()
    bodies: dict[str, str] = {}
    other: dict[int, bool] = defaultdict(bool)
    for event in history:
        key = event["key"]
        match event["event"]:
            case "intent":
                traffic.clients[key] = Client(key, event["kind"], event["returns"])
            case "sent":
                first = bodies.setdefault(key, event["body"])
                other[event["number"]] = event["body"] != first
                _count_request(traffic, event)
            case "no_answer" | "hung_up":
                other.pop(event["number"], None)
                traffic.unanswered[event.get("why", "hung up")] += 1
            case "answer":
                _hear(traffic, event, other.pop(event["number"], False))
            case "defect":
                traffic.defects.append(event["error"])
    return traffic


def _count_request(traffic: Traffic, event: dict[str, Any]) -> None:
    traffic.requests += 1
    traffic.clients[event["key"]].requests += 1
    if fault := event.get("fault"):
        traffic.asked_faults[fault] += 1
        traffic.clients[event["key"]].fault = fault


def _hear(traffic: Traffic, event: dict[str, Any], other: bool) -> None:
    answer = answer_of(event["status"], event["location"], event["body"])
    traffic.replays += event["replayed"]
    traffic.answered[f"{answer.status} {answer.code}".strip()] += 1
    heard = dataclasses.replace(answer, other=other, replayed=event["replayed"])
    traffic.clients[event["key"]].answers.add(heard)


def answer_of(status: int, location: str, body: str) -> Answer:
    return Answer(
        status,
        answers.code_of(status, body),
        answers.print_of(status, location, body),
        answers.resource_of(status, body),
    )
