"""Proposals: what one person decided and another one approves, or rejects."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from idempotency import approvals, doubts, enquiry
from idempotency.admin import deciding
from idempotency.admin.cells import badge, moment, named, stamp
from idempotency.admin.changelists import LargeTableAdmin
from idempotency.admin.force_fail import person_of
from idempotency.admin.seen import record_number
from idempotency.admin.times import utc
from idempotency.approvals import ProposalOver, seen_of
from idempotency.doubts import Ending
from idempotency.encryption import Unreadable
from idempotency.inspection import facts_of
from idempotency.models import Choice, IdempotencyKey, Proposal, ProposalStatus
from idempotency.operators import Seen
from idempotency.stores import clock, sessions

TONES = {
    ProposalStatus.OPEN: "stuck",
    ProposalStatus.APPROVED: "good",
    ProposalStatus.REJECTED: "bad",
    ProposalStatus.OVERTAKEN: "quiet",
}
CONSEQUENCES = deciding.CONSEQUENCES | {
    Choice.FREE: gettext_lazy(
        "The attempt is ended. The same request may run again; an operation that has made its "
        "outside call repeats it under the same downstream key."
    ),
    Choice.FINAL: gettext_lazy(
        "The attempt is ended. Every retry gets 410 force_failed; what the request has left "
        "elsewhere stays as it is."
    ),
}


class ApprovalForm(forms.Form):
    """Why. It has no default: it has to be meant."""

    required_css_class = "required"

    reason = deciding.reason_field()


@admin.register(Proposal)
class ProposalAdmin(LargeTableAdmin):
    """Read-only but for approving and rejecting. A proposer sees and may take back his own."""

    list_display = ("status_word", "choice", "amount", "proposed_by", "when", "decided_by")
    list_display_links = ("status_word",)
    list_filter = ("status",)
    search_fields = ("key_id",)
    search_help_text = gettext_lazy("The number of a key's record, as its page shows it.")
    fields = ()

    class Media:
        css = {"all": ["idempotency/admin.css"]}

    # Permissions

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_approve_permission(request) or super().has_view_permission(request, obj)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_approve_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("idempotency.approve_proposal")

    # The list

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).annotate(now=clock.now())

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        number = record_number(term)
        found = queryset.none() if number is None else queryset.filter(key_id=number)
        return found, False

    @admin.display(description=gettext_lazy("status"))
    def status_word(self, proposal: Any) -> SafeString:
        return status_badge(proposal)

    @admin.display(description=gettext_lazy("proposed at"))
    def when(self, proposal: Any) -> SafeString:
        return named(_("proposed at"), stamp(utc(proposal.created_at), proposal.created_at))

    # One proposal

    def get_urls(self) -> list[URLPattern]:
        kept = {f"{self.opts.app_label}_{self.opts.model_name}_{page}" for page in _PAGES}
        return [url for url in super().get_urls() if url.name in kept]

    @sessions.non_atomic  # under ATOMIC_REQUESTS: settling commits in two steps
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The proposal; a POST approves or rejects it."""
        if request.method != "POST":
            return super().change_view(request, object_id, form_url, extra_context)
        proposal = self.get_object(request, object_id)
        step = request.POST.get("step")
        if proposal is None or step not in ("approve", "reject"):
            raise PermissionDenied
        own = proposal.proposed_by == request.user.get_username()
        if not (self.has_approve_permission(request) or (own and step == "reject")):
            raise PermissionDenied
        form = ApprovalForm(request.POST)
        if not form.is_valid():
            return self._again(request, object_id, form)
        reason = form.cleaned_data["reason"]
        return (self._approve if step == "approve" else self._reject)(request, proposal, reason)

    def _again(self, request: HttpRequest, object_id: str, form: ApprovalForm) -> HttpResponse:
        request.method = "GET"  # the page as it is, with what is wrong with the form
        request.approval_form = form  # type: ignore[attr-defined]
        return super().change_view(request, object_id)

    def page_of(self, request: HttpRequest, proposal: Any) -> dict[str, Any]:
        key = _key_of(proposal)
        own = proposal.proposed_by == request.user.get_username()
        is_open = proposal.status == ProposalStatus.OPEN and proposal.expires_at > proposal.now
        stands = key is not None and Seen.of(key) == seen_of(proposal)
        may_approve = self.has_approve_permission(request)
        return {
            "title": _("Proposal"),
            "subtitle": None,
            "badge": status_badge(proposal),
            "key": key,
            "key_badge": None if key is None else badge(facts_of(key, key.now)),
            "consequence": CONSEQUENCES[Choice(proposal.choice)],
            "record": _record_of(proposal),
            "rows": self._rows(proposal),
            "is_open": is_open,
            "stands": stands,
            "own": own,
            "may_approve": may_approve and is_open and stands and not own,
            "may_reject": (may_approve or own) and is_open,
            "lacks_permission": not may_approve and not own,
            "approval": getattr(request, "approval_form", None) or ApprovalForm(),
        }

    def _rows(self, proposal: Any) -> list[tuple[str, Any]]:
        rows = [
            (_("Amount"), proposal.amount),
            (_("Proposed by"), proposal.proposed_by),
            (_("Reason"), proposal.reason),
            (_("Proposed"), moment(proposal.created_at, proposal.now)),
            (_("Expires"), moment(proposal.expires_at, proposal.now)),
            (_("Decided by"), proposal.decided_by),
            (_("Decided"), moment(proposal.decided_at, proposal.now)),
            (_("Reason given"), proposal.decided_reason),
        ]
        return [(label, value) for label, value in rows if value not in (None, "")]

    # Approving and rejecting

    def _approve(self, request: HttpRequest, proposal: Any, reason: str) -> HttpResponse:
        def log() -> None:
            self._log(request, proposal, f"Approved ({proposal.choice}): {reason}")

        try:
            ending = doubts.approve(
                proposal, person=person_of(request), reason=reason, also=log, request=request
            )
        except Exception as error:
            return self._refused(request, proposal, deciding.refusal_of(error, proposal.key_id))
        if ending is Ending.CHANGED:
            text = _("The key changed since it was proposed. Nothing was written.")
            return self._refused(request, proposal, text)
        self.message_user(request, _("Approved and carried out."), messages.SUCCESS)
        return HttpResponseRedirect(self._url(proposal))

    def _reject(self, request: HttpRequest, proposal: Any, reason: str) -> HttpResponse:
        def log() -> None:
            self._log(request, proposal, f"Rejected ({proposal.choice}): {reason}")

        try:
            doubts.reject(proposal, person=person_of(request), reason=reason, also=log)
        except (ProposalOver, OperationalError) as error:
            return self._refused(request, proposal, deciding.refusal_of(error, proposal.key_id))
        self.message_user(request, _("Rejected. Nothing was settled."), messages.SUCCESS)
        return HttpResponseRedirect(self._url(proposal))

    def _log(self, request: HttpRequest, proposal: Any, text: str) -> None:
        self.log_change(request, proposal, text)
        key = _key_of(proposal)
        if key is not None:
            self.log_change(request, key, f"Proposal {proposal.pk}: {text}")

    def _refused(self, request: HttpRequest, proposal: Any, text: str) -> HttpResponse:
        self.message_user(request, text, messages.ERROR)
        return HttpResponseRedirect(self._url(proposal))

    def _url(self, proposal: Any) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        return reverse(name, args=[proposal.pk], current_app=self.admin_site.name)


_PAGES = ("changelist", "change")


def status_badge(proposal: Any) -> SafeString:
    """The status as a word; an open one that is over says so."""
    status = ProposalStatus(proposal.status)
    if status is ProposalStatus.OPEN and proposal.expires_at <= proposal.now:
        return format_html('<span class="idem-state idem-quiet">{}</span>', _("expired"))
    return format_html('<span class="idem-state idem-{}">{}</span>', TONES[status], status.label)


def _record_of(proposal: Any) -> str:
    """What the other side calls what is to be written."""
    choice = Choice(proposal.choice)
    try:
        result = approvals.result_of(proposal)
    except Unreadable as error:
        return str(error)
    return enquiry.record_of(enquiry.finding_of(choice, result, "")) if result else ""


def _key_of(proposal: Any) -> Any:
    keys = IdempotencyKey.objects.using(proposal._state.db).annotate(now=clock.now())
    return keys.filter(pk=proposal.key_id).first()
