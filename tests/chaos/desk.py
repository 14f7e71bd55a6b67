"""A process with Django loaded that works for the nemesis: jobs, an operator, somebody's mistakes.

Reads one command a line as JSON, answers one line each, and ends with its input.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import django

ACTOR = "chaos"
JOBS = (
    "reclaim_expired_leases",
    "resume_operations",
    "create_partitions",
    "drop_expired_partitions",
    "prune_expired_keys",
)
#: An operator looks this often, and this long, for a key that is open.
LOOKS, LOOK_SECONDS = 0.005, 1.5


def job(name: str) -> dict[str, Any]:
    """Run one to its end."""
    from idempotency import maintenance

    result = getattr(maintenance, name)()
    return {"done": result.done, "failed": result.failed}


def everything() -> dict[str, Any]:
    """Every job once, recovery without its pauses: what beat does within an hour."""
    from idempotency import maintenance, reconciliation

    maintenance.PAUSES = (timedelta(0),)
    for name in JOBS:
        getattr(maintenance, name)()
    reconciliation.reconcile_operations()
    return {}


def force_fail(seed: int, final: bool) -> dict[str, Any]:
    """End an open key as an operator does, through the operators' service."""
    from idempotency import operators
    from idempotency.models import IdempotencyKey
    from idempotency.operators import Seen

    rng = random.Random(seed)
    deadline = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < deadline:
        open_keys = IdempotencyKey.objects.filter(state__in=["processing", "in_doubt"])
        found = list(open_keys.order_by("-id")[:30])
        if found:
            key = rng.choice(found)
            ended = operators.force_fail(
                key.pk, seen=Seen.of(key), actor=ACTOR, reason="chaos", final=final
            )
            about = {"key": key.key, "final": final, "recovery_point": key.recovery_point}
            return {**about, "ended": ended}
        time.sleep(LOOKS)
    return {"ended": False}


def drop_day(seed: int) -> dict[str, Any]:
    """Drop a day that is still to come, as somebody does who cleans up by hand."""
    from django.db import connection

    day = datetime.now(UTC).date() + timedelta(days=random.Random(seed).randint(1, 13))
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '800ms'")
        for table in ("idempotency_storedresponse", "idempotency_keyevent"):
            cursor.execute(f"DROP TABLE IF EXISTS {table}_p{day:%Y%m%d}")
    return {"day": str(day)}


def merchants(names: list[str]) -> dict[str, Any]:
    """Make merchants with money; the API key is made of the name."""
    from django.db import transaction

    from payments import ledger
    from payments.merchants import issue_api_key
    from payments.models import LedgerAccount, LedgerTransaction, Merchant

    made = []
    with transaction.atomic():
        for name in names:
            merchant = Merchant.objects.create(name=name)
            issue_api_key(merchant=merchant, secret=f"sk_test_{name}")
            made.append({"id": merchant.public_id, "api_key": f"sk_test_{name}"})
            for currency in ("EUR", "USD"):
                funding = ledger.Place(LedgerAccount.Kind.FUNDING.value, currency)
                own = ledger.merchant_place(merchant_id=merchant.pk, currency=currency)
                amounts = {funding: -20_000, own: 20_000}
                ledger.post(kind=LedgerTransaction.Kind.FUNDING, amounts=amounts)
    return {"merchants": made}


_COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    "job": job,
    "everything": everything,
    "force_fail": force_fail,
    "drop_day": drop_day,
    "merchants": merchants,
}


def main() -> None:
    django.setup()
    from django.db import close_old_connections, connection

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer = _COMMANDS[command](*arguments)
        except Exception as error:
            # Of what the nemesis does: the database is away, or a lock is held.
            connection.close()
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        close_old_connections()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
