"""What a person may do to a key: the service behind the admin and the commands."""

from __future__ import annotations

import uuid

from django.http import HttpRequest

from idempotency.conf import settings
from idempotency.core.errors import ForceFailed
from idempotency.core.responses import RecordedResponse
from idempotency.http.problems import problem_response
from idempotency.http.recording import record
from idempotency.stores import get_store

__all__ = ["final_answer", "force_fail"]


def force_fail(
    key_id: int,
    *,
    owner: uuid.UUID,
    actor: str,
    reason: str,
    final: bool,
    request: HttpRequest | None = None,
    using: str | None = None,
) -> bool:
    """End the attempt of ``owner``, which is the one the operator saw. A live worker's work is then
    rolled back.

    Not ``final``: the key is free for a retry of the same request; an operation that has passed its
    recovery point resumes there, with the same downstream key. ``final``: every retry gets
    :func:`final_answer`, until the key expires.

    False, and nothing written, when the key is not open under that owner any more: it completed, or
    somebody else took over. ``request`` only helps to spell the URL of the problem's page.
    """
    return get_store(using).force_fail(
        key_id,
        owner=owner,
        actor=actor,
        reason=reason,
        ttl=settings().ttl,
        response=final_answer(request) if final else None,
    )


def final_answer(request: HttpRequest | None = None) -> RecordedResponse:
    """The 410 that a key ended for good answers with. The operator's reason stays inside."""
    return record(problem_response(ForceFailed(), request))
