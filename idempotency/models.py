"""One slim row a key, one fat row a response, and the audit trail of what is not routine.

The key table is not partitioned: a unique index on a partitioned table must contain the partition
column, so the
same key just before and just after midnight would be accepted twice. What grows by gigabytes a day,
the responses
and the events, is partitioned by day on PostgreSQL and dropped whole (see ``partitions.py``).

No foreign key points at the key table: with one, attaching or detaching a day would block every
claim.
"""

from __future__ import annotations

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.utils.translation import gettext_lazy as _

from idempotency.core.states import State
from idempotency.proposals import Choice as Choice
from idempotency.proposals import Proposal as Proposal
from idempotency.proposals import ProposalStatus as ProposalStatus

STATE_LABELS = {
    State.PROCESSING: _("processing"),
    State.SUCCEEDED: _("succeeded"),
    State.FAILED: _("failed"),
    State.IN_DOUBT: _("in doubt"),
}

#: A lease while an owner runs, and at no other time; the end of the answer's life once there is
#: one. In one rule, and no rule for each number: PostgreSQL parses the text of every rule anew for
#: every INSERT and UPDATE, which was a seventh of what a claim cost the server.
_WHAT_A_STATE_NEEDS = models.Q(state=State.PROCESSING.value, lease_expires_at__isnull=False) | (
    models.Q(lease_expires_at__isnull=True)
    & (
        models.Q(state=State.IN_DOUBT.value)
        | models.Q(state=State.SUCCEEDED.value, expires_at__isnull=False)
        | models.Q(state=State.FAILED.value, expires_at__isnull=False)
    )
)


