"""A service outside the database, and operations that call it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import Group

from idempotency.operations import Done, NotSent, Operation, Outcome, Refused, Reply, Unknown


class Elsewhere:
    """The other side: its effects outlive every rollback of ours. Dedupes by key."""

    def __init__(self) -> None:
        #: What the next calls come to, one after the other; then all are done.
        self.script: list[Callable[[str], Outcome]] = []
        self.asked: list[str] = []
        self.effects: dict[str, str] = {}

    def call(self, key: str) -> Outcome:
        self.asked.append(key)
        return self.script.pop(0)(key) if self.script else self.done(key)

    def done(self, key: str) -> Outcome:
        """The effect happens, once for a key."""
        return Done({"id": self.effects.setdefault(key, f"e{len(self.effects) + 1}")})

    def refused(self, key: str) -> Outcome:
        return Refused({"code": "declined"})

    def not_sent(self, key: str) -> Outcome:
        return NotSent("connection refused", retry_after=7)

    def unknown(self, key: str) -> Outcome:
        return Unknown("timeout before the effect")

    def lost(self, key: str) -> Outcome:
        """The effect happens, and the answer is lost."""
        self.done(key)
        return Unknown("timeout after the effect")


elsewhere = Elsewhere()


class Steps:
    """What a test puts in the place of a step, and what was done so far."""

    def __init__(self) -> None:
        self.prepare: Callable[[], Any] = lambda: None
        self.finalize: Callable[[], Reply | None] = lambda: None
        self.withdraw: Callable[[], None] = lambda: None
        self.done: list[str] = []


steps = Steps()


def reset() -> None:
    elsewhere.__init__()  # type: ignore[misc]
    steps.__init__()  # type: ignore[misc]


class Buy(Operation):
    """Its intent is a row named ``pending …``, its result the same row as ``bought …``."""

    name = "tests.buy"
    service = "elsewhere"

    def prepare(self, request: Any) -> dict[str, Any] | Reply:
        steps.done.append("prepare")
        intent = Group.objects.create(name=f"pending {uuid.uuid4()}")
        instead = steps.prepare()
        return {"intent": intent.pk, **self.arguments} if instead is None else instead

    def call(self, context: dict[str, Any], key: str) -> Outcome:
        return elsewhere.call(key)

    def finalize(self, context: dict[str, Any], outcome: Done | Refused) -> Reply:
        steps.done.append("finalize")
        intent = Group.objects.get(pk=context["intent"])
        if isinstance(outcome, Refused):
            intent.delete()
            reply = Reply(402, outcome.result)
        else:
            intent.name = intent.name.replace("pending", "bought")
            intent.save()
            headers = {"Location": f"/things/{intent.pk}", "X-Request-ID": "1"}
            reply = Reply(201, {"bought": outcome.result["id"], "é": None}, headers)
        return steps.finalize() or reply

    def withdraw(self, context: dict[str, Any]) -> None:
        steps.done.append("withdraw")
        Group.objects.get(pk=context["intent"]).delete()
        steps.withdraw()


class BuyOnce(Buy):
    """The other side would do it again under the same key."""

    name = "tests.buy_once"
    downstream_dedupes = False


def bought() -> int:
    return Group.objects.filter(name__startswith="bought").count()


def pending() -> int:
    return Group.objects.filter(name__startswith="pending").count()
