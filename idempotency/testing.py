"""What a project's own tests need: assert a replay, expire a lease, freeze the clock.

::

    def test_double_click_charges_once(client):
        with assert_runs_once(Charge.objects.all()):
            first = client.post("/charges", {...}, headers={"Idempotency-Key": "a"})
            again = client.post("/charges", {...}, headers={"Idempotency-Key": "a"})
        assert_replayed(again, of=first)

Works in ``TestCase`` as well as in ``TransactionTestCase``; only races between threads, and
``request.idempotency.renew()``, which writes on a connection of its own, need the latter.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.http.response import HttpResponseBase

from idempotency import maintenance
from idempotency.core.responses import REPLAY_MARKER
from idempotency.core.states import State
from idempotency.models import IdempotencyKey, StoredResponse
from idempotency.outbox.dispatcher import Dispatcher
from idempotency.stores import clock, get_store

__all__ = [
    "assert_executed",
    "assert_replayed",
    "assert_runs_once",
    "deliver_outbox",
    "expire_key",
    "expire_lease",
    "freeze_clock",
    "hold_key",
    "resume_operations",
]


def assert_executed(response: HttpResponseBase) -> None:
    """The handler ran for this answer: it carries no replay marker and is no refusal of ours."""
    marker = response.headers.get(REPLAY_MARKER)
    if marker is not None:
        raise AssertionError(f"The answer is a replay ({REPLAY_MARKER}: {marker}).")
    if response.headers.get("Content-Type") == "application/problem+json":
        raise AssertionError(f"The request was refused: {_body(response)!r}")


def assert_replayed(response: HttpResponseBase, *, of: HttpResponseBase | None = None) -> None:
    """The answer is a replay; with ``of``, of exactly that first answer."""
    if response.headers.get(REPLAY_MARKER) != "true":
        raise AssertionError(f"The answer is no replay: {_seen(response)}.")
    if of is not None and _seen(response) != _seen(of):
        raise AssertionError(
            f"The replay differs from the first answer: {_seen(response)} is not {_seen(of)}."
        )


@contextmanager
def assert_runs_once(effects: QuerySet[Any]) -> Iterator[None]:
    """Whatever is sent inside the block adds exactly one row to ``effects``."""
    before = effects.all().count()
    yield
    added = effects.all().count() - before
    if added != 1:
        raise AssertionError(f"Expected one effect, found {added}.")


@contextmanager
def freeze_clock(at: datetime | None = None) -> Iterator[FrozenClock]:
    """Freeze the clock that decides about leases and expiry; move it with ``clock.advance(...)``.

    Only the idempotency layer's clock: your own ``timezone.now()`` goes on. Other processes are
    not affected.
    """
    frozen = FrozenClock(at or datetime.now(UTC))
    before = clock.frozen()
    clock.freeze(frozen.now)
    try:
        yield frozen
    finally:
        clock.freeze(before)


class FrozenClock:
    """The clock inside ``freeze_clock``."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def advance(self, by: timedelta) -> None:
        """Let time pass, or go back with a negative timedelta."""
        self.now += by
        clock.freeze(self.now)


@contextmanager
def hold_key(key: str) -> Iterator[None]:
    """Inside the block the key's request counts as running: its duplicates hear 409, or wait.

    The key must have been used. Afterwards it is what it was, unless somebody took it over.
    """
    row, holder = _the(key), uuid.uuid4()
    answers = StoredResponse.objects.using(get_store().using).filter(key_id=row.pk)
    kept = list(answers)
    answers.delete()
    _rows(key).update(
        state=State.PROCESSING.value,
        lease_expires_at=clock.now() + timedelta(hours=1),
        expires_at=None,
        owner=holder,
    )
    try:
        yield
    finally:
        as_before = {
            name: getattr(row, name)
            for name in ("state", "lease_expires_at", "expires_at", "owner")
        }
        if _rows(key).filter(owner=holder).update(**as_before):
            answers.bulk_create(kept)


def expire_lease(key: str) -> None:
    """Let the lease of a running key be over, as if its process had been killed long ago."""
    if not _rows(key).filter(state=State.PROCESSING.value).update(lease_expires_at=_past()):
        raise AssertionError(f"No running key is named {key!r}.")


def expire_key(key: str) -> None:
    """Let a settled key be expired, so that its next use is a new request."""
    if not _rows(key).filter(expires_at__isnull=False).update(expires_at=_past()):
        raise AssertionError(f"No settled key is named {key!r}.")


def resume_operations() -> int:
    """Run now what the scheduled job would: resume abandoned operations. Returns how many."""
    return maintenance.resume_operations().done


def deliver_outbox() -> int:
    """Deliver the messages that are due now, in this thread. Returns how many arrived.

    What fails is due again after its back-off: see ``freeze_clock``.
    """
    with closing(Dispatcher(threads=0)) as dispatcher:
        return dispatcher.run().delivered


def _past() -> Any:
    return clock.now() - timedelta(seconds=1)


def _rows(key: str) -> QuerySet[IdempotencyKey]:
    return IdempotencyKey.objects.using(get_store().using).filter(key=key)


def _the(key: str) -> IdempotencyKey:
    rows = list(_rows(key)[:2])
    if len(rows) != 1:
        raise AssertionError(f"Expected one key named {key!r}, found {len(rows)}.")
    return rows[0]


def _seen(response: HttpResponseBase) -> tuple[int, bytes]:
    return response.status_code, _body(response)


def _body(response: HttpResponseBase) -> bytes:
    content: bytes = getattr(response, "content", b"")
    return content