class IdempotencyKey(models.Model):
    """A client's key and where its one request stands. Written only by a store, by conditional
    writes."""

    digest = models.BinaryField(_("digest"), max_length=32, unique=True, editable=False)
    key = models.CharField(_("key"), max_length=255)
    route = models.CharField(_("route"), max_length=255)
    tenant = models.CharField(_("tenant"), max_length=255)
    fingerprint = models.BinaryField(_("fingerprint"), max_length=32)
    fingerprint_version = models.SmallIntegerField(_("fingerprint version"))
    state = models.CharField(
        _("state"),
        max_length=16,
        choices=[(state.value, label) for state, label in STATE_LABELS.items()],
    )
    owner = models.UUIDField(
        _("owner"), help_text=_("The attempt that may write; every write names it.")
    )
    attempt = models.IntegerField(_("attempt"), default=1)
    resumes = models.IntegerField(
        _("resumes"),
        default=0,
        help_text=_("How often a job resumed the operation since its recovery point."),
    )
    lease_expires_at = models.DateTimeField(_("lease expires at"), null=True)
    recovery_point = models.CharField(_("recovery point"), max_length=64, default="", blank=True)
    recovery_point_at = models.DateTimeField(
        _("recovery point at"),
        null=True,
        help_text=_("From then on the outside call may have been made."),
    )
    look_up_at = models.DateTimeField(
        _("look up at"),
        null=True,
        help_text=_("When the other side is next asked about the call; empty: at once."),
    )
    # These two outlive the context, which may hold personal data: the downstream key is derived
    # from them.
    operation = models.CharField(
        _("operation"),
        max_length=255,
        default="",
        db_default="",
        blank=True,
        help_text=_("The one that passed the recovery point."),
    )
    prepared_attempt = models.IntegerField(
        _("prepared by attempt"), null=True, help_text=_("The one that wrote the intent.")
    )
    context = models.JSONField(_("context"), null=True)
    failure = models.CharField(_("failure"), max_length=500, default="", blank=True)
    created_at = models.DateTimeField(_("created at"))
    completed_at = models.DateTimeField(_("completed at"), null=True)
    expires_at = models.DateTimeField(_("expires at"), null=True)
    response_day = models.DateField(_("day of the response"))

    class Meta:
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        permissions = [
            ("force_fail_idempotencykey", _("Can force-fail an idempotency key")),
            ("view_response_body", _("Can see stored response bodies")),
            ("ask_idempotencykey", _("Can ask the other side about an operation")),
            ("settle_idempotencykey", _("Can settle an operation whose outcome is open")),
        ]
        constraints = [
            models.CheckConstraint(name="idempotency_key_state", condition=_WHAT_A_STATE_NEEDS)
        ]
        indexes = [
            # For the recovery jobs, and for operators who look for what is stuck or in doubt. It is
            # partial, so a settled key does not pay for it.
            models.Index(
                name="idempotency_key_lease",
                fields=["lease_expires_at"],
                condition=models.Q(state__in=[State.PROCESSING.value, State.IN_DOUBT.value]),
            ),
            # For whoever works through what is open, the oldest first. Atomic work never passes a
            # recovery point, so it does not pay for this one either.
            models.Index(
                name="idempotency_key_open_operation",
                fields=["recovery_point_at", "id"],
                condition=models.Q(
                    state__in=[State.PROCESSING.value, State.IN_DOUBT.value],
                    recovery_point_at__isnull=False,
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.route} {self.key}"


class Operations(IdempotencyKey):
    """No rows of its own: with it the admin lists the page of how the service stands, and
    ``view_operations`` is who may see that. The page shows no key."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = _("operations overview")
        verbose_name_plural = _("operations overview")


class Doubt(IdempotencyKey):
    """No rows of its own: with it the admin lists the queue of what somebody has to decide. Who may
    see keys may see it."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("in doubt queue")
        verbose_name_plural = _("in doubt queue")


class StoredResponse(models.Model):
    """The answer to a key: status, headers and the exact body bytes.

    In the database the primary key is (day, key) on PostgreSQL; Django's state has the one column
    that is unique
    anyway, because the admin cannot register a composite key.
    """

    key_id = models.BigIntegerField(_("key"), primary_key=True)
    day = models.DateField(_("day"))
    # The answer outlives its key by weeks, and whoever exports or erases an account's data has to
    # find it all the same.
    tenant = models.CharField(_("tenant"), max_length=255, default="", db_default="")
    status = models.PositiveSmallIntegerField(_("status"))
    headers = models.JSONField(_("headers"), default=list)
    # Bytes and not JSON: jsonb reorders names, drops duplicates and refuses \u0000.
    body = models.BinaryField(
        _("body"), null=True, help_text=_("Empty when too large or streamed.")
    )

    class Meta:
        verbose_name = _("stored response")
        verbose_name_plural = _("stored responses")

    def __str__(self) -> str:
        return f"{self.status} ({self.day})"


class EventKind(models.TextChoices):
    """What is written down because it is not routine. Claims and replays are counted in metrics
    instead."""

    #: A new owner took over after the lease ran out.
    TAKEOVER = "takeover", _("taken over")
    #: The reclaim job found the lease over and freed the key.
    RECLAIMED = "reclaimed", _("reclaimed")
    #: An operator ended the attempt.
    FORCE_FAILED = "force_failed", _("force-failed")
    #: Nobody can know whether the outside effect happened.
    IN_DOUBT = "in_doubt", _("in doubt")
    #: What was in doubt has been settled.
    RESOLVED = "resolved", _("resolved")
    #: An attempt ended without knowing how its outside call went; a retry or the job goes on.
    SUSPENDED = "suspended", _("left open")
    #: The outside call was certainly not sent, and its intent was withdrawn.
    WITHDRAWN = "withdrawn", _("withdrawn")
    #: An operator asked the other side.
    ASKED = "asked", _("asked")
    #: An operator's decision that waits for another person, and the end of one without effect.
    PROPOSED = "proposed", _("proposed")
    REJECTED = "rejected", _("rejected")
    #: The key expired and was used for a new request.
    REUSED = "reused", _("reused after expiry")
    #: The day's partition was missing, so the response went to another day.
    DAY_MISSING = "day_missing", _("day missing")


class KeyEvent(models.Model):
    """One line of the audit trail."""

    day = models.DateField(_("day"))
    key_id = models.BigIntegerField(_("key"), db_index=True)
    at = models.DateTimeField(_("at"))
    kind = models.CharField(_("kind"), max_length=32, choices=EventKind.choices)
    attempt = models.PositiveIntegerField(_("attempt"), default=0)
    actor = models.CharField(_("actor"), max_length=150, default="", blank=True)
    reason = models.CharField(_("reason"), max_length=1000, default="", blank=True)
    data = models.JSONField(_("data"), default=dict)

    class Meta:
        verbose_name = _("key event")
        verbose_name_plural = _("key events")

    def __str__(self) -> str:
        return f"{self.kind} {self.at:%Y-%m-%d %H:%M:%S}"


class MessageState(models.TextChoices):
    """Where an outbox message stands. PENDING, SENDING and DEAD are unfinished: they hold back what
    comes after them under the same aggregate."""

    #: Waits for its turn, or for its next attempt.
    PENDING = "pending", _("pending")
    #: A dispatcher sends it, or did when it died: from ``due_at`` on another one may.
    SENDING = "sending", _("sending")
    DELIVERED = "delivered", _("delivered")
    #: Given up, or refused by the other side. An operator re-sends or discards it.
    DEAD = "dead", _("dead")
    #: An operator decided that it need not arrive.
    DISCARDED = "discarded", _("discarded")


_UNSENT = [MessageState.PENDING, MessageState.SENDING]


class OutboxMessage(models.Model):
    """A message that left with the work that wrote it, and how far it has come. Written by
    ``outbox.send``; from then on only by conditional writes."""

    #: On PostgreSQL, among messages of one aggregate, also the order of their commits.
    sequence = models.BigAutoField(_("sequence"), primary_key=True)
    message_id = models.UUIDField(
        _("message id"),
        unique=True,
        help_text=_("The same on every send: what receivers dedupe by."),
    )
    channel = models.CharField(_("channel"), max_length=64)
    destination = models.CharField(_("destination"), max_length=255, blank=True, default="")
    aggregate = models.CharField(_("aggregate"), max_length=255, blank=True, default="")
    payload = models.JSONField(_("payload"), encoder=DjangoJSONEncoder)
    state = models.CharField(
        _("state"), max_length=16, choices=MessageState.choices, default=MessageState.PENDING
    )
    owner = models.UUIDField(
        _("owner"), null=True, help_text=_("The dispatcher's claim; every mark names it.")
    )
    attempt = models.PositiveIntegerField(
        _("attempt"), default=0, help_text=_("Sends begun since it was written or re-sent.")
    )
    due_at = models.DateTimeField(
        _("due at"),
        help_text=_(
            "From then on it may be claimed: its back-off, or its sender's lease, is over."
        ),
    )
    created_at = models.DateTimeField(_("created at"))
    queued_at = models.DateTimeField(
        _("queued at"), help_text=_("When it was written, or last re-sent: its age counts from it.")
    )
    settled_at = models.DateTimeField(_("settled at"), null=True)
    last_error = models.CharField(_("last error"), max_length=500, blank=True, default="")

    class Meta:
        verbose_name = _("outbox message")
        verbose_name_plural = _("outbox messages")
        permissions = [
            ("resend_outboxmessage", _("Can re-send an outbox message")),
            ("discard_outboxmessage", _("Can discard an outbox message")),
            ("view_outbox_payload", _("Can see payloads of outbox messages")),
        ]
        constraints = [
            models.CheckConstraint(
                name="idempotency_outbox_state_known",
                condition=models.Q(state__in=MessageState.values),
            ),
            models.CheckConstraint(
                name="idempotency_outbox_owner_iff_sending",
                condition=models.Q(state=MessageState.SENDING, owner__isnull=False)
                | (~models.Q(state=MessageState.SENDING) & models.Q(owner__isnull=True)),
            ),
            models.CheckConstraint(
                name="idempotency_outbox_settled_iff_not_unsent",
                condition=models.Q(state__in=_UNSENT, settled_at__isnull=True)
                | (~models.Q(state__in=_UNSENT) & models.Q(settled_at__isnull=False)),
            ),
        ]
        # All partial: what is delivered, nearly the whole table, is in none of them.
        indexes = [
            models.Index(
                name="idempotency_outbox_due",
                fields=["channel", "destination", "due_at", "sequence"],
                condition=models.Q(state__in=_UNSENT),
            ),
            models.Index(
                name="idempotency_outbox_order",
                fields=["channel", "destination", "aggregate", "sequence"],
                condition=~models.Q(aggregate="")
                & models.Q(state__in=[*_UNSENT, MessageState.DEAD]),
            ),
            models.Index(
                name="idempotency_outbox_dead",
                fields=["sequence"],
                condition=models.Q(state=MessageState.DEAD),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.channel} {self.message_id}"


class DeliveryKind(models.TextChoices):
    """What one line of a message's history says."""

    DELIVERED = "delivered", _("delivered")
    #: Tried again later.
    FAILED = "failed", _("failed")
    #: Refused for good, or the last attempt that was allowed.
    DEAD = "dead", _("given up")
    #: The dispatcher never said how its attempt ended: it died, or its lease ran out first.
    LOST = "lost", _("outcome lost")
    #: An operator's doing.
    RESENT = "resent", _("re-sent")
    DISCARDED = "discarded", _("discarded")


class DeliveryEvent(models.Model):
    """One line of a message's history: an attempt and how it ended, or what an operator did."""

    message = models.ForeignKey(
        OutboxMessage, models.CASCADE, related_name="history", verbose_name=_("message")
    )
    kind = models.CharField(_("kind"), max_length=16, choices=DeliveryKind.choices)
    attempt = models.PositiveIntegerField(_("attempt"))
    at = models.DateTimeField(_("at"))
    seconds = models.FloatField(_("seconds"), null=True, help_text=_("How long the send took."))
    detail = models.CharField(_("detail"), max_length=1000, blank=True, default="")
    actor = models.CharField(_("actor"), max_length=150, blank=True, default="")

    class Meta:
        verbose_name = _("delivery event")
        verbose_name_plural = _("delivery events")

    def __str__(self) -> str:
        return f"{self.kind} {self.at:%Y-%m-%d %H:%M:%S}"
