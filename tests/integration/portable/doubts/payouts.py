"""Operations about money whose outcome is open, and people who decide about them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group

from idempotency import doubts
from idempotency.approvals import Person
from idempotency.definitions import Amount
from idempotency.doubts import Ending
from idempotency.enquiry import Told
from idempotency.http.requests import build_policy
from idempotency.models import Choice, IdempotencyKey
from idempotency.operations import PREPARED, Done, NotSent, Outcome, Refused, envelope
from idempotency.operators import Seen
from tests.integration.portable.conformance.harness import Key
from tests.integration.portable.jobs.shipments import Shipment, named

MARIA, BOB = Person("maria", "1"), Person("bob", "2")


class Payout(Shipment):
    """The bank would pay twice. How much it is about is in the context."""

    name = "tests.payout"
    service = "bank"
    downstream_dedupes = False

    def amount_of(self, context: dict[str, Any]) -> Amount | None:
        return Amount(context["minor"], context["currency"])

    def result_by_hand(
        self, context: dict[str, Any], *, done: bool, record: str
    ) -> dict[str, Any] | None:
        return {"id": record} if done else {"code": record}


class Gift(Payout):
    """The bank remembers its downstream key."""

    name = "tests.gift"
    downstream_dedupes = True


class Secretive(Payout):
    """Only the bank's own answer can finish it."""

    name = "tests.secretive"

    def result_by_hand(self, *_: Any, **__: Any) -> None:
        return None


def stand(
    what: str = "k",
    *,
    kind: type[Payout] = Payout,
    minor: int = 100,
    currency: str = "EUR",
    doubt: bool = True,
    lease: timedelta | None = None,
) -> Key:
    """An operation past its recovery point, in doubt unless it says otherwise."""
    key = named(what)
    won = key.won() if lease is None else key.won(lease=lease)
    context = {"what": what, "minor": minor, "currency": currency}
    key.store.record_recovery_point(won, PREPARED, envelope(kind(), context, build_policy({}), won))
    if doubt:
        key.store.doubt(won, "no answer")
    return key


def says(answer: Outcome, what: str = "k") -> None:
    """What the bank answers when it is asked."""
    Shipment.found[what] = lambda: answer


PAID, REFUSED, NOTHING = Done({"id": "b1"}), Refused({"code": "closed"}), NotSent("unheard of")


def decide(
    key: Key,
    choice: Choice = Choice.SUCCEEDED,
    *,
    person: Person = MARIA,
    also: Callable[[], None] | None = None,
    seen: Seen | None = None,
    **told: Any,
) -> Ending:
    """Decide about a key as it stands now, or as it was seen."""
    row = key.row
    told = {"reason": "the bank's support said so"} | told
    return doubts.decide(
        row.pk, seen=seen or Seen.of(row), told=Told(choice, **told), person=person, also=also
    )


def paid() -> list[str]:
    """What was written as the result."""
    return list(Group.objects.order_by("name").values_list("name", flat=True))


def stays(key: Key, before: IdempotencyKey) -> bool:
    """Whether the key stands as it did, as far as anybody may decide about it."""
    return Seen.of(key.row) == Seen.of(before)
