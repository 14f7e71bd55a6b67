"""What a person may do to a key: the service behind the admin and the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from django.conf import settings as django_settings
from django.db import transaction
from django.http import HttpRequest
from django.utils import translation

from idempotency import inbox, settling, signals
from idempotency.conf import settings
from idempotency.core.errors import EndedUnsettled, ForceFailed
from idempotency.core.responses import RecordedResponse
from idempotency.core.states import State
from idempotency.http.problems import problem_response
from idempotency.http.recording import record
from idempotency.http.routes import protected_routes
from idempotency.models import IdempotencyKey
from idempotency.operations import Done, NotSent, Refused
from idempotency.settling import Finding, Resolution
from idempotency.stores import clock, get_store
from idempotency.stores.base import Seen

__all__ = [
    "Done",
    "NotSent",
    "Refused",
    "Seen",
    "Standing",
    "final_answer",
    "force_fail",
    "settle",
    "standing",
    "stands_as",
]


@dataclass(frozen=True, slots=True)
class Standing:
    """How an operation's key stands, for whoever has found out what became of its call."""

    seen: Seen
    #: Somebody holds its lease: he is about to know himself.
    is_held: bool
    #: It has its answer, or no recovery point: there is nothing to settle.
    is_over: bool


def standing(key_id: int, *, using: str | None = None) -> Standing | None:
    """What `settle` has to be told; None when there is no such key, as it was pruned."""
    keys = IdempotencyKey.objects.using(get_store(using).using).annotate(now=clock.now())
    key: Any = keys.filter(pk=key_id).first()
    if key is None:
        return None
    return Standing(
        seen=Seen.of(key),
        is_held=key.lease_expires_at is not None and key.lease_expires_at > key.now,
        is_over=key.state == State.SUCCEEDED or not key.recovery_point,
    )


def force_fail(
    key_id: int,
    *,
    seen: Seen,
    actor: str,
    reason: str,
    final: bool,
    request: HttpRequest | None = None,
    using: str | None = None,
) -> bool:
    """End the attempt that the operator saw. A live worker's work is then rolled back.

    Not ``final``: the key is free for a retry of the same request; an operation that has passed its
    recovery point resumes there, with the same downstream key. ``final``: every retry gets
    :func:`final_answer`, until the key expires.

    False, and nothing written, when the key does not stand as it was seen any more. ``request``
    only helps to spell the URL of the problem's page.
    """
    store = get_store(using)
    with transaction.atomic(using=store.using):
        if not stands_as(seen, key_id, store.using):
            return False
        ended = store.force_fail(
            key_id,
            owner=seen.owner,
            actor=actor,
            reason=reason,
            ttl=_ttl_of(key_id, store.using),
            response=final_answer(request, seen) if final else None,
        )
        if ended:
            _announce_at_commit(store.using, key_id, was=seen.state, actor=actor, reason=reason)
    return ended


def _announce_at_commit(using: str, key_id: int, **told: str) -> None:
    """Not before: the caller's transaction, in which this may be, can still roll the end back."""
    row = IdempotencyKey.objects.using(using).get(pk=key_id)
    announce = partial(signals.announce_row, signals.key_force_failed, row, now=row.state, **told)
    transaction.on_commit(announce, using=using)


def settle(
    key_id: int,
    *,
    seen: Seen,
    outcome: Finding,
    actor: str,
    reason: str,
    data: Mapping[str, Any] | None = None,
    also: Callable[[], None] | None = None,
    using: str | None = None,
) -> bool:
    """Settle an operation past its recovery point as its outside call is now known to have ended.

    ``Done(result)`` and ``Refused(result)``: as if the call had answered so; every retry gets the
    answer that comes of it. ``NotSent(reason)``: the call certainly had no effect and never will;
    the intent is withdrawn and the key is free for its own request. A live worker is fenced off and
    its work rolled back, but ``NotSent`` waits until its lease is over.

    False, and nothing written, when the key does not stand as it was seen any more, or is held
    (``NotSent``). Raises what ``finalize`` or ``withdraw`` raises, and ``ImproperlyConfigured``
    where the operation is not known here; the operation is then as open as before. ``data``: more
    for the key's story, JSON-able. ``also`` is called in the transaction that settles: what it
    writes is written with that or not at all.
    """
    resolution = Resolution(actor, reason, data or {}, also)
    with _language_of_the_service():
        return settling.settle(get_store(using), key_id, seen, outcome, resolution)


def stands_as(seen: Seen, key_id: int, using: str) -> bool:
    """Whether the key is as it was seen. Locks its row, so that it stays so up to the commit."""
    keys = IdempotencyKey.objects.using(using).select_for_update()
    standing = keys.filter(
        pk=key_id, owner=seen.owner, state=seen.state, recovery_point=seen.recovery_point
    )
    return standing.values_list("pk", flat=True).first() is not None


def _ttl_of(key_id: int, using: str) -> timedelta:
    """How long the answer has to stand: as long as the view's own would have. A key that expired
    sooner would run again while its client still retries."""
    keys = IdempotencyKey.objects.using(using).filter(pk=key_id)
    route, context = keys.values_list("route", "context").get()
    if context is not None:
        return timedelta(seconds=context["ttl"])
    if route.startswith(inbox.ROUTE):
        return settings().retention
    views = (view.policy.ttl for view in protected_routes() if view.policy is not None)
    return max([settings().ttl, *views])


def final_answer(request: HttpRequest | None, seen: Seen) -> RecordedResponse:
    """The 410 that a key ended for good answers with. The operator's reason stays inside.

    Past a recovery point the effect may have happened, so nobody is told to ask for it anew.
    """
    error = EndedUnsettled() if seen.recovery_point else ForceFailed()
    with _language_of_the_service():
        return record(problem_response(error, request))


def _language_of_the_service() -> translation.override:
    # What a client hears for ever is not in the language of an operator's browser.
    return translation.override(django_settings.LANGUAGE_CODE)
