from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class LedgerDifference(models.Model):
    """What the gateway's books and ours say differently of one movement of money.

    While it is there it is one row, however often it is found. When it is gone its row is closed;
    when it comes back, it comes as a new one. `handled_at` is the operator's word, and no
    comparison takes it back.
    """

    class Kind(models.TextChoices):
        #: The gateway moved money, and our ledger does not have it.
        MISSING_HERE = "missing_here", _("missing here")
        #: Our ledger has it, and the gateway moved nothing.
        MISSING_THERE = "missing_there", _("missing there")
        #: Both have it, with another amount or currency.
        AMOUNT_DIFFERS = "amount_differs", _("amount differs")
        #: The gateway moved money once more than we asked for.
        DOUBLE = "double", _("double")

    class Movement(models.TextChoices):
        CHARGE = "charge", _("charge")
        REFUND = "refund", _("refund")

    kind = models.CharField(_("kind"), max_length=16, choices=Kind.choices)
    movement = models.CharField(_("movement"), max_length=16, choices=Movement.choices)
    reference = models.CharField(
        _("reference"), max_length=255, blank=True, help_text=_("Our id, where one is known.")
    )
    gateway_id = models.CharField(_("gateway id"), max_length=255, blank=True)
    amount_here = models.BigIntegerField(
        _("amount here"), default=0, help_text=_("In minor units; 0: nothing moved here.")
    )
    currency_here = models.CharField(_("currency here"), max_length=3, blank=True)
    amount_there = models.BigIntegerField(
        _("amount there"), default=0, help_text=_("In minor units; 0: nothing moved there.")
    )
    currency_there = models.CharField(_("currency there"), max_length=3, blank=True)
    moved_at = models.DateTimeField(
        _("moved at"), help_text=_("By the gateway's clock; by ours where it has nothing.")
    )
    found_at = models.DateTimeField(_("found at"))
    gone_at = models.DateTimeField(
        _("gone at"), null=True, blank=True, help_text=_("When a comparison no longer found it.")
    )
    handled_at = models.DateTimeField(_("handled at"), null=True, blank=True)
    handled_by = models.CharField(_("handled by"), max_length=150, blank=True)
    handling = models.CharField(_("how it was handled"), max_length=1000, blank=True)

    class Meta:
        verbose_name = _("ledger difference")
        verbose_name_plural = _("ledger differences")
        permissions = [
            ("handle_ledgerdifference", _("Can mark a ledger difference as handled")),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=["missing_here", "missing_there", "amount_differs", "double"]),
                name="payments_ledgerdifference_kind_known",
            ),
            # Two comparisons at once write one row.
            models.UniqueConstraint(
                fields=[
                    "kind",
                    "movement",
                    "reference",
                    "gateway_id",
                    "amount_here",
                    "currency_here",
                    "amount_there",
                    "currency_there",
                ],
                condition=Q(gone_at__isnull=True),
                name="payments_ledgerdifference_once_while_there",
            ),
        ]
        indexes = [
            # For the comparison, which closes those of its window, and for the list of open ones.
            models.Index(
                fields=["moved_at"],
                condition=Q(gone_at__isnull=True),
                name="payments_difference_there",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}: {self.reference or self.gateway_id}"
