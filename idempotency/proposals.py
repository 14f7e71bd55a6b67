"""What one person proposed and another one has to approve, and how far it has come."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Choice(models.TextChoices):
    """What a person may decide about an operation whose outcome is open."""

    #: The other side did it: finished here as if it had answered so.
    SUCCEEDED = "succeeded", _("succeeded")
    #: The other side refused it, for good: likewise.
    REFUSED = "refused", _("refused")
    #: The call had no effect and never will: the intent is withdrawn, the key is free again.
    NEVER_HAPPENED = "never_happened", _("never happened")
    #: Force-fail: the key is free for a retry, which resumes the operation.
    FREE = "free", _("free for retry")
    #: Force-fail: every retry gets 410.
    FINAL = "final", _("final")


class ProposalStatus(models.TextChoices):
    """Where a proposal stands. An open one may be over all the same: see ``expires_at``."""

    OPEN = "open", _("waits for another person")
    APPROVED = "approved", _("approved and carried out")
    REJECTED = "rejected", _("rejected")
    #: The key changed, or another proposal took its place.
    OVERTAKEN = "overtaken", _("overtaken")


class Proposal(models.Model):
    """A decision about more money than one person may decide about.

    It is fenced by how the key stood when it was proposed: when that has changed, there is nothing
    to approve.
    """

    key_id = models.BigIntegerField(_("key"), db_index=True)
    owner = models.UUIDField(_("owner seen"))
    state = models.CharField(_("state seen"), max_length=16)
    recovery_point = models.CharField(_("recovery point seen"), max_length=64)
    choice = models.CharField(_("decision"), max_length=16, choices=Choice.choices)
    result = models.JSONField(
        _("result"), default=dict, help_text=_("What is to be written, as the other side's answer.")
    )
    against = models.CharField(
        _("against the answer"),
        max_length=300,
        blank=True,
        default="",
        db_default="",
        help_text=_("Proposed although the other side said otherwise."),
    )
    amount = models.CharField(_("amount"), max_length=100, blank=True)
    reason = models.CharField(_("reason"), max_length=500)
    proposed_by = models.CharField(_("proposed by"), max_length=150)
    proposer_id = models.CharField(
        _("proposer"), max_length=64, blank=True, help_text=_("Of the user; empty from a command.")
    )
    created_at = models.DateTimeField(_("created at"))
    expires_at = models.DateTimeField(_("expires at"))
    status = models.CharField(
        _("status"), max_length=16, choices=ProposalStatus.choices, default=ProposalStatus.OPEN
    )
    decided_by = models.CharField(_("decided by"), max_length=150, blank=True, default="")
    decided_at = models.DateTimeField(_("decided at"), null=True)
    decided_reason = models.CharField(_("reason given"), max_length=500, blank=True, default="")

    class Meta:
        verbose_name = _("proposal")
        verbose_name_plural = _("proposals")
        permissions = [("approve_proposal", _("Can approve what another person proposed"))]
        constraints = [
            models.CheckConstraint(
                name="idempotency_proposal_status_known",
                condition=models.Q(status__in=ProposalStatus.values),
            ),
            # Whatever the code above does wrong, nobody approves his own.
            models.CheckConstraint(
                name="idempotency_proposal_four_eyes",
                condition=~models.Q(status=ProposalStatus.APPROVED)
                | ~models.Q(decided_by=models.F("proposed_by")),
            ),
            models.UniqueConstraint(
                name="idempotency_proposal_one_open",
                fields=["key_id"],
                condition=models.Q(status=ProposalStatus.OPEN),
            ),
        ]
        indexes = [
            models.Index(
                name="idempotency_proposal_open",
                fields=["created_at"],
                condition=models.Q(status=ProposalStatus.OPEN),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.choice} {self.key_id}"
