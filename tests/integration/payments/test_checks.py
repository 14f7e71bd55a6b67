"""System checks of the product."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks

from payments.checks import check_gateway, check_gateway_secrets, check_leases
from payments.webhooks.signatures import new_secret

STRIPE = {"BACKEND": "payments.gateways.stripe.StripeGateway", "API_KEY": "sk_test_1"}


def test_a_lease_shorter_than_the_longest_call_is_told(settings: Any) -> None:
    settings.PAYMENTS_GATEWAY = {"URL": "http://127.0.0.1:1", "TIMEOUT": 20.0, "ATTEMPTS": 3}
    found = check_leases()
    assert [it.id for it in found] == ["payments.W001"] * 2
    assert "leased for 30 s" in found[0].msg
    assert "64.2 s" in found[0].msg


def test_the_default_lease_is_long_enough_for_the_default_gateway() -> None:
    assert check_leases() == []


def test_a_gateway_that_is_not_configured_is_no_matter_of_leases(settings: Any) -> None:
    settings.PAYMENTS_GATEWAY = {}
    assert check_leases() == []


@pytest.mark.parametrize(
    "given",
    [{}, {"BACKEND": "payments.gateways.nowhere.Gateway"}, {**STRIPE, "API_KEY": ""}],
    ids=["nothing", "no such adapter", "no API key"],
)
def test_a_gateway_that_cannot_be_made_is_an_error(settings: Any, given: dict[str, str]) -> None:
    settings.PAYMENTS_GATEWAY = given
    (found,) = check_gateway()
    assert (found.id, found.level) == ("payments.E002", checks.ERROR)


def test_a_gateway_whose_events_nobody_can_check_is_told(settings: Any) -> None:
    settings.PAYMENTS_GATEWAY = STRIPE
    assert [it.id for it in check_gateway()] == ["payments.W002"]
    settings.PAYMENTS_GATEWAY = {**STRIPE, "WEBHOOK_SECRET": "whsec_1"}
    assert check_gateway() == []


def test_the_default_gateway_is_all_right() -> None:
    assert check_gateway() == []


def test_a_secret_that_cannot_sign_is_told_and_not_shown(settings: Any) -> None:
    settings.PAYMENTS_WEBHOOKS = {"GATEWAY_SECRETS": [new_secret(), "hunter2"]}
    (found,) = check_gateway_secrets()
    assert found.id == "payments.E001"
    assert "number 2" in found.msg
    assert "hunter2" not in f"{found.msg} {found.hint}"


def test_secrets_of_the_scheme_and_none_at_all_are_fine(settings: Any) -> None:
    settings.PAYMENTS_WEBHOOKS = {"GATEWAY_SECRETS": [new_secret(), new_secret()]}
    assert check_gateway_secrets() == []
    settings.PAYMENTS_WEBHOOKS = {}
    assert check_gateway_secrets() == []
