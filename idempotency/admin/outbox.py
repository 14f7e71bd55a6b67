"""Messages of the outbox: find one, see its history, send it again or give it up."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import admin
from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from idempotency.admin import outbox_decisions
from idempotency.admin.answers import show_json
from idempotency.admin.cells import age, moment, named
from idempotency.admin.changelists import LargeTableAdmin
from idempotency.admin.outbox_decisions import DECISIONS
from idempotency.models import DeliveryKind, MessageState, OutboxMessage
from idempotency.outbox import channels
from idempotency.outbox.claims import UNFINISHED
from idempotency.stores import clock, sessions

#: Lines of a message's history on its page: the newest.
SHOWN_EVENTS = 100

#: State → the class that colours it.
TONES = {
    MessageState.PENDING: "run",
    MessageState.SENDING: "run",
    MessageState.DELIVERED: "good",
    MessageState.DEAD: "bad",
    MessageState.DISCARDED: "quiet",
}
_EVENT_TONES = {
    DeliveryKind.DELIVERED: "good",
    DeliveryKind.FAILED: "warn",
    DeliveryKind.LOST: "warn",
    DeliveryKind.DEAD: "bad",
}


class ChannelFilter(SimpleListFilter):
    """The channels that this process knows: nothing is read to show them."""

    title = gettext_lazy("channel")
    parameter_name = "channel"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(channel.name, channel.name) for channel in channels.all_channels()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        return queryset.filter(channel=self.value()) if self.value() else None


@admin.register(OutboxMessage)
class OutboxMessageAdmin(LargeTableAdmin):
    """Read-only but for re-send and discard, each behind a permission of its own."""

    list_display = ("state_word", "key_text", "age", "attempt_number", "place")
    list_display_links = ("key_text",)
    list_filter = ("state", ChannelFilter)
    search_fields = ("message_id",)
    search_help_text = gettext_lazy("A message id, a destination or an aggregate, exactly.")
    actions = ("resend_selected", "discard_selected")
    keyset = ("sequence",)
    fields = ()

    class Media:
        css = {"all": ["idempotency/admin.css"]}

    # Permissions

    def has_resend_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("idempotency.resend_outboxmessage")

    def has_discard_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("idempotency.discard_outboxmessage")

    def has_view_payload_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Behind payloads, which may hold personal data."""
        return request.user.has_perm("idempotency.view_outbox_payload")

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # The database's time beside the row, so that both are of one moment and one clock.
        messages: QuerySet[Any] = super().get_queryset(request).annotate(now=clock.now())
        return messages

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(message_id=uuid.UUID(term)), False
        except ValueError:
            return queryset.filter(Q(destination=term) | Q(aggregate=term)), False

    @admin.display(description=gettext_lazy("state"))
    def state_word(self, message: Any) -> SafeString:
        return badge(message)

    @admin.display(description=gettext_lazy("message"))
    def key_text(self, message: Any) -> SafeString:
        return format_html('<span class="idem-key">{}</span>', message.message_id)

    @admin.display(description=gettext_lazy("age"))
    def age(self, message: Any) -> SafeString:
        return named(_("age"), age(message.created_at, message.now))

    @admin.display(description=gettext_lazy("attempt"))
    def attempt_number(self, message: Any) -> SafeString:
        return named(_("attempt"), message.attempt)

    @admin.display(description=gettext_lazy("channel, destination"))
    def place(self, message: Any) -> SafeString:
        to = (message.channel, message.destination, message.aggregate)
        return format_html('{}<br>{} <span class="idem-quiet">{}</span>', *to)

    # One message

    def page_of(self, request: HttpRequest, message: Any) -> dict[str, Any]:
        newest = list(message.history.order_by("-id")[: SHOWN_EVENTS + 1])
        may_see_payload = self.has_view_payload_permission(request)
        return {
            "title": _("Outbox message"),
            "subtitle": None,
            "badge": badge(message),
            "outlook": outlook(message),
            "held_by": _held_by(message),
            "rows": self._rows(message),
            "history": [
                (event, _EVENT_TONES.get(event.kind), moment(event.at, message.now))
                for event in newest[SHOWN_EVENTS - 1 :: -1]
            ],
            "more_events": len(newest) > SHOWN_EVENTS,
            "payload": show_json(message.payload) if may_see_payload else None,
            "decisions": [
                (decision, f"{self._url(decision.name)}?message={message.pk}")
                for decision in DECISIONS.values()
                if message.state in decision.allowed and decision.permitted(self, request)
            ],
        }

    def _rows(self, message: Any) -> list[tuple[str, Any]]:
        """The facts of a message as label and value; those without a value are left out."""
        due = moment(message.due_at, message.now)
        rows = [
            (_("Channel"), message.channel),
            (_("Destination"), message.destination),
            (_("Aggregate"), message.aggregate),
            (_("Message id"), format_html('<span class="idem-mono">{}</span>', message.message_id)),
            (_("Sequence"), message.pk),
            (_("Attempt"), message.attempt),
            (_("Due"), due if message.state == MessageState.PENDING else None),
            (_("Lease over"), due if message.state == MessageState.SENDING else None),
            (_("Last error"), message.last_error),
            (_("Owner"), message.owner),
            (_("Created"), moment(message.created_at, message.now)),
            (_("Settled"), moment(message.settled_at, message.now)),
        ]
        return [(label, value) for label, value in rows if value not in (None, "")]

    # Re-send and discard

    @admin.action(
        permissions=["resend"],
        description=gettext_lazy("Re-send selected %(verbose_name_plural)s…"),
    )
    def resend_selected(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponseRedirect:
        return self._ask_about_ticked("resend", request)

    @admin.action(
        permissions=["discard"],
        description=gettext_lazy("Discard selected %(verbose_name_plural)s…"),
    )
    def discard_selected(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponseRedirect:
        return self._ask_about_ticked("discard", request)

    def _ask_about_ticked(self, name: str, request: HttpRequest) -> HttpResponseRedirect:
        # The ticked rows and not the queryset: "all of a large table" is nothing to confirm.
        ticked = outbox_decisions.read_ids(request.POST.getlist(ACTION_CHECKBOX_NAME))
        query: dict[str, Any] = {"message": ticked}
        if request.GET:
            query["_changelist_filters"] = request.GET.urlencode()
        return HttpResponseRedirect(f"{self._url(name)}?{urlencode(query, doseq=True)}")

    def get_urls(self) -> list[URLPattern]:
        pages = [
            path(
                f"{name}/",
                self.admin_site.admin_view(self.decide_view),
                {"name": name},
                name=f"{self.opts.app_label}_{self.opts.model_name}_{name}",
            )
            for name in DECISIONS
        ]
        return [*pages, *super().get_urls()]

    @sessions.non_atomic  # each message is decided about by itself
    def decide_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """The page that asks, and the POST that does it."""
        return outbox_decisions.view(self, request, DECISIONS[name])

    def _url(self, page: str) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, current_app=self.admin_site.name)


def badge(message: Any) -> SafeString:
    """The state as a word, and beside it whether its sender is overdue."""
    state = MessageState(message.state)
    words: list[tuple[str, Any]] = [(TONES[state], state.label)]
    if state is MessageState.SENDING and message.due_at <= message.now:
        words.append(("stuck", _("lease over")))
    return format_html_join(" ", '<span class="idem-state idem-{}">{}</span>', words)


def outlook(message: Any) -> str:
    """What happens to it next, in a sentence."""
    texts = {
        MessageState.PENDING: _("It is sent when it is due and nothing before it is unfinished."),
        MessageState.SENDING: _(
            "It is being sent; if its sender died, again once the lease is over."
        ),
        MessageState.DELIVERED: _("It has arrived. Nothing more happens to it."),
        MessageState.DEAD: _(
            "It is not sent any more, and what follows it under the same aggregate waits, until "
            "somebody re-sends or discards it."
        ),
        MessageState.DISCARDED: _("It was given up. Nothing more happens to it."),
    }
    return texts[MessageState(message.state)]


def _held_by(message: Any) -> OutboxMessage | None:
    """The message that has to be finished before this one may be sent."""
    if message.state != MessageState.PENDING or not message.aggregate:
        return None
    earlier = OutboxMessage.objects.using(message._state.db).filter(
        channel=message.channel,
        destination=message.destination,
        aggregate=message.aggregate,
        state__in=UNFINISHED,
        sequence__lt=message.pk,
    )
    return earlier.exclude(aggregate="").order_by("sequence").first()
