"""What the product stores. Amounts are integers in minor units of an ISO 4217 currency.

The ledger's own rules (balanced transactions, append-only entries, kept balances) are enforced by
triggers; see `payments/sql/`.
"""

from functools import partial
from typing import Any, ClassVar

from django.db import models
from django.db.models import F, Q
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from payments import currencies, ids
from payments.reconciliation.models import LedgerDifference as LedgerDifference
from payments.webhooks.models import WebhookEndpoint as WebhookEndpoint

#: The largest amount of one movement, in minor units: twelve digits.
MAX_AMOUNT = 999_999_999_999

CURRENCY_PATTERN = r"^[A-Z]{3}$"


def storable(text: str, most: int) -> str:
    """What somebody else wrote, as a column of so many characters holds it. A code that is longer
    than expected must not undo what happened."""
    return text.replace("\0", "")[:most]


def _public_id(prefix: str) -> "models.CharField[str, str]":
    return models.CharField(
        _("public id"),
        max_length=len(prefix) + 1 + ids.LENGTH,
        default=partial(ids.new_id, prefix),
        editable=False,
    )


class Movement(models.Model):
    """What charges, refunds and transfers have in common: a positive amount of one currency."""

    #: The route that shows one.
    route: ClassVar[str]
    public_id: "models.CharField[str, str]"
    amount = models.BigIntegerField(_("amount"), help_text=_("In minor units."))
    currency = models.CharField(_("currency"), max_length=3)
    created = models.DateTimeField(_("created"), auto_now_add=True)
    #: Of the key that asked for it; not a foreign key, because keys are pruned.
    idempotency_key_id = models.BigIntegerField(_("idempotency key"), null=True, editable=False)

    class Meta:
        abstract = True
        constraints = [
            models.CheckConstraint(
                condition=Q(amount__gt=0, amount__lte=MAX_AMOUNT),
                name="%(app_label)s_%(class)s_amount_in_range",
            ),
            models.CheckConstraint(
                condition=Q(currency__regex=CURRENCY_PATTERN),
                name="%(app_label)s_%(class)s_currency_code",
            ),
            # Not `unique=True`, which adds a second index for LIKE on PostgreSQL.
            models.UniqueConstraint(
                fields=["public_id"], name="%(app_label)s_%(class)s_public_id_unique"
            ),
        ]
        # From a key's page to the money it moved.
        indexes = [
            models.Index(fields=["idempotency_key_id"], name="%(app_label)s_%(class)s_key"),
        ]

    def __str__(self) -> str:
        money = currencies.format_amount(amount=self.amount, currency=self.currency)
        return f"{self.public_id} {money}"

    def get_absolute_url(self) -> str:
        return reverse(f"payments:{self.route}", args=[self.public_id])


class Merchant(models.Model):
    """An account of the product. It is the tenant: all its API keys share one scope."""

    public_id = _public_id("acct")
    name = models.CharField(_("name"), max_length=200)
    created = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("merchant")
        verbose_name_plural = _("merchants")
        constraints = [
            models.UniqueConstraint(
                fields=["public_id"], name="payments_merchant_public_id_unique"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.public_id})"


