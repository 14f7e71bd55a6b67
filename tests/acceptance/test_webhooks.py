"""Events in and out of the running product: no client returns, and no job that resumes runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import httpx2
import pytest
from standardwebhooks import Webhook

from config.services import Service
from payments.webhooks.signatures import new_secret
from tests.acceptance.product import ROOT, Product, new_key, wait_until
from tests.integration.client.loopback import Server

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

LEASE = 3


@pytest.fixture(scope="module")
def product(make_product: Callable[..., Product]) -> Iterator[Product]:
    """The product, a gateway that tells it what happens, and a dispatcher; no Celery."""
    secret = new_secret()
    product = make_product(
        IDEMPOTENCY_LEASE=str(LEASE), GATEWAY_TIMEOUT="0.5", GATEWAY_WEBHOOK_SECRETS=secret
    )
    gateway = product.gateway
    gateway.stop()
    gateway.options = ("--events-url", f"{product.url}/v1/gateway-events")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATEWAY_WEBHOOK_SECRETS", secret)
        gateway.start()
    product.start()
    command = [sys.executable, "manage.py", "idempotency_dispatch_outbox", "--watch"]
    log = product.folder / "dispatcher.log"
    with Service("dispatcher", command, product.env, log, grace=15, cwd=ROOT):
        yield product


def test_a_charge_whose_worker_was_killed_is_settled_by_the_gateways_event(
    product: Product,
) -> None:
    """The money has moved, the answer is lost with the worker, and the client has gone."""
    with Server() as hook:
        url = hook.url.replace("127.0.0.1", "localhost") + "/hook"
        secret = put_endpoint(product, url)
        key = new_key()
        with pytest.raises(httpx2.TransportError):
            product.charge(key, fault="kill@called")
        assert product.state(key) == "processing"
        wait_until(lambda: product.state(key) == "succeeded")
        assert (product.effects(key), product.charged(key)) == (1, 1)
        assert "resolved" in product.events(key)
        wait_until(lambda: hook.seen)
        told = Webhook(secret).verify(hook.seen[0].body, dict(hook.seen[0].headers))
    answer = product.charge(key)
    assert answer.headers["Idempotent-Replayed"] == "true"
    assert (told["type"], told["data"]) == ("charge.succeeded", answer.json())
    product.assert_ledgers_agree()


def put_endpoint(product: Product, url: str) -> str:
    """Have Acme told at that URL; the secret that its messages are signed with."""
    answer = httpx2.put(
        f"{product.url}/v1/webhook-endpoints/main",
        json={"url": url},
        headers=product.headers(),
        trust_env=False,
    )
    assert answer.status_code == 201, answer.text
    secret: str = answer.json()["secret"]
    return secret
