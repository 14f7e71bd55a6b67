"""Re-send and discard: the page that asks for a reason, and the step that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from idempotency.admin import confirming
from idempotency.admin.seen import read_ids
from idempotency.models import MessageState, OutboxMessage
from idempotency.outbox import operators
from idempotency.outbox.operators import Seen

if TYPE_CHECKING:
    from idempotency.admin.outbox import OutboxMessageAdmin

__all__ = ["DECISIONS", "Decision", "read_ids", "view"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator may decide about messages."""

    name: str
    verb: str | Promise
    #: What it leads to, for the page that asks.
    consequence: str | Promise
    #: In English, for the admin log, which is everybody's.
    logged: str
    allowed: tuple[MessageState, ...]
    carry_out: Callable[..., bool]

    def permitted(self, model_admin: OutboxMessageAdmin, request: HttpRequest) -> bool:
        allowed: bool = getattr(model_admin, f"has_{self.name}_permission")(request)
        return allowed


DECISIONS = {
    decision.name: decision
    for decision in (
        Decision(
            "resend",
            gettext_lazy("Re-send"),
            gettext_lazy(
                "It is sent again under the same message id, with all attempts before it. A "
                "receiver that has had it should notice the id; one that does not, acts twice."
            ),
            "Re-sent",
            operators.RESENDABLE,
            operators.resend,
        ),
        Decision(
            "discard",
            gettext_lazy("Discard"),
            gettext_lazy(
                "It will not be sent, and what follows it under the same aggregate goes on without "
                "it."
            ),
            "Discarded",
            operators.DISCARDABLE,
            operators.discard,
        ),
    )
}


class ReasonForm(forms.Form):
    """Why. It has no default: it has to be meant."""

    required_css_class = "required"

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=500,
        help_text=gettext_lazy("Kept in the admin log and in the message's history."),
        widget=forms.Textarea(attrs={"rows": 3, "autocomplete": "off"}),
    )


def view(model_admin: OutboxMessageAdmin, request: HttpRequest, decision: Decision) -> HttpResponse:
    """GET shows the messages and asks; POST acts on those that still stand as they were shown."""
    if not (decision.permitted(model_admin, request) and model_admin.has_view_permission(request)):
        raise PermissionDenied
    if request.method != "POST":
        ids = read_ids(request.GET.getlist("message"))
        return _ask(model_admin, request, decision, ReasonForm(), ids)
    form = ReasonForm(request.POST)
    seen = _read_tokens(request.POST.getlist("token"))
    if not form.is_valid():
        return _ask(model_admin, request, decision, form, list(seen))
    _carry_out(model_admin, request, decision, seen, form.cleaned_data["reason"])
    return HttpResponseRedirect(confirming.back(model_admin, request, list(seen)))


def token(message: Any) -> str:
    """What the form carries: the record, and how it stood when the page was made."""
    seen = Seen.of(message)
    return f"{message.pk}:{seen.state}:{seen.attempt}:{seen.queued_at.isoformat()}"


def _read_tokens(values: Iterable[str]) -> dict[int, Seen]:
    """Record → how it stood on the page."""
    seen: dict[int, Seen] = {}
    for value in values:
        try:
            number, state, attempt, queued_at = value.split(":", 3)
            shown = Seen(MessageState(state), int(attempt), datetime.fromisoformat(queued_at))
        except ValueError:
            # Not of our making: nothing was seen, so there is nothing to decide.
            continue
        if shown.queued_at.tzinfo is None:
            continue
        seen |= dict.fromkeys(read_ids([number]), shown)
    return seen


def _ask(
    model_admin: OutboxMessageAdmin,
    request: HttpRequest,
    decision: Decision,
    form: ReasonForm,
    ids: list[int],
) -> TemplateResponse:
    found = list(model_admin.get_queryset(request).filter(pk__in=ids).order_by("pk"))
    return confirming.ask(
        model_admin,
        request,
        "outboxmessage/decide.html",
        ids,
        title=decision.verb,
        form=form,
        decision=decision,
        ready=[(one, token(one)) for one in found if one.state in decision.allowed],
        others=[one for one in found if one.state not in decision.allowed],
    )


def _carry_out(
    model_admin: OutboxMessageAdmin,
    request: HttpRequest,
    decision: Decision,
    seen: dict[int, Seen],
    reason: str,
) -> None:
    done = 0
    for message in model_admin.get_queryset(request).filter(pk__in=seen).order_by("pk"):
        refusal = _one(model_admin, request, decision, (message, seen[message.pk]), reason)
        if refusal is None:
            done += 1
        else:
            model_admin.message_user(request, refusal, messages.ERROR)
    if done:
        text = ngettext("%(verb)s: %(count)d message.", "%(verb)s: %(count)d messages.", done)
        text %= {"verb": decision.verb, "count": done}
        model_admin.message_user(request, text, messages.SUCCESS)


def _one(
    model_admin: OutboxMessageAdmin,
    request: HttpRequest,
    decision: Decision,
    shown: tuple[OutboxMessage, Seen],
    reason: str,
) -> str | None:
    """Act on one message and log it; or say why that was refused."""
    message, seen = shown
    using, actor = message._state.db, request.user.get_username()
    try:
        # Nothing is done without its line in the admin log, and no line is written without that.
        with transaction.atomic(using=using):
            if decision.carry_out(message.pk, seen=seen, actor=actor, reason=reason, using=using):
                model_admin.log_change(request, message, f"{decision.logged}: {reason}")
                return None
    except OperationalError:
        return _("%s: the database did not answer in time; try again.") % message
    present = model_admin.get_queryset(request).filter(pk=message.pk).first()
    if present is None:
        return _("%s is not there any more.") % message
    return _(
        "%(message)s changed since you looked: it is now %(state)s, attempt %(attempt)d. Nothing "
        "was written; look again before you decide."
    ) % {"message": message, "state": present.get_state_display(), "attempt": present.attempt}
