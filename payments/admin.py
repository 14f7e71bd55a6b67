"""The admin: everything to see, nothing to change. Money moves through the API alone."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from payments import currencies, merchants, models
from payments.reconciliation.admin import HandlingForm, StandingFilter, handle, money, subject_of
from payments.webhooks.events import CHANNEL

if TYPE_CHECKING:
    # Generic for the type checker only.
    _ModelAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
    _TabularInline = admin.TabularInline[Any, Any]
else:
    _ModelAdmin, _Paginator, _TabularInline = admin.ModelAdmin, Paginator, admin.TabularInline


class BoundedPaginator(_Paginator):
    """Counts no further than this, so that a list of millions opens as fast as a short one."""

    limit = 1000

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        assert isinstance(rows, QuerySet)  # noqa: S101 - the admin's lists are
        return rows.order_by()[: self.limit].count()


class ReadOnlyAdmin(_ModelAdmin):
    """Nobody adds, changes or deletes here, whatever their permissions."""

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    view_on_site = False
    ordering = ("-id",)

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class ReadOnlyInline(_TabularInline):
    extra = 0
    can_delete = False
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def link(target: Model | None) -> str:
    """A link to the admin page of another object."""
    if target is None:
        return "-"
    url = reverse(f"admin:{target._meta.label_lower.replace('.', '_')}_change", args=[target.pk])
    return format_html('<a href="{}">{}</a>', url, target)


def link_to_key(movement: models.Movement | None) -> str:
    """A link to the key that asked for a movement. Keys are pruned when they have expired."""
    key_id = None if movement is None else movement.idempotency_key_id
    if key_id is None:
        return "-"
    url = reverse("admin:idempotency_idempotencykey_change", args=[key_id])
    return format_html('<a href="{}">{} {}</a>', url, _("Its story:"), key_id)


class PostingInline(ReadOnlyInline):
    """The ledger's side of a charge, refund or transfer; the way back is on its own page."""

    model = models.LedgerTransaction
    fields = readonly_fields = ("kind", "created")


class MovementAdmin(ReadOnlyAdmin):
    """What charges, refunds and transfers have in common."""

    inlines = [PostingInline]
    readonly_fields = ("idempotency_key",)
    search_fields = ("public_id__exact",)
    search_help_text = _("An id, whole.")
    sortable_by = ()

    @admin.display(description=_("amount"))
    def money(self, movement: models.Movement) -> str:
        return currencies.format_amount(amount=movement.amount, currency=movement.currency)

    @admin.display(description=_("idempotency key"))
    def idempotency_key(self, movement: models.Movement) -> str:
        return link_to_key(movement)


@admin.register(models.Merchant)
class MerchantAdmin(ReadOnlyAdmin):
    list_display = ("public_id", "name", "created")
    search_fields = ("public_id__exact", "name")


@admin.register(models.ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = ("prefix", "merchant", "created", "revoked")
    list_select_related = ("merchant",)
    # The digest says nothing to people, and is no business of theirs.
    fields = ("prefix", "merchant", "created", "revoked")
    actions = ("revoke",)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("payments.change_apikey")

    @admin.action(description=_("Revoke: refused from now on, for good"), permissions=["revoke"])
    def revoke(self, request: HttpRequest, keys: QuerySet[models.ApiKey]) -> None:
        """For a secret that leaked. Issue the merchant another one first."""
        revoked = [key for key in keys if merchants.revoke_api_key(key=key)]
        for key in revoked:
            self.log_change(request, key, "Revoked")
        text = ngettext("%d API key revoked.", "%d API keys revoked.", len(revoked))
        self.message_user(request, text % len(revoked))


class RefundInline(ReadOnlyInline):
    model = models.Refund
    fields = readonly_fields = ("public_id", "status", "amount", "currency", "created")


@admin.register(models.Charge)
class ChargeAdmin(MovementAdmin):
    list_display = ("public_id", "status", "money", "merchant", "created")
    list_filter = ("status",)
    list_select_related = ("merchant",)
    inlines = [RefundInline, PostingInline]


@admin.register(models.Refund)
class RefundAdmin(MovementAdmin):
    list_display = ("public_id", "status", "money", "charge", "created")
    list_filter = ("status",)
    list_select_related = ("charge",)


@admin.register(models.Transfer)
class TransferAdmin(MovementAdmin):
    list_display = ("public_id", "money", "sender", "recipient", "created")
    list_select_related = ("sender", "recipient")


@admin.register(models.WebhookEndpoint)
class WebhookEndpointAdmin(ReadOnlyAdmin):
    list_display = ("endpoint_id", "merchant", "url", "enabled", "updated")
    list_filter = ("enabled",)
    list_select_related = ("merchant",)
    # Not its secret: whoever knows that can speak for us.
    fields = ("endpoint_id", "merchant", "url", "enabled", "created", "updated", "messages")
    readonly_fields = ("messages",)

    @admin.display(description=_("messages"))
    def messages(self, endpoint: models.WebhookEndpoint) -> str:
        """What was sent to it and what waits, with the history of each and the re-send."""
        query = urlencode({"q": endpoint.destination, "channel": CHANNEL})
        url = reverse("admin:idempotency_outboxmessage_changelist")
        return format_html('<a href="{}?{}">{}</a>', url, query, _("Show them"))


@admin.register(models.LedgerAccount)
class LedgerAccountAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "kind", "currency", "balance")
    list_filter = ("kind",)
    list_select_related = ("merchant",)
    fields = ("kind", "merchant", "currency", "balance", "entries")
    readonly_fields = ("entries",)

    @admin.display(description=_("entries"))
    def entries(self, account: models.LedgerAccount) -> str:
        url = reverse("admin:payments_ledgerentry_changelist")
        return format_html(
            '<a href="{}?account__id__exact={}">{}</a>', url, account.pk, _("Show them")
        )


