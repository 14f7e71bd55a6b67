"""Force-fail: the page that asks, and the step that does it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from idempotency import inspection, operators
from idempotency.admin.cells import badge, lease_left
from idempotency.core.states import State
from idempotency.inspection import KeyFacts, Risk
from idempotency.models import STATE_LABELS, IdempotencyKey
from idempotency.operators import Seen

if TYPE_CHECKING:
    from idempotency.admin.keys import IdempotencyKeyAdmin

#: Keys in one confirmation: as many as a person can read.
MOST = 100

FREE, FINAL = "free", "final"


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
        seen = Seen.of(self.key)
        return f"{self.key.pk}:{seen.owner}:{seen.state}:{seen.recovery_point}"

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
    def freed_leads_to_doubt(self) -> bool:
        return inspection.freed_leads_to_doubt(self.facts)


def read_ids(values: Iterable[str]) -> list[int]:
    """Record numbers from a request; what is none is left out."""
    numbers = [int(value) for value in values if value.isascii() and value.isdigit()]
    return [number for number in numbers if number < 2**63][:MOST]


def view(model_admin: IdempotencyKeyAdmin, request: HttpRequest) -> HttpResponse:
    """GET shows the keys and asks; POST ends those that still stand as they were shown."""
    may = model_admin.has_force_fail_permission(request)
    if not (may and model_admin.has_view_permission(request)):
        raise PermissionDenied
    if request.method != "POST":
        return _ask(model_admin, request, ForceFailForm(), read_ids(request.GET.getlist("key")))
    form = ForceFailForm(request.POST)
    seen = _read_tokens(request.POST.getlist("token"))
    if not form.is_valid():
        return _ask(model_admin, request, form, list(seen))
    _end(model_admin, request, seen, form.cleaned_data)
    return HttpResponseRedirect(_back(model_admin, request, list(seen)))


def _read_tokens(values: Iterable[str]) -> dict[int, Seen]:
    """Record → how it stood on the page."""
    seen: dict[int, Seen] = {}
    for value in values:
        number, _colon, rest = value.partition(":")
        try:
            owner, state, point = rest.split(":", 2)
            shown = Seen(uuid.UUID(owner), State(state), point.replace("\0", ""))
            seen |= dict.fromkeys(read_ids([number]), shown)
        except ValueError:
            # Not of our making: nothing was seen, so there is nothing to end.
            continue
    return seen


def _ask(
    model_admin: IdempotencyKeyAdmin, request: HttpRequest, form: ForceFailForm, ids: list[int]
) -> TemplateResponse:
    keys = model_admin.get_queryset(request).filter(pk__in=ids).order_by("-pk")
    found = [Candidate(key, inspection.facts_of(key, key.now)) for key in keys]
    ready = [candidate for candidate in found if candidate.facts.is_open]
    context = {
        **model_admin.admin_site.each_context(request),
        "title": _("Force-fail"),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "preserved_filters": model_admin.get_preserved_filters(request),
        "form": form,
        "ready": ready,
        "settled": [candidate for candidate in found if not candidate.facts.is_open],
        "effect_possible": any(candidate.risk is Risk.EFFECT for candidate in ready),
        "back": _back(model_admin, request, ids),
    }
    template = "admin/idempotency/idempotencykey/force_fail.html"
    return TemplateResponse(request, template, context)


def _back(model_admin: IdempotencyKeyAdmin, request: HttpRequest, ids: list[int]) -> str:
    """The page of the one key, or the list as it was filtered."""
    page, arguments = ("change", ids) if len(ids) == 1 else ("changelist", [])
    name = f"admin:{model_admin.opts.app_label}_{model_admin.opts.model_name}_{page}"
    url = reverse(name, args=arguments, current_app=model_admin.admin_site.name)
    context: Any = {
        "preserved_filters": model_admin.get_preserved_filters(request),
        "opts": model_admin.opts,
    }
    kept: str = add_preserved_filters(context, url)
    return kept


def _end(
    model_admin: IdempotencyKeyAdmin,
    request: HttpRequest,
    seen: dict[int, Seen],
    choice: dict[str, Any],
) -> None:
    """Force-fail each key that still stands as it was shown, and say what came of it."""
    keys = list(model_admin.get_queryset(request).filter(pk__in=seen).order_by("pk"))
    done = 0
    for key in keys:
        refusal = _end_one(model_admin, request, key, seen[key.pk], choice)
        if refusal is None:
            done += 1
        else:
            model_admin.message_user(request, refusal, messages.ERROR)
    if done:
        text = ngettext("Force-failed %d key.", "Force-failed %d keys.", done) % done
        model_admin.message_user(request, text, messages.SUCCESS)
    if gone := len(seen) - len(keys):
        text = ngettext("%d key is not there any more.", "%d keys are not there any more.", gone)
        model_admin.message_user(request, text % gone, messages.ERROR)


def _end_one(
    model_admin: IdempotencyKeyAdmin,
    request: HttpRequest,
    key: IdempotencyKey,
    seen: Seen,
    choice: dict[str, Any],
) -> str | None:
    """End one key and log it; or say why that was refused."""
    final, reason = choice["outcome"] == FINAL, choice["reason"]
    using = key._state.db
    try:
        # No key is ended without its line in the admin log, and no line is written without that.
        with transaction.atomic(using=using):
            if not operators.force_fail(
                key.pk,
                seen=seen,
                actor=request.user.get_username(),
                reason=reason,
                final=final,
                request=request,
                using=using,
            ):
                return _refused(model_admin, request, key)
            # In English, whatever the operator's language: the log is everybody's.
            how = "final" if final else "free for retry"
            model_admin.log_change(request, key, f"Force-failed ({how}): {reason}")
    except OperationalError:
        text = _("Not force-failed: %s. The database did not answer in time; try again.")
        return text % key
    return None


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
        text = f"{text} {_('It has passed “%s”.') % present.recovery_point}"
    return text