class ApiKey(models.Model):
    """A secret of a merchant. Only its SHA-256 is stored; the prefix is what people are shown."""

    merchant = models.ForeignKey(Merchant, on_delete=models.PROTECT, related_name="api_keys")
    prefix = models.CharField(_("prefix"), max_length=12)
    digest = models.CharField(_("digest"), max_length=64, editable=False)
    created = models.DateTimeField(_("created"), auto_now_add=True)
    revoked = models.DateTimeField(_("revoked"), null=True, blank=True)

    class Meta:
        verbose_name = _("API key")
        verbose_name_plural = _("API keys")
        constraints = [
            models.UniqueConstraint(fields=["digest"], name="payments_apikey_digest_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.prefix}…"


class Charge(Movement):
    """Money asked of a payer through the gateway.

    `version` counts every change and is the entity tag. `amount_refunded` includes refunds still on
    their way, so that the check constraint holds when two of them race.
    """

    class Status(models.TextChoices):
        #: Written before the gateway is called; the outcome is not known yet.
        PENDING = "pending", _("pending")
        #: The gateway took the money, and the ledger says so.
        SUCCEEDED = "succeeded", _("succeeded")
        #: The gateway refused; no money moved.
        DECLINED = "declined", _("declined")
        #: The gateway was certainly never asked; no money moved.
        WITHDRAWN = "withdrawn", _("withdrawn")

    route = "charge"

    public_id = _public_id("ch")
    merchant = models.ForeignKey(
        Merchant, on_delete=models.PROTECT, related_name="charges", db_index=False
    )
    status = models.CharField(
        _("status"), max_length=16, choices=Status.choices, default=Status.PENDING
    )
    amount_refunded = models.BigIntegerField(_("amount refunded"), default=0)
    description = models.CharField(_("description"), max_length=500, blank=True)
    metadata: "models.JSONField[Any, Any]" = models.JSONField(
        _("metadata"), blank=True, default=dict
    )
    gateway_reference = models.CharField(_("gateway reference"), max_length=255, blank=True)
    decline_code = models.CharField(_("decline code"), max_length=64, blank=True)
    version = models.PositiveIntegerField(_("version"), default=1)

    class Meta:
        verbose_name = _("charge")
        verbose_name_plural = _("charges")
        indexes = [
            *Movement.Meta.indexes,
            models.Index(fields=["merchant", "-created", "-id"], name="payments_charge_page"),
        ]
        constraints = [
            *Movement.Meta.constraints,
            models.CheckConstraint(
                condition=Q(status__in=["pending", "succeeded", "declined", "withdrawn"]),
                name="payments_charge_status_known",
            ),
            models.CheckConstraint(
                condition=Q(amount_refunded__gte=0, amount_refunded__lte=F("amount")),
                name="payments_charge_refunded_in_range",
            ),
            models.CheckConstraint(
                condition=Q(amount_refunded=0) | Q(status="succeeded"),
                name="payments_charge_refunded_when_succeeded",
            ),
        ]


class Refund(Movement):
    """Money given back to the payer of a charge."""

    class Status(models.TextChoices):
        #: The amount is set aside; the gateway's answer is not known yet.
        PENDING = "pending", _("pending")
        #: The gateway gave the money back.
        SUCCEEDED = "succeeded", _("succeeded")
        #: The gateway refused; the amount went back to the merchant.
        FAILED = "failed", _("failed")
        #: The gateway was certainly never asked; the amount went back to the merchant.
        WITHDRAWN = "withdrawn", _("withdrawn")

    route = "refund"

    public_id = _public_id("re")
    charge = models.ForeignKey(
        Charge, on_delete=models.PROTECT, related_name="refunds", db_index=False
    )
    status = models.CharField(
        _("status"), max_length=16, choices=Status.choices, default=Status.PENDING
    )
    gateway_reference = models.CharField(_("gateway reference"), max_length=255, blank=True)
    failure_code = models.CharField(_("failure code"), max_length=64, blank=True)

    class Meta:
        verbose_name = _("refund")
        verbose_name_plural = _("refunds")
        indexes = [
            *Movement.Meta.indexes,
            models.Index(fields=["charge", "-created", "-id"], name="payments_refund_page"),
        ]
        constraints = [
            *Movement.Meta.constraints,
            models.CheckConstraint(
                condition=Q(status__in=["pending", "succeeded", "failed", "withdrawn"]),
                name="payments_refund_status_known",
            ),
        ]


class Transfer(Movement):
    """Money moved from one merchant to another inside the product."""

    route = "transfer"

    public_id = _public_id("tr")
    sender = models.ForeignKey(Merchant, on_delete=models.PROTECT, related_name="transfers_sent")
    recipient = models.ForeignKey(
        Merchant, on_delete=models.PROTECT, related_name="transfers_received"
    )
    description = models.CharField(_("description"), max_length=500, blank=True)

    class Meta:
        verbose_name = _("transfer")
        verbose_name_plural = _("transfers")
        indexes = [*Movement.Meta.indexes]
        constraints = [
            *Movement.Meta.constraints,
            models.CheckConstraint(
                condition=~Q(sender=F("recipient")), name="payments_transfer_two_accounts"
            ),
        ]


class LedgerAccount(models.Model):
    """A place where money is, in one currency.

    Only a merchant's account keeps its balance (a trigger does): the product's own accounts take
    part in every charge, and a kept balance would make each of them a row that all charges queue
    for. Their balances are sums over entries, and `balance` is null.
    """

    class Kind(models.TextChoices):
        #: What the product owes a merchant. Never negative.
        MERCHANT = "merchant", _("merchant")
        #: What the gateway owes the product; negative, because a debit is written as a minus.
        GATEWAY_CLEARING = "gateway_clearing", _("gateway clearing")
        #: Set aside for refunds whose outcome is not known yet.
        REFUNDS_PENDING = "refunds_pending", _("refunds pending")
        #: Where the demo's opening balances come from.
        FUNDING = "funding", _("funding")

    kind = models.CharField(_("kind"), max_length=32, choices=Kind.choices)
    merchant = models.ForeignKey(
        Merchant, models.PROTECT, related_name="accounts", null=True, blank=True, db_index=False
    )
    currency = models.CharField(_("currency"), max_length=3)
    balance = models.BigIntegerField(_("balance"), null=True, blank=True)

    class Meta:
        verbose_name = _("ledger account")
        verbose_name_plural = _("ledger accounts")
        constraints = [
            models.CheckConstraint(
                condition=Q(balance__gte=0), name="payments_ledgeraccount_balance_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(kind="merchant", merchant__isnull=False, balance__isnull=False)
                | (~Q(kind="merchant") & Q(merchant__isnull=True, balance__isnull=True)),
                name="payments_ledgeraccount_owner_matches_kind",
            ),
            models.CheckConstraint(
                condition=Q(currency__regex=CURRENCY_PATTERN),
                name="payments_ledgeraccount_currency_code",
            ),
            models.UniqueConstraint(
                fields=["merchant", "currency"],
                condition=Q(merchant__isnull=False),
                name="payments_ledgeraccount_merchant_unique",
            ),
            models.UniqueConstraint(
                fields=["kind", "currency"],
                condition=Q(merchant__isnull=True),
                name="payments_ledgeraccount_kind_unique",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.merchant or self.get_kind_display()} {self.currency}"


class LedgerTransaction(models.Model):
    """A movement of money: entries that sum to zero in each currency. Append-only."""

    class Kind(models.TextChoices):
        #: gateway clearing -> merchant
        CHARGE = "charge", _("charge")
        #: merchant -> refunds pending, before the gateway is asked
        REFUND_HOLD = "refund_hold", _("refund hold")
        #: refunds pending -> gateway clearing
        REFUND_SETTLEMENT = "refund_settlement", _("refund settlement")
        #: refunds pending -> merchant, when the gateway refused or was never asked
        REFUND_RETURN = "refund_return", _("refund return")
        #: merchant -> merchant
        TRANSFER = "transfer", _("transfer")
        #: funding -> merchant (demo only)
        FUNDING = "funding", _("funding")

    kind = models.CharField(_("kind"), max_length=32, choices=Kind.choices)
    charge = models.ForeignKey(
        Charge, models.PROTECT, related_name="postings", null=True, blank=True, db_index=False
    )
    refund = models.ForeignKey(
        Refund, models.PROTECT, related_name="postings", null=True, blank=True
    )
    transfer = models.ForeignKey(
        Transfer, models.PROTECT, related_name="postings", null=True, blank=True, db_index=False
    )
    created = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("ledger transaction")
        verbose_name_plural = _("ledger transactions")
        # Whatever the code above does wrong, one charge is posted once, and one refund ends once.
        constraints = [
            models.UniqueConstraint(
                fields=["charge"],
                condition=Q(charge__isnull=False),
                name="payments_ledgertransaction_charge_once",
            ),
            models.UniqueConstraint(
                fields=["transfer"],
                condition=Q(transfer__isnull=False),
                name="payments_ledgertransaction_transfer_once",
            ),
            models.UniqueConstraint(
                fields=["refund"],
                condition=Q(kind="refund_hold"),
                name="payments_ledgertransaction_refund_held_once",
            ),
            models.UniqueConstraint(
                fields=["refund"],
                condition=Q(kind__in=["refund_settlement", "refund_return"]),
                name="payments_ledgertransaction_refund_ended_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.pk}"


class LedgerEntry(models.Model):
    """One line of a transaction. A positive amount is a credit, a negative one a debit."""

    transaction = models.ForeignKey(
        LedgerTransaction, on_delete=models.PROTECT, related_name="entries", db_index=False
    )
    account = models.ForeignKey(
        LedgerAccount, on_delete=models.PROTECT, related_name="entries", db_index=False
    )
    amount = models.BigIntegerField(_("amount"), help_text=_("In minor units; a debit is minus."))

    class Meta:
        verbose_name = _("ledger entry")
        verbose_name_plural = _("ledger entries")
        indexes = [
            models.Index(fields=["account", "-id"], name="payments_ledgerentry_account"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=~Q(amount=0), name="payments_ledgerentry_amount_not_zero"
            ),
            models.UniqueConstraint(
                fields=["transaction", "account"], name="payments_ledgerentry_account_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount:+d}"
