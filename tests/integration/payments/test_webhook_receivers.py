"""Many messages, a receiver that does everything wrong, and a good one beside it.

`python -m tests.benchmarks.webhooks` does the same with a thousand, and measures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from django.db import transaction

from idempotency.client import BreakerPolicy
from idempotency.client.backoff import EqualJitter
from idempotency.models import MessageState, OutboxMessage
from idempotency.outbox import breakers, channels
from idempotency.outbox.dispatcher import Dispatcher
from payments import transfers
from payments.models import WebhookEndpoint
from payments.webhooks.events import CHANNEL
from tests.integration.payments.api import Api
from tests.integration.payments.webhook_receiver import Receiver
from tests.plugins.gateway import until

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES = 30


@pytest.fixture(autouse=True)
def _impatience(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Back-off and timeout of milliseconds, and no breaker, whose probes take seconds."""
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"REDIS_URL": None}
    settings.PAYMENTS_WEBHOOKS = {"ALLOW_LOOPBACK": True, "TIMEOUT": 0.3}
    hasty = dataclasses.replace(
        channels.find(CHANNEL),
        attempts=1000,
        backoff=EqualJitter(base=0.01, cap=0.05),
        breaker=BreakerPolicy(window=1, minimum_calls=1_000_000),
    )
    monkeypatch.setitem(channels._registry, CHANNEL, hasty)
    breakers._breaker.cache_clear()
    yield
    breakers._breaker.cache_clear()


def listen(api: Api, name: str, receiver: Receiver) -> None:
    receiver.live()
    endpoint = WebhookEndpoint.objects.create(
        merchant=api.merchant, endpoint_id=name, url=receiver.url
    )
    receiver.secret = endpoint.secret


def left(state: str = MessageState.PENDING) -> int:
    return OutboxMessage.objects.filter(state=state).count()


def test_all_is_delivered_and_nothing_is_acted_on_twice(acme: Api, globex: Api) -> None:
    healthy, bad = Receiver(), Receiver(fails=0.3, stalls=0.1, stall_seconds=0.5)
    listen(acme, "healthy", healthy)
    listen(acme, "bad", bad)
    acme.fund(MESSAGES)
    for _ in range(MESSAGES):
        with transaction.atomic():
            transfers.create(
                sender=acme.merchant, to=globex.merchant.public_id, amount=1, currency="EUR"
            )
    with closing(Dispatcher(threads=8)) as dispatcher:
        dispatcher.run(stop=lambda: bad.acted.total() > 5)
        bad.die()
        refused = OutboxMessage.objects.filter(last_error__contains="ConnectError")
        dispatcher.run(stop=refused.exists)
        assert refused.exists()
        bad.live()
        until(lambda: dispatcher.run() and not left())
    ids = {str(it) for it in OutboxMessage.objects.values_list("message_id", flat=True)}
    assert left(MessageState.DELIVERED) == 2 * MESSAGES
    assert set(bad.acted) | set(healthy.acted) == ids
    assert set(bad.acted.values()) == set(healthy.acted.values()) == {1}
    assert (len(bad.acted), len(healthy.acted)) == (MESSAGES, MESSAGES)
    assert min(bad.counts["failed"], bad.counts["stalled"], bad.counts["known"]) > 0
    bad.die()
    healthy.die()
