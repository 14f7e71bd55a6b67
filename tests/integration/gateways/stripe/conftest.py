"""Stripe as it is, and as it is not: with the rules for keys, and without any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.gateways.stripe.servers import API_KEY, Front, Localstripe, StripeRules

if TYPE_CHECKING:
    from payments.gateways.stripe import StripeGateway


@pytest.fixture
def stripe_rules(localstripe: Localstripe) -> Iterator[StripeRules]:
    with StripeRules(localstripe.url) as proxy:
        yield proxy


@pytest.fixture
def bare(localstripe: Localstripe) -> Iterator[Front]:
    """Keys mean nothing behind it."""
    with Front(localstripe.url) as proxy:
        yield proxy


@pytest.fixture
def connect_stripe() -> Iterator[Callable[..., StripeGateway]]:
    """Makes adapters that do not wait between attempts."""
    from payments.gateways.stripe import StripeGateway

    made: list[StripeGateway] = []

    def connect(url: str, **options: Any) -> StripeGateway:
        given = {"api_key": API_KEY, "pause": lambda seconds: None, "calls": 100, **options}
        made.append(StripeGateway(url, **given))
        return made[-1]

    yield connect
    for gateway in made:
        gateway.close()
