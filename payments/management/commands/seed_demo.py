"""Fill a demo: two merchants with public API keys and money, and three users of the admin."""

import json
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from payments import ledger, merchants
from payments.models import ApiKey, LedgerAccount, LedgerTransaction, Merchant

MERCHANTS = {"Acme": "sk_test_acme", "Globex": "sk_test_globex"}
#: In minor units, so that a transfer works at once.
OPENING_BALANCES = {"EUR": 1_000_000, "USD": 1_000_000}
#: Their passwords are their names.
ADMIN, APPROVER, VIEWER = "admin", "approver", "viewer"
#: What the approver may do beside looking: the second of two people who end much money's doubt.
APPROVES = ["ask_idempotencykey", "approve_proposal"]


class Command(BaseCommand):
    help = (
        "Create the demo's merchants, API keys, opening balances and users, where they are absent. "
        "Everything in it is public, so it refuses to run unless DEMO is on."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEMO:
            raise CommandError("seed_demo creates public passwords: it needs DEMO=1.")
        with transaction.atomic():
            accounts = {name: _merchant(name, key) for name, key in MERCHANTS.items()}
            _users()
        if options["json"]:
            self.stdout.write(json.dumps(_described(accounts), indent=2))
        else:
            self.stdout.write(_text(accounts))


def _merchant(name: str, secret: str) -> Merchant:
    # A key that was revoked since stays revoked.
    known = ApiKey.objects.filter(digest=merchants.digest(secret)).select_related("merchant")
    if (key := known.first()) is not None:
        return key.merchant
    merchant = Merchant.objects.create(name=name)
    merchants.issue_api_key(merchant=merchant, secret=secret)
    for currency, amount in OPENING_BALANCES.items():
        funding = ledger.Place(LedgerAccount.Kind.FUNDING.value, currency)
        own = ledger.merchant_place(merchant_id=merchant.pk, currency=currency)
        ledger.post(kind=LedgerTransaction.Kind.FUNDING, amounts={funding: -amount, own: amount})
    return merchant


def _users() -> None:
    users = get_user_model()._default_manager
    if not users.filter(username=ADMIN).exists():
        users.create_superuser(ADMIN, password=ADMIN)
    # Sees all and changes nothing: neither force-fail nor stored bodies are among these.
    ours = Permission.objects.filter(content_type__app_label__in=["idempotency", "payments"])
    views = ours.filter(codename__startswith="view_").exclude(
        codename__in=["view_response_body", "view_outbox_payload"]
    )
    for name, more in ((VIEWER, []), (APPROVER, APPROVES)):
        if not users.filter(username=name).exists():
            user = users.create_user(name, password=name, is_staff=True)
            user.user_permissions.set([*views, *ours.filter(codename__in=more)])


def _described(accounts: dict[str, Merchant]) -> dict[str, Any]:
    return {
        "merchants": [
            {"name": name, "account": merchant.public_id, "api_key": MERCHANTS[name]}
            for name, merchant in accounts.items()
        ],
        "users": [{"username": it, "password": it} for it in (ADMIN, APPROVER, VIEWER)],
    }


def _text(accounts: dict[str, Merchant]) -> str:
    lines = [
        f"  {name + ':':<8} {merchant.public_id}, API key {MERCHANTS[name]}"
        for name, merchant in accounts.items()
    ]
    lines.append(
        f"  Users:   {ADMIN}/{ADMIN}; {APPROVER}/{APPROVER}, who may ask the gateway and approve; "
        f"{VIEWER}/{VIEWER}, who may look but not act"
    )
    return "\n".join(lines)
