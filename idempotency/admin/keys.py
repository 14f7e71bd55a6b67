"""Keys: find one, see its story, end it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from idempotency import approvals, inspection, replays, story
from idempotency.admin import force_fail
from idempotency.admin.answers import show_answer, show_json
from idempotency.admin.cells import age, badge, lease_left, moment, named
from idempotency.admin.changelists import LargeTableAdmin
from idempotency.admin.filters import AttentionFilter, RouteFilter
from idempotency.admin.seen import read_ids
from idempotency.core.keys import log_digest
from idempotency.models import IdempotencyKey, KeyEvent, StoredResponse
from idempotency.search import find_keys
from idempotency.stores import clock, sessions

#: Events on a key's page; the list of events has the others.
SHOWN_EVENTS = 100


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(LargeTableAdmin):
    """Read-only but for force-fail, which has a permission and a page of its own."""

    list_display = ("state_word", "key_text", "age", "lease", "attempt_number", "place")
    list_display_links = ("key_text",)
    list_filter = (AttentionFilter, "state", RouteFilter)
    search_fields = ("key",)
    search_help_text = gettext_lazy(
        "An exact key; or the account, a blank and the key, which is fast on a table of any size; "
        "or the digest that logs show."
    )
    actions = ("force_fail_selected",)
    fields = ()

    class Media:
        css = {"all": ["idempotency/admin.css"]}

    # Permissions

    def has_force_fail_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Behind the action and the button. It does not include seeing keys."""
        return request.user.has_perm("idempotency.force_fail_idempotencykey")

    def has_view_response_body_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Behind stored bodies and what an operation keeps: both may hold personal data."""
        return request.user.has_perm("idempotency.view_response_body")

    def has_ask_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Behind asking the other side about an operation. Asking again may settle it."""
        return request.user.has_perm("idempotency.ask_idempotencykey")

    def has_settle_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Behind settling an operation by a person's own word."""
        return request.user.has_perm("idempotency.settle_idempotencykey")

    def _may_decide(self, request: HttpRequest) -> bool:
        return self.has_ask_permission(request) or self.has_settle_permission(request)

    def _may_know(self, request: HttpRequest) -> bool:
        """Who sees downstream keys: whoever may have to name one to the other side's support."""
        return self.has_view_response_body_permission(request) or self._may_decide(request)

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # The database's time beside the row, so that both are of one moment and one clock.
        keys: QuerySet[Any] = super().get_queryset(request).annotate(now=clock.now())
        return keys

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term.strip():
            return queryset, False
        found = find_keys(queryset, search_term)
        if found.advice:
            messages.warning(request, found.advice)
        return found.keys, False

    @admin.display(description=gettext_lazy("state"))
    def state_word(self, key: Any) -> SafeString:
        return badge(inspection.facts_of(key, key.now))

    @admin.display(description=gettext_lazy("key"))
    def key_text(self, key: Any) -> SafeString:
        return format_html('<span class="idem-key">{}</span>', key.key)

    @admin.display(description=gettext_lazy("age"))
    def age(self, key: Any) -> SafeString:
        return named(_("age"), age(key.created_at, key.now))

    @admin.display(description=gettext_lazy("lease left"), empty_value="-")
    def lease(self, key: Any) -> SafeString | None:
        left = lease_left(key.lease_expires_at, key.now)
        return left and named(_("lease"), left)

    @admin.display(description=gettext_lazy("attempt"))
    def attempt_number(self, key: Any) -> SafeString:
        return named(_("attempt"), key.attempt)

    @admin.display(description=gettext_lazy("route, tenant"))
    def place(self, key: Any) -> SafeString:
        return format_html('{}<br><span class="idem-quiet">{}</span>', key.route, key.tenant)

    # One key

    def page_of(self, request: HttpRequest, key: Any) -> dict[str, Any]:
        """What the page of a key shows, read in a bounded number of look-ups by index."""
        using, now = key._state.db, key.now
        answer = _answer_of(key, using)
        facts = inspection.facts_of(key, now, answer)
        events = KeyEvent.objects.using(using).filter(key_id=key.pk).order_by("-at", "-id")
        newest = list(events[: SHOWN_EVENTS + 1])
        may_see_body = self.has_view_response_body_permission(request)
        proposals = approvals.open_proposals(using, [key.pk])
        told = story.Material(
            key,
            facts,
            newest[:SHOWN_EVENTS],
            replays=replays.read(bytes(key.digest)),
            downstream_key=story.downstream_key_of(key) if self._may_know(request) else "",
            cut=len(newest) > SHOWN_EVENTS,
        )
        return {
            "title": _("Idempotency key"),
            "subtitle": None,
            "facts": facts,
            "badge": badge(facts),
            "retry_now": inspection.retry_now(facts),
            "other_request": inspection.other_request(facts),
            "rows": self._rows(key, facts),
            "story": [(it, moment(it.at, now)) for it in story.story_of(told)],
            "more_events": told.cut,
            "not_recorded": story.not_recorded(key, replays_noted=replays.noted()),
            "answer": answer and show_answer(answer, may_see_body=may_see_body),
            "kept_context": show_json(key.context) if key.context and may_see_body else None,
            "may_force_fail": self.has_force_fail_permission(request),
            "may_decide": self._may_decide(request) and facts.is_open and bool(key.recovery_point),
            "proposal": proposals.first() if facts.is_open else None,
            "force_fail_url": f"{self._url('force_fail')}?key={key.pk}",
        }

    def _rows(self, key: Any, facts: inspection.KeyFacts) -> list[tuple[str, Any]]:
        """The facts of a key as label and value; those without a value are left out."""
        rows = [
            (_("Route"), key.route),
            (_("Tenant"), key.tenant),
            (_("Key"), format_html('<span class="idem-mono">{}</span>', key.key)),
            (_("Digest in logs"), log_digest(bytes(key.digest))),
            (_("Record"), key.pk),
            (_("Attempt"), key.attempt),
            (_("Lease left"), lease_left(key.lease_expires_at, key.now)),
            (_("Operation"), inspection.operation_of(key)),
            (_("Recovery point"), key.recovery_point),
            (_("Last failure"), key.failure),
            (_("Owner"), key.owner),
            (_("Created"), moment(key.created_at, key.now)),
            (_("Completed"), moment(key.completed_at, key.now)),
            (_("Expires"), moment(key.expires_at, key.now)),
        ]
        return [(label, value) for label, value in rows if value not in (None, "")]

    # Force-fail

    @admin.action(
        permissions=["force_fail"],
        description=gettext_lazy("Force-fail selected %(verbose_name_plural)s…"),
    )
    def force_fail_selected(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponseRedirect:
        # The ticked rows and not the queryset: "all of a large table" is nothing to confirm.
        ticked = read_ids(request.POST.getlist(ACTION_CHECKBOX_NAME))
        query: dict[str, Any] = {"key": ticked}
        if request.GET:
            query["_changelist_filters"] = request.GET.urlencode()
        return HttpResponseRedirect(f"{self._url('force_fail')}?{urlencode(query, doseq=True)}")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.force_fail_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_force_fail"
        return [path("force-fail/", view, name=name), *super().get_urls()]

    @sessions.non_atomic  # each key is ended by itself, or not
    def force_fail_view(self, request: HttpRequest) -> HttpResponse:
        """The page that asks, and the POST that does it."""
        return force_fail.view(self, request)

    def _url(self, page: str) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, current_app=self.admin_site.name)


def _answer_of(key: IdempotencyKey, using: str) -> StoredResponse | None:
    """The answer of a settled key. Its day is named so that PostgreSQL looks into one partition."""
    if key.completed_at is None:
        return None
    answers = StoredResponse.objects.using(using)
    return answers.filter(key_id=key.pk, day=key.response_day).first()
