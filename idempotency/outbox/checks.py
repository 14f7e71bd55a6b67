"""System checks of the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.core.checks import CheckMessage, Tags, Warning, register
from django.db import DatabaseError, router, transaction

from idempotency.models import OutboxMessage
from idempotency.outbox import channels
from idempotency.outbox.claims import UNSENT

#: What the scheduled run leaves for sends that are under way when it stops claiming: its task's
#: soft time limit less the time that it claims.
LONGEST_LEASE = timedelta(seconds=90)


@register("idempotency")
def check_leases(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """W009: a send may take longer than the scheduled run can wait for it."""
    return [
        Warning(
            f"The outbox channel {channel.name!r} has a lease of {channel.lease}, and the "
            f"scheduled run is cut short {LONGEST_LEASE} after its last claim.",
            hint="Let its sends be shorter, or deliver with `idempotency_dispatch_outbox --watch` "
            "and silence this.",
            id="idempotency.W009",
        )
        for channel in channels.all_channels()
        if channel.lease > LONGEST_LEASE
    ]


# Not under our own tag: from 6.1 on Django asks every database as soon as a tag is named.
@register(Tags.database)
def check_channels(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """W008: messages that wait for a channel which nobody registers."""
    return [
        Warning(
            f"Messages in {alias!r} wait for the outbox channel {name!r}, which is not registered.",
            hint="Was it renamed, or its app taken out of INSTALLED_APPS? Register it again, or "
            "discard the messages in the admin.",
            id="idempotency.W008",
        )
        for alias in databases or ()
        if router.allow_migrate_model(alias, OutboxMessage)
        for name in _unknown(alias)
    ]


def _unknown(using: str) -> list[str]:
    waiting = OutboxMessage.objects.using(using).filter(state__in=UNSENT).order_by()
    try:
        with transaction.atomic(using=using):
            names = set(waiting.values_list("channel", flat=True).distinct())
    except DatabaseError:  # the table is yet to come: this runs before migrations, too
        return []
    return sorted(names - {channel.name for channel in channels.all_channels()})
