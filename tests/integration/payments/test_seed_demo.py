"""The demo's merchants and users."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from payments import ledger
from payments.models import ApiKey, LedgerTransaction, Merchant
from tests.integration.payments.api import Api


def seed(*options: str) -> str:
    out = StringIO()
    call_command("seed_demo", *options, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_it_refuses_to_run_outside_a_demo(settings: Any) -> None:
    settings.DEMO = False
    with pytest.raises(CommandError, match="DEMO=1"):
        seed()
    assert not Merchant.objects.exists()


@pytest.fixture
def demo(db: None, settings: Any) -> dict[str, Api]:
    settings.DEMO = True
    described = json.loads(seed("--json"))["merchants"]
    return {
        it["name"]: Api(Merchant.objects.get(public_id=it["account"]), it["api_key"])
        for it in described
    }


def test_its_merchants_can_transfer_at_once(demo: dict[str, Api]) -> None:
    assert demo["Acme"].secret == "sk_test_acme"
    assert demo["Globex"].secret == "sk_test_globex"
    assert demo["Acme"].transfer(demo["Globex"], 100).status_code == 201
    assert demo["Globex"].balance() - demo["Acme"].balance() == 200
    assert not ledger.discrepancies()


def test_running_it_again_changes_nothing(demo: dict[str, Api]) -> None:
    def count() -> list[int]:
        return [it.objects.count() for it in (Merchant, ApiKey, LedgerTransaction, User)]

    ApiKey.objects.filter(merchant__name="Globex").update(revoked="2026-01-01T00:00:00Z")
    User.objects.get(username="admin").set_password("changed")
    before = count()
    text = seed()
    assert count() == before
    assert demo["Acme"].merchant.public_id in text
    assert "sk_test_globex" in text


def test_the_approver_may_ask_and_approve_but_not_settle(demo: dict[str, Api]) -> None:
    approver = authenticate(username="approver", password="approver")
    assert isinstance(approver, User)
    assert approver.has_perms(["idempotency.approve_proposal", "idempotency.ask_idempotencykey"])
    assert approver.has_perm("idempotency.view_proposal")
    assert not approver.has_perm("idempotency.settle_idempotencykey")
    assert not approver.has_perm("idempotency.force_fail_idempotencykey")


def test_the_viewer_may_look_but_not_act(demo: dict[str, Api]) -> None:
    admin = authenticate(username="admin", password="admin")
    viewer = authenticate(username="viewer", password="viewer")
    assert isinstance(admin, User)
    assert isinstance(viewer, User)
    assert admin.is_superuser
    assert viewer.is_staff
    assert not viewer.is_superuser
    assert viewer.has_perms(["idempotency.view_idempotencykey", "payments.view_charge"])
    assert not viewer.has_perm("idempotency.force_fail_idempotencykey")
    assert not viewer.has_perm("idempotency.view_response_body")
    assert not viewer.has_perm("idempotency.ask_idempotencykey")
    assert not viewer.has_perm("idempotency.approve_proposal")
    assert not viewer.has_perm("idempotency.view_outbox_payload")