class EntryInline(ReadOnlyInline):
    model = models.LedgerEntry
    fields = readonly_fields = ("account", "amount")


@admin.register(models.LedgerTransaction)
class LedgerTransactionAdmin(ReadOnlyAdmin):
    list_display = ("id", "kind", "about", "created")
    list_filter = ("kind",)
    list_select_related = ("charge", "refund", "transfer")
    sortable_by = ()
    fields = ("kind", "about", "idempotency_key", "created")
    readonly_fields = ("about", "idempotency_key")
    inlines = [EntryInline]

    @admin.display(description=_("about"))
    def about(self, posting: models.LedgerTransaction) -> str:
        subject = self._subject(posting)
        if subject is None:
            return "-"
        route = f"admin:{subject._meta.app_label}_{subject._meta.model_name}_change"
        return format_html('<a href="{}">{}</a>', reverse(route, args=[subject.pk]), subject)

    @admin.display(description=_("idempotency key"))
    def idempotency_key(self, posting: models.LedgerTransaction) -> str:
        return link_to_key(self._subject(posting))

    @staticmethod
    def _subject(posting: models.LedgerTransaction) -> models.Movement | None:
        return posting.charge or posting.refund or posting.transfer


@admin.register(models.LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    list_display = ("id", "transaction", "account", "amount")
    list_select_related = ("transaction", "account__merchant")
    sortable_by = ()

    # For the links of accounts. A filter beside the list would name every account there is.
    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        return lookup == "account__id__exact" or super().lookup_allowed(lookup, value, request)


@admin.register(models.LedgerDifference)
class LedgerDifferenceAdmin(ReadOnlyAdmin):
    """Read-only, but that whoever may can mark a difference as handled."""

    list_display = ("kind", "movement", "reference", "gateway_id", "here", "there", "moved_at")
    list_filter = (StandingFilter, "kind", "movement")
    search_fields = ("reference__exact", "gateway_id__exact")
    search_help_text = _("An id, ours or the gateway's, whole.")
    sortable_by = ()
    actions = ("mark_as_handled",)
    action_form = HandlingForm
    fields = (
        "kind",
        "movement",
        "subject",
        "reference",
        "gateway_id",
        "here",
        "there",
        "moved_at",
        "found_at",
        "gone_at",
        "handled_at",
        "handled_by",
        "handling",
    )
    readonly_fields = ("subject", "here", "there")

    def has_handle_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("payments.handle_ledgerdifference")

    @admin.action(permissions=["handle"], description=_("Mark as handled"))
    def mark_as_handled(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        handle(self, request, queryset)

    @admin.display(description=_("ours"))
    def subject(self, difference: models.LedgerDifference) -> str:
        return link(subject_of(difference))

    @admin.display(description=_("here"))
    def here(self, difference: models.LedgerDifference) -> str:
        return money(difference.amount_here, difference.currency_here)

    @admin.display(description=_("there"))
    def there(self, difference: models.LedgerDifference) -> str:
        return money(difference.amount_there, difference.currency_there)
