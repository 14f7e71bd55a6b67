"""What an overview shows that needs somebody, in a sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from idempotency.conf import settings
from idempotency.observability.vitals import Vitals
from idempotency.overview.facts import Dependencies, Overview

#: What the jobs see to by themselves is nobody's business before it has taken so long.
SOON = timedelta(minutes=2)
#: The same, for what is not urgent.
LATER = timedelta(hours=1)


def attention(shown: Overview) -> Overview:
    """The overview with what needs somebody, the most urgent first."""
    sentences = [*shown.problems]
    if shown.vitals is not None:
        sentences += _keys(shown.vitals)
    sentences += _dependencies(shown.dependencies)
    if shown.vitals is not None:
        sentences += [*_outbox(shown.vitals), *_housekeeping(shown.vitals)]
    return replace(shown, attention=tuple(sentences))


def _keys(vitals: Vitals) -> Iterator[str]:
    number = vitals.in_doubt.number
    if number:
        yield (
            ngettext(
                "%d key is in doubt: somebody has to decide.",
                "%d keys are in doubt: somebody has to decide.",
                number,
            )
            % number
        )
    if vitals.abandoned.age > SOON:
        yield (
            ngettext(
                "%d attempt died and nothing has picked its key up: do the recovery jobs run?",
                "%d attempts died and nothing has picked their keys up: do the recovery jobs run?",
                vitals.abandoned.number,
            )
            % vitals.abandoned.number
        )
    if vitals.suspended.age > settings().reconcile_alert_after:
        yield (
            ngettext(
                "%d operation has had no outcome for long: ask the other side.",
                "%d operations have had no outcome for long: ask the other side.",
                vitals.suspended.number,
            )
            % vitals.suspended.number
        )


def _dependencies(dependencies: Dependencies) -> Iterator[str]:
    for dependency in dependencies.found:
        if not dependency.calm:
            yield _("%s fails, and is not called for a while.") % dependency.name


def _outbox(vitals: Vitals) -> Iterator[str]:
    if vitals.dead_messages:
        yield (
            ngettext(
                "%d message was given up: re-send or discard it.",
                "%d messages were given up: re-send or discard them.",
                vitals.dead_messages,
            )
            % vitals.dead_messages
        )
    for channel, backlog in vitals.outbox.items():
        if backlog.age > SOON:
            yield _("Messages of the channel “%s” are late: does a dispatcher run?") % channel


def _housekeeping(vitals: Vitals) -> Iterator[str]:
    ahead = vitals.days_ahead
    if ahead is not None and ahead < settings().partition_days_alarm:
        yield (
            ngettext(
                "%d day has partitions ahead: does create_partitions run?",
                "%d days have partitions ahead: does create_partitions run?",
                ahead,
            )
            % ahead
        )
    if vitals.prune_lag > LATER:
        yield _("Expired keys are not pruned: does prune_expired_keys run?")
