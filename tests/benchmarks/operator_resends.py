"""One round of the race of ``operator_races`` about a message of the outbox.

A dispatcher hangs in its send until its lease is over and another one has given the message up.
Then, at one moment, it comes back and says that the message arrived, two operators re-send what
they saw dead, a third one discards it, and a dispatcher looks for work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import ClassVar

from django.db import transaction

from idempotency import outbox
from idempotency.client.backoff import Fixed
from idempotency.client.breaker import BreakerPolicy
from idempotency.models import OutboxMessage
from idempotency.outbox import operators
from idempotency.outbox.dispatcher import Dispatcher
from idempotency.outbox.operators import Seen
from idempotency.testing import freeze_clock
from tests.benchmarks.operator_rounds import PATIENCE, Meeting, Played, Stage, at_once, unlike

LEASE = 30.0


class Receiver:
    """What it answers next, and how often something arrived."""

    answer: ClassVar[Callable[[outbox.Message], outbox.Ending]]
    arrived: ClassVar[int] = 0


@outbox.channel(
    "races",
    attempts=2,
    lease=LEASE,
    backoff=Fixed(1.0),
    breaker=BreakerPolicy(minimum_calls=1_000_000),
)
def deliver(message: outbox.Message) -> outbox.Ending:
    Receiver.arrived += 1
    return Receiver.answer(message)


def race_to_resend(stage: Stage, number: int) -> Played:
    meeting, hangs = Meeting(5, stage.rng), threading.Event()

    def hang(message: outbox.Message) -> outbox.Ending:
        Receiver.answer = staticmethod(lambda message: outbox.Dead("refused"))
        hangs.set()
        meeting()
        return outbox.Delivered("too late")

    Receiver.arrived, Receiver.answer = 0, staticmethod(hang)
    with freeze_clock() as clock:
        with transaction.atomic():
            outbox.send("races", {"number": number}, destination="receiver")
        pk = OutboxMessage.objects.latest("sequence").pk

        def rest() -> list[bool]:
            assert hangs.wait(PATIENCE)
            clock.advance(timedelta(seconds=LEASE + 1))
            _dispatch()  # the second attempt, which is refused for good
            Receiver.answer = staticmethod(lambda message: outbox.Delivered())
            return _race(pk, meeting)

        _, (first, second, discarded) = at_once(_dispatch, rest)
        _dispatch()  # what was re-sent after the dispatcher had looked
    return _one_truth(pk, int(first) + int(second), int(discarded))


def _race(pk: int, meeting: Meeting) -> list[bool]:
    seen = Seen.of(OutboxMessage.objects.get(pk=pk))
    assert seen.state == "dead", seen

    def operator(act: Callable[..., bool]) -> bool:
        meeting()
        return act(pk, seen=seen, actor="ops", reason="drill")

    def dispatcher() -> None:
        meeting()
        _dispatch()

    *decided, _ = at_once(
        lambda: operator(operators.resend),
        lambda: operator(operators.resend),
        lambda: operator(operators.discard),
        dispatcher,
    )
    return decided


def _dispatch() -> None:
    with closing(Dispatcher(threads=0)) as dispatcher:
        dispatcher.run()


def _one_truth(pk: int, resent: int, discarded: int) -> Played:
    message = OutboxMessage.objects.get(pk=pk)
    kinds = list(message.history.values_list("kind", flat=True))
    facts = {
        "decided": (resent + discarded, 1),
        "the message": (message.state, "delivered" if resent else "discarded"),
        "re-sent in the history": (kinds.count("resent"), resent),
        "discarded in the history": (kinds.count("discarded"), discarded),
        "delivered in the history": (kinds.count("delivered"), resent),
        # The one that came too late, the one that was refused, and the one that was re-sent.
        "arrived": (Receiver.arrived, 2 + resent),
    }
    return ("re-send" if resent else "discard"), unlike(facts)
