"""Keys as a store would have left them, and people who look at them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client

from idempotency.core.keys import Scope
from idempotency.core.responses import RecordedResponse
from idempotency.models import IdempotencyKey, KeyEvent, StoredResponse
from idempotency.stores import clock

PASSWORD = "three blind mice"
JSON = (("Content-Type", "application/json"),)
CREATED = RecordedResponse(201, (*JSON, ("Location", "/v1/charges/ch_1")), b'{"id":"ch_1"}')


def now() -> datetime:
    """The frozen time, or the real one."""
    return clock.frozen() or datetime.now(UTC)


def write_key(
    state: str = "processing",
    *,
    lease: timedelta = timedelta(seconds=25),
    expires: timedelta = timedelta(hours=20),
    age: timedelta = timedelta(minutes=3),
    answer: RecordedResponse | None = None,
    **fields: Any,
) -> IdempotencyKey:
    """A key in a state. ``lease`` and ``expires`` count from now on, ``age`` back from now."""
    settled = state in ("succeeded", "failed")
    values = {
        "key": uuid.uuid4().hex,
        "route": "POST /v1/charges",
        "tenant": "acct_acme",
        "fingerprint": b"\0" * 32,
        "fingerprint_version": 1,
        "owner": uuid.uuid4(),
        "created_at": now() - age,
        "lease_expires_at": now() + lease if state == "processing" else None,
        "completed_at": now() - age + timedelta(seconds=1) if settled else None,
        "expires_at": now() + expires if settled else None,
        "response_day": now().date(),
    } | fields
    digest = Scope(values["route"], values["tenant"], values["key"]).digest
    key = IdempotencyKey.objects.create(state=state, digest=digest, **values)
    if answer is not None:
        StoredResponse.objects.create(
            key_id=key.pk,
            day=key.response_day,
            status=answer.status,
            headers=[list(pair) for pair in answer.headers],
            body=answer.body,
        )
    return key


def write_event(key: IdempotencyKey, kind: str, **fields: Any) -> KeyEvent:
    """An event of a minute ago."""
    values = {"at": now() - timedelta(minutes=1), "day": now().date(), "attempt": 1} | fields
    return KeyEvent.objects.create(key_id=key.pk, kind=kind, **values)


def token(key: IdempotencyKey) -> str:
    """What the page that asks about a force-fail carries for a key."""
    return f"{key.pk}:{key.owner}:{key.state}:{key.recovery_point}"


def new_staff(*permissions: str, name: str) -> User:
    """A member of the staff with exactly these permissions of the app."""
    user = User.objects.create_user(name, password=PASSWORD, is_staff=True)
    granted = Permission.objects.filter(
        content_type__app_label="idempotency", codename__in=permissions
    )
    assert len(granted) == len(permissions), permissions
    user.user_permissions.set(granted)
    return user


def logged_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
