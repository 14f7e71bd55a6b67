"""Force-fail: the page that asks, and the step that does it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from idempotency import doubts, inspection
from idempotency.admin import confirming
from idempotency.admin.cells import badge, lease_left
from idempotency.admin.seen import read_ids, read_tokens, token_of
from idempotency.approvals import AlreadyProposed, Person, Stake, stake_of
from idempotency.doubts import Ending
from idempotency.enquiry import Told
from idempotency.inspection import KeyFacts, Risk
from idempotency.models import STATE_LABELS, Choice, IdempotencyKey
from idempotency.operators import Seen

if TYPE_CHECKING:
    from idempotency.admin.keys import IdempotencyKeyAdmin

FREE, FINAL = Choice.FREE.value, Choice.FINAL.value


class ForceFailForm(forms.Form):
    """What the operator decides, and why. Neither has a default: both have to be meant."""

    required_css_class = "required"

    outcome = forms.ChoiceField(
        label=gettext_lazy("What a retry gets"),
        choices=[(FREE, gettext_lazy("Free for retry")), (FINAL, gettext_lazy("Final"))],
        widget=forms.RadioSelect,
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=500,
        help_text=gettext_lazy("Kept in the admin log and in the key's story; no client sees it."),
        widget=forms.Textarea(attrs={"rows": 3, "autocomplete": "off"}),
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A key on the page that asks, as the operator gets to see it."""

    key: Any
    facts: KeyFacts

    @property
    def token(self) -> str:
        """What the form carries: the record, and how it stood when the page was made."""
        return token_of(self.key)

    @property
    def badge(self) -> SafeString:
        return badge(self.facts)

    @property
    def lease(self) -> SafeString | None:
        return lease_left(self.key.lease_expires_at, self.key.now)

    @property
    def risk(self) -> Risk:
        return inspection.risk_of_force_fail(self.facts)[0]

    @property
    def risk_text(self) -> str:
        return inspection.risk_of_force_fail(self.facts)[1]

    @property
    def stake(self) -> Stake:
        return stake_of(self.key)

    @property
    def freed_leads_to_doubt(self) -> bool:
        return inspection.freed_leads_to_doubt(self.facts)


def view(model_admin: IdempotencyKeyAdmin, request: HttpRequest) -> HttpResponse:
    """GET shows the keys and asks; POST ends those that still stand as they were shown."""
    may = model_admin.has_force_fail_permission(request)
    if not (may and model_admin.has_view_permission(request)):
        raise PermissionDenied
    if request.method != "POST":
        return _ask(model_admin, request, ForceFailForm(), read_ids(request.GET.getlist("key")))
    form = ForceFailForm(request.POST)
    seen = read_tokens(request.POST.getlist("token"))
    if not form.is_valid():
        return _ask(model_admin, request, form, list(seen))
    _end(model_admin, request, seen, form.cleaned_data)
    return HttpResponseRedirect(confirming.back(model_admin, request, list(seen)))


def _ask(
    model_admin: IdempotencyKeyAdmin, request: HttpRequest, form: ForceFailForm, ids: list[int]
) -> TemplateResponse:
    keys = model_admin.get_queryset(request).filter(pk__in=ids).order_by("-pk")
    found = [Candidate(key, inspection.facts_of(key, key.now)) for key in keys]
    ready = [candidate for candidate in found if candidate.facts.is_open]
    return confirming.ask(
        model_admin,
        request,
        "idempotencykey/force_fail.html",
        ids,
        title=_("Force-fail"),
        form=form,
        ready=ready,
        settled=[candidate for candidate in found if not candidate.facts.is_open],
        effect_possible=any(candidate.risk is Risk.EFFECT for candidate in ready),
    )


def _end(
    model_admin: IdempotencyKeyAdmin,
    request: HttpRequest,
    seen: dict[int, Seen],
    choice: dict[str, Any],
) -> None:
    """Force-fail each key that still stands as it was shown, and say what came of it."""
    keys = list(model_admin.get_queryset(request).filter(pk__in=seen).order_by("pk"))
    came = Counter[Ending]()
    for key in keys:
        ending = _end_one(model_admin, request, key, seen[key.pk], choice)
        if isinstance(ending, str):
            model_admin.message_user(request, ending, messages.ERROR)
        else:
            came[ending] += 1
    if done := came[Ending.DONE]:
        text = ngettext("Force-failed %d key.", "Force-failed %d keys.", done) % done
        model_admin.message_user(request, text, messages.SUCCESS)
    if proposed := came[Ending.PROPOSED]:
        text = ngettext(
            "Proposed for %d key: another person has to approve.",
            "Proposed for %d keys: another person has to approve.",
            proposed,
        )
        model_admin.message_user(request, text % proposed, messages.WARNING)
    if gone := len(seen) - len(keys):
        text = ngettext("%d key is not there any more.", "%d keys are not there any more.", gone)
        model_admin.message_user(request, text % gone, messages.ERROR)


def _end_one(
    model_admin: IdempotencyKeyAdmin,
    request: HttpRequest,
    key: IdempotencyKey,
    seen: Seen,
    choice: dict[str, Any],
) -> Ending | str:
    """End one key, or propose that, and log it; or say why that was refused."""
    final, reason = choice["outcome"] == FINAL, choice["reason"]
    # In English, whatever the operator's language: the log is everybody's.
    how = "final" if final else "free for retry"
    verb = "Proposed to force-fail" if stake_of(key).two_people else "Force-failed"

    def log() -> None:
        model_admin.log_change(request, key, f"{verb} ({how}): {reason}")

    try:
        ending = doubts.decide(
            key.pk,
            seen=seen,
            told=Told(Choice(choice["outcome"]), reason),
            person=person_of(request),
            # No key is ended without its line in the admin log, and no line written without that.
            also=log,
            request=request,
            using=key._state.db,
        )
    except AlreadyProposed:
        return _("Not force-failed: there is a proposal for %s already.") % key
    except OperationalError:
        text = _("Not force-failed: %s. The database did not answer in time; try again.")
        return text % key
    return _refused(model_admin, request, key) if ending is Ending.CHANGED else ending


def person_of(request: HttpRequest) -> Person:
    """Who is at the keyboard."""
    return Person(request.user.get_username(), str(request.user.pk))


def _refused(model_admin: IdempotencyKeyAdmin, request: HttpRequest, key: IdempotencyKey) -> str:
    present = model_admin.get_queryset(request).filter(pk=key.pk).first()
    if present is None:
        return _("Not force-failed: %s is not there any more.") % key
    labels = {state.value: label for state, label in STATE_LABELS.items()}
    text = _(
        "Not force-failed: %(key)s changed since you looked. It is now %(state)s, attempt "
        "%(attempt)d. Nothing was written; look again before you decide."
    ) % {"key": key, "state": labels[present.state], "attempt": present.attempt}
    if present.recovery_point:
        passed = _("It has passed “%s”.") % present.recovery_point
        text = f"{text} {passed}"
    return text
