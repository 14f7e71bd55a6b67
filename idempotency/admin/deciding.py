"""The page that decides about one open operation: what the other side says, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from idempotency import approvals, doubts, inspection, operations, story
from idempotency.admin.answers import show_json
from idempotency.admin.cells import badge, moment
from idempotency.admin.force_fail import person_of
from idempotency.admin.seen import read_tokens, token_of
from idempotency.admin.times import span
from idempotency.approvals import AlreadyProposed, OwnProposal, ProposalOver, stake_of
from idempotency.doubts import Asked, Ending
from idempotency.encryption import Unreadable
from idempotency.enquiry import CannotSettle, Contradicted, Told, TooEarly, shown
from idempotency.models import STATE_LABELS, Choice, EventKind, KeyEvent
from idempotency.operators import Seen
from idempotency.story import outcome_in_words

if TYPE_CHECKING:
    from idempotency.admin.doubts import DoubtAdmin

logger = logging.getLogger("idempotency")

#: What each choice leads to, for the page that asks.
CONSEQUENCES: dict[str, str | Promise] = {
    Choice.SUCCEEDED: gettext_lazy(
        "The other side did it. The operation is finished here as if its call had answered so, "
        "with the record below: the effect counts as had, and every retry gets that answer."
    ),
    Choice.REFUSED: gettext_lazy(
        "The other side refused it, for good. The operation is finished here as refused, with the "
        "code below: there was no effect, and every retry gets that refusal."
    ),
    Choice.NEVER_HAPPENED: gettext_lazy(
        "The call had no effect there and never will. The intent is withdrawn, and the key is "
        "free: the same request may run again, with another downstream key. If the first call "
        "arrives after all, there are two."
    ),
}

_REASON: dict[str, Any] = {
    "label": gettext_lazy("Reason"),
    "max_length": 500,
    "help_text": gettext_lazy("Kept in the admin log and in the key's story; no client sees it."),
}


def reason_field() -> forms.CharField:
    """Why: typed, and kept."""
    return forms.CharField(
        widget=forms.Textarea(attrs={"rows": 2, "autocomplete": "off"}), **_REASON
    )


class AskAgainForm(forms.Form):
    """Why the other side is to be asked, and believed."""

    prefix = "again"
    required_css_class = "required"

    reason = reason_field()


class SettleForm(forms.Form):
    """What a person says happened, on what record, and why. Nothing has a default."""

    required_css_class = "required"

    choice = forms.ChoiceField(
        label=gettext_lazy("What happened"),
        choices=[(choice.value, choice.label) for choice in map(Choice, CONSEQUENCES)],
        widget=forms.RadioSelect,
    )
    record = forms.CharField(
        label=gettext_lazy("The other side's record"),
        required=False,
        max_length=255,
        help_text=gettext_lazy(
            "Its id of what it did, or the code that it refused with. Empty: as it answers when it "
            "is asked, right before anything is written."
        ),
        widget=forms.TextInput(attrs={"autocomplete": "off", "size": 40}),
    )
    reason = reason_field()
    #: The answer that the page has shown, once its box is ticked.
    against = forms.CharField(
        label=gettext_lazy("I know, and settle it so"),
        required=False,
        max_length=300,
        strip=False,
    )


def view(model_admin: DoubtAdmin, request: HttpRequest, key: Any) -> HttpResponse:
    """GET shows the operation; POST asks about it or settles it, as it was shown."""
    if request.method != "POST":
        return show(model_admin, request, key)
    step = request.POST.get("step", "")
    seen = read_tokens(request.POST.getlist("token")).get(key.pk)
    take, permission = _STEPS.get(step, (None, ""))
    if take is None or seen is None or not request.user.has_perm(f"idempotency.{permission}"):
        raise PermissionDenied
    try:
        return take(model_admin, request, key, seen)
    except (ImproperlyConfigured, OperationalError) as error:
        model_admin.message_user(request, refusal_of(error, key.pk), messages.ERROR)
    return HttpResponseRedirect(model_admin.url("change", key.pk))


def show(
    model_admin: DoubtAdmin,
    request: HttpRequest,
    key: Any,
    *,
    again: AskAgainForm | None = None,
    settle: SettleForm | None = None,
    warning: Contradicted | TooEarly | None = None,
) -> HttpResponse:
    """The page. ``warning``: why the operator has to say that he knows."""
    facts = inspection.facts_of(key, key.now)
    operation = operations.find(inspection.operation_of(key))
    user = request.user
    may = {name: user.has_perm(f"idempotency.{name}_idempotencykey") for name in _ACTIONS}
    may_see_context = user.has_perm("idempotency.view_response_body")
    may_know = may["ask"] or may["settle"] or may_see_context
    context = {
        "title": _("Decide"),
        "key": key,
        "token": token_of(key),
        "facts": facts,
        "badge": badge(facts),
        "retry_now": inspection.retry_now(facts),
        "operation": inspection.operation_of(key),
        "where": (operation and operation.service) or inspection.operation_of(key),
        "stake": stake_of(key),
        "since": moment(key.recovery_point_at, key.now),
        "next_look": moment(key.look_up_at, key.now),
        "downstream_key": story.downstream_key_of(key) if may_know else "",
        "kept_context": show_json(key.context) if key.context and may_see_context else None,
        "said": _last_answer(key) if may_know else None,
        "proposal": approvals.open_proposals(key._state.db, [key.pk]).first(),
        "may": may,
        "again": again or AskAgainForm(),
        "settle": settle or SettleForm(),
        "consequences": CONSEQUENCES,
        "warned": "" if warning is None else warning_of(warning),
        "shown": "" if warning is None else shown(warning.answer),
        "key_url": model_admin.url_of_key(key.pk),
    }
    return model_admin.page(request, "doubt/decide.html", context)


_ACTIONS = ("ask", "settle", "force_fail")


def _last_answer(key: Any) -> tuple[str, Any, str] | None:
    """What the other side said when somebody last asked about the key as it stands: in words,
    when, and who asked."""
    events = KeyEvent.objects.using(key._state.db).filter(key_id=key.pk, kind=EventKind.ASKED)
    event = events.order_by("-at", "-id").first()
    if event is None or event.data.get("owner") != str(key.owner):
        return None
    told = (str(event.data.get(name, "")) for name in ("answer", "record", "because"))
    return story.answer_in_words(*told), moment(event.at, key.now), event.actor


# The steps


def _ask(model_admin: DoubtAdmin, request: HttpRequest, key: Any, seen: Seen) -> HttpResponse:
    def log() -> None:
        model_admin.log_change(request, key, "Asked the other side")

    asked = doubts.ask(key.pk, seen=seen, person=person_of(request), also=log, using=key._state.db)
    if asked is None:
        return _changed(model_admin, request, key)
    model_admin.message_user(request, outcome_in_words(asked.answer), messages.INFO)
    return HttpResponseRedirect(model_admin.url("change", key.pk))


def _ask_again(model_admin: DoubtAdmin, request: HttpRequest, key: Any, seen: Seen) -> HttpResponse:
    form = AskAgainForm(request.POST)
    if not form.is_valid():
        return show(model_admin, request, key, again=form)
    reason = form.cleaned_data["reason"]

    def log() -> None:
        model_admin.log_change(request, key, f"Asked again, to be settled as answered: {reason}")

    def step() -> Asked | None:
        return doubts.ask_again(
            key.pk,
            seen=seen,
            person=person_of(request),
            reason=reason,
            also=log,
            using=key._state.db,
        )

    asked = _finishing(model_admin, request, key, step)
    if asked is _FAILED:
        return show(model_admin, request, key, again=form)
    if not isinstance(asked, Asked):
        return _changed(model_admin, request, key)
    return _after_asking(model_admin, request, key, asked)


def _after_asking(
    model_admin: DoubtAdmin, request: HttpRequest, key: Any, asked: Asked
) -> HttpResponse:
    followed = {
        "done": _("Settled as succeeded."),
        "refused": _("Settled as refused."),
        "not_sent": _("Settled as never sent: the key is free again."),
        "resumed": _("Left to the job, which makes the call again."),
        None: _("Nothing follows from that yet. It is asked again by the job."),
    }
    text = f"{outcome_in_words(asked.answer)} {followed[asked.ending]}"
    level = messages.SUCCESS if asked.ending else messages.WARNING
    model_admin.message_user(request, text, level)
    url = model_admin.url_of_key(key.pk) if asked.ending else model_admin.url("change", key.pk)
    return HttpResponseRedirect(url)


def _settle(model_admin: DoubtAdmin, request: HttpRequest, key: Any, seen: Seen) -> HttpResponse:
    form = SettleForm(request.POST)
    if not form.is_valid():
        return show(model_admin, request, key, settle=form)
    told = Told(
        Choice(form.cleaned_data["choice"]),
        form.cleaned_data["reason"],
        form.cleaned_data["record"].strip(),
        form.cleaned_data["against"],
    )
    verb = "Proposed to settle" if stake_of(key).two_people else "Settled"

    def log() -> None:
        record = f", record {told.record}" if told.record else ""
        model_admin.log_change(request, key, f"{verb} ({told.choice}{record}): {told.reason}")

    def step() -> Ending:
        return doubts.decide(
            key.pk,
            seen=seen,
            told=told,
            person=person_of(request),
            also=log,
            request=request,
            using=key._state.db,
        )

    try:
        ending = _finishing(model_admin, request, key, step)
    except (Contradicted, TooEarly) as error:
        form.add_error("against", _("Look again at what you decide, and say that you know."))
        return show(model_admin, request, key, settle=form, warning=error)
    except CannotSettle as error:
        form.add_error("record", _missing(error))
        return show(model_admin, request, key, settle=form)
    except AlreadyProposed:
        form.add_error(None, _("There is a proposal already: approve or reject that first."))
        return show(model_admin, request, key, settle=form)
    if ending is _FAILED:
        return show(model_admin, request, key, settle=form)
    return _after_deciding(model_admin, request, key, ending)


def _after_deciding(
    model_admin: DoubtAdmin, request: HttpRequest, key: Any, ending: Any
) -> HttpResponse:
    if ending is Ending.DONE:
        model_admin.message_user(request, _("Settled."), messages.SUCCESS)
        return HttpResponseRedirect(model_admin.url_of_key(key.pk))
    if ending is Ending.PROPOSED:
        text = _("Proposed. Nothing is settled until another person approves.")
        model_admin.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(model_admin.url("change", key.pk))
    return _changed(model_admin, request, key)


Step = Callable[["DoubtAdmin", HttpRequest, Any, Seen], HttpResponse]

#: What a form asks for → how it is done, and the permission it takes.
_STEPS: dict[str, tuple[Step, str]] = {
    "ask": (_ask, "ask_idempotencykey"),
    "ask_again": (_ask_again, "ask_idempotencykey"),
    "settle": (_settle, "settle_idempotencykey"),
}

_FAILED = object()


def _finishing(
    model_admin: DoubtAdmin, request: HttpRequest, key: Any, step: Callable[[], Any]
) -> Any:
    """Take a step that may run ``finalize`` or ``withdraw``. ``_FAILED``: that raised, the
    operation is as open as before, and the operator was told."""
    expected = (Contradicted, TooEarly, CannotSettle, AlreadyProposed)
    try:
        return step()
    except (*expected, ImproperlyConfigured, OperationalError):
        raise
    except Exception as error:
        model_admin.message_user(request, refusal_of(error, key.pk), messages.ERROR)
        return _FAILED


def refusal_of(error: Exception, key_id: int) -> str:
    """Why nothing was written, in words; what nobody expected is logged."""
    match error:
        case Contradicted() | TooEarly():
            return warning_of(error)
        case OwnProposal():
            return _("Nobody approves his own proposal. Another person has to.")
        case ProposalOver():
            return _("The proposal is over: it was decided, was overtaken, or has expired.")
        case Unreadable():
            return _("What is kept of it cannot be read here: %s") % error
        case ImproperlyConfigured():
            return _("This process does not know the operation, so it cannot finish it.")
        case OperationalError():
            return _("The database did not answer in time. Nothing was written; try again.")
    logger.error("could not settle the operation of key %s", key_id, exc_info=error)
    text = _("It could not be finished: %s. It is as open as before; the log has the details.")
    return text % type(error).__name__


def warning_of(error: Contradicted | TooEarly) -> str:
    """Why somebody has to say that he knows what he is doing."""
    if isinstance(error, Contradicted):
        text = _("Nothing was written: the other side says otherwise.")
        return f"{text} {outcome_in_words(error.answer)}"
    text = _("Nothing was written: for another %s a call may still be on its way.")
    return text % span(error.left)


def _missing(error: CannotSettle) -> str:
    words = outcome_in_words(error.answer)
    if not error.by_hand:
        return _("Only the other side's own answer can finish it. %s") % words
    return _("Say what the other side calls it. %s") % words


def _changed(model_admin: DoubtAdmin, request: HttpRequest, key: Any) -> HttpResponse:
    present = model_admin.find(key.pk)
    if present is None:
        text = _("%s is not there any more.") % key
    else:
        labels = {state.value: label for state, label in STATE_LABELS.items()}
        text = _(
            "%(key)s changed since you looked, or somebody is at it. It is now %(state)s, attempt "
            "%(attempt)d. Nothing was written; look again before you decide."
        ) % {"key": key, "state": labels[present.state], "attempt": present.attempt}
    model_admin.message_user(request, text, messages.ERROR)
    return HttpResponseRedirect(model_admin.url("change", key.pk))
