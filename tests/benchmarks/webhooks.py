"""A thousand webhooks to a receiver that fails, stalls and dies, and what a healthy one beside it
notices of that.

    python -m tests.benchmarks.webhooks [transfers]

Transfers at a steady rate, each told to two endpoints by one dispatcher in a process of its own.
The bad receiver answers 500 to 30 % of what arrives, stalls on 10 % for longer than the timeout,
and refuses connections for 20 seconds. Both act through the inbox.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import embedded
from tests.acceptance.product import ROOT, seed, wait_until

if TYPE_CHECKING:
    from tests.integration.payments.webhook_receiver import Receiver

TRANSFERS = 1000
#: Transfers a second.
RATE = 25.0
FAILS, STALLS = 0.3, 0.1
#: Seconds: when the bad receiver dies, and for how long.
DIES_AFTER, DEAD_FOR = 5.0, 20.0
#: Seconds that a delivery may take here, and a stall does. In production it is ten.
TIMEOUT, STALL = 1.0, 1.5
#: Seconds. The channel's own back-off grows to an hour, for receivers that are away for days.
LONGEST_BACKOFF = 4.0
#: The healthy endpoint's p95 beside the bad one may be so many times the one without.
LIMIT = 1.3


def dispatch() -> None:
    """The dispatcher's process."""
    import django

    django.setup()
    import dataclasses

    from django.conf import settings
    from django.core.management import call_command

    from idempotency.client.backoff import EqualJitter
    from idempotency.outbox import channels
    from payments.webhooks.events import CHANNEL

    settings.PAYMENTS_WEBHOOKS = settings.PAYMENTS_WEBHOOKS | {"TIMEOUT": TIMEOUT}
    backoff = EqualJitter(base=1.0, cap=LONGEST_BACKOFF)
    patient = dataclasses.replace(channels.find(CHANNEL), backoff=backoff, attempts=1000)
    channels._registry[CHANNEL] = patient
    call_command("idempotency_dispatch_outbox", watch=True)


@contextmanager
def dispatcher(folder: Path) -> Iterator[None]:
    command = [sys.executable, "-c", "from tests.benchmarks.webhooks import dispatch; dispatch()"]
    with (folder / "dispatcher.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.terminate()


def endpoint(name: str, receiver: Receiver) -> None:
    """Give the sender of the transfers an endpoint there."""
    from payments.models import Merchant
    from payments.webhooks import endpoints

    receiver.live()
    acme = Merchant.objects.get(name="Acme")
    made, _ = endpoints.put(merchant=acme, endpoint_id=name, url=receiver.url)
    receiver.secret = made.secret


def transfer_steadily(count: int, bad: Receiver | None) -> None:
    """Make the transfers, and let the bad receiver die and live meanwhile."""
    from django.db import transaction

    from payments import transfers
    from payments.models import Merchant

    acme, globex = (Merchant.objects.get(name=name) for name in ("Acme", "Globex"))
    began = time.monotonic()
    plan = [(DIES_AFTER, "die"), (DIES_AFTER + DEAD_FOR, "live")] if bad else []
    for number in range(count):
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        while plan and time.monotonic() - began >= plan[0][0]:
            getattr(bad, plan.pop(0)[1])()
        with transaction.atomic():
            transfers.create(sender=acme, to=globex.public_id, amount=1, currency="EUR")
    for left, what in plan:
        time.sleep(max(0.0, began + left - time.monotonic()))
        getattr(bad, what)()


def undelivered() -> int:
    from idempotency.models import OutboxMessage

    return OutboxMessage.objects.exclude(state="delivered").count()


def p95(receiver: Receiver) -> float:
    """Seconds from the transfer to the first arrival."""
    return statistics.quantiles(receiver.delays.values(), n=20, method="inclusive")[-1]


def act_of(receiver: str) -> Any:
    """An effect that nothing but the inbox keeps from happening twice."""
    from django.db import connection

    def act(message_id: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO acted VALUES (%s, %s)", [receiver, message_id])

    return act


def acts(receiver: str) -> tuple[int, int]:
    """How many messages it acted on, and how often at most on one."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM acted"
            " WHERE receiver = %s GROUP BY message_id) AS each",
            [receiver],
        )
        count, most = cursor.fetchone()
    return count, most


def healthy_alone(count: int) -> float:
    from payments.models import WebhookEndpoint
    from tests.integration.payments.webhook_receiver import Receiver

    alone = Receiver(act=act_of("alone"))
    endpoint("healthy", alone)
    transfer_steadily(count, None)
    wait_until(lambda: not undelivered(), 60)
    alone.die()
    WebhookEndpoint.objects.all().delete()
    return p95(alone)


def healthy_beside_bad(count: int) -> tuple[float, bool]:
    """The healthy one's p95, and whether all was delivered and acted on once."""
    from tests.integration.payments.webhook_receiver import Receiver

    healthy = Receiver(act=act_of("healthy"))
    bad = Receiver(fails=FAILS, stalls=STALLS, stall_seconds=STALL, act=act_of("bad"))
    endpoint("healthy", healthy)
    endpoint("bad", bad)
    began = time.monotonic()
    transfer_steadily(count, bad)
    wait_until(lambda: not undelivered(), 600)
    seconds = time.monotonic() - began
    print(f"  bad receiver: {dict(bad.counts)}, all delivered after {seconds:.0f} s", flush=True)
    right = True
    for name in ("healthy", "bad"):
        messages, most = acts(name)
        print(f"  {name}: {messages} messages acted on, at most {most} time each", flush=True)
        right &= (messages, most) == (count, 1)
    bad.die()
    healthy.die()
    return p95(healthy), right


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else TRANSFERS
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as running:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL, run as nobody, walks it
        postgres = running.enter_context(embedded.Postgres(folder / "postgres", durable=True))
        valkey = running.enter_context(embedded.Valkey(folder / "valkey", durable=False))
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": postgres.url,
            "REDIS_URL": valkey.url,
            "DEMO": "1",
            "SECRET_KEY": "of the benchmark",
            "GATEWAY_URL": "http://127.0.0.1:9000",
            "HTTPS": "0",
            "ALLOWED_HOSTS": "localhost,127.0.0.1",
            "LOG_LEVEL": "WARNING",
        }
        os.environ["DATABASE_URL"] = seed(postgres.url, folder).url
        import django

        django.setup()
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE acted (receiver text, message_id text)")
        running.enter_context(dispatcher(folder))
        print(f"{count} transfers at {RATE:g} a second:", flush=True)
        alone = healthy_alone(count)
        beside, right = healthy_beside_bad(count)
        ratio = beside / alone
        print(
            f"healthy endpoint's p95: alone {alone * 1000:.0f} ms, beside the bad one "
            f"{beside * 1000:.0f} ms, ratio {ratio:.2f} (at most {LIMIT})"
        )
    return 0 if right and ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
