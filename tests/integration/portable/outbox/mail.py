"""A channel whose receiver does as a test wants, and a dispatcher without threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, ClassVar

from django.db import transaction

from idempotency import outbox
from idempotency.client.backoff import Fixed
from idempotency.client.breaker import BreakerPolicy
from idempotency.models import OutboxMessage
from idempotency.outbox.channels import find
from idempotency.outbox.claims import Claimed, Lane, claim
from idempotency.outbox.dispatcher import Dispatcher, Tally
from idempotency.outbox.messages import Ending, Message

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
#: Of the channel ``mail``.
ATTEMPTS, BACKOFF, AT_ONCE = 3, 10.0, 2


class Mail:
    """What arrived, and what the receiver says to what comes next."""

    arrived: ClassVar[list[Message]] = []
    #: By the name of the message: what its next sends come to. Afterwards it is delivered.
    answers: ClassVar[dict[str, list[Ending | Exception]]] = {}
    #: Called with every message before anything else.
    meet: ClassVar[Callable[[Message], Any]] = lambda message: None

    @classmethod
    def reset(cls) -> None:
        cls.arrived.clear()
        cls.answers.clear()
        cls.meet = lambda message: None

    @classmethod
    def names(cls) -> list[str]:
        return [message.payload["name"] for message in cls.arrived]


@outbox.channel(
    "mail",
    attempts=ATTEMPTS,
    max_age=3600,
    lease=60,
    at_once=AT_ONCE,
    backoff=Fixed(BACKOFF),
    breaker=BreakerPolicy(minimum_calls=1_000_000),
)
def mail(message: Message) -> Ending:
    Mail.meet(message)
    Mail.arrived.append(message)
    answer = (Mail.answers.get(message.payload["name"]) or [outbox.Delivered("250 ok")]).pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


def write(*names: str, to: str = "", about: str = "", channel: str = "mail") -> None:
    """One transaction that sends these."""
    with transaction.atomic():
        for name in names:
            outbox.send(channel, {"name": name}, destination=to, aggregate=about)


def dispatch() -> Tally:
    """Deliver what is due, in this thread."""
    with closing(Dispatcher(threads=0)) as dispatcher:
        return dispatcher.run()


def of(name: str) -> Any:
    return OutboxMessage.objects.get(payload__name=name)


def states() -> dict[str, str]:
    return {row.payload["name"]: row.state for row in OutboxMessage.objects.order_by("sequence")}


def history(name: str) -> list[tuple[str, int, str]]:
    rows = of(name).history.order_by("id")
    return [(row.kind, row.attempt, row.detail) for row in rows]


def take(most: int = 100, busy: dict[Lane, int] | None = None) -> list[Claimed]:
    """Claim once, as a dispatcher does."""
    return claim("default", [find("mail")], busy or {}, most).claimed


def take_all(most: int = 100) -> list[Claimed]:
    """Claim until there is nothing more."""
    found: list[Claimed] = []
    while True:
        batch = claim("default", [find("mail")], {}, most)
        found += batch.claimed
        if not (batch.claimed or batch.more):
            return found


def names(claimed: list[Claimed]) -> list[str]:
    return [one.message.payload["name"] for one in claimed]
