"""System checks of the product."""

from __future__ import annotations

from typing import Any

from payments.checks import check_leases


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
