"""The queue of what needs a person's decision, the oldest first, and the page that decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.options import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from idempotency import approvals, doubts, inspection
from idempotency.admin import deciding
from idempotency.admin.cells import age, badge, moment
from idempotency.admin.seen import record_number
from idempotency.approvals import Stake, stake_of
from idempotency.doubts import Place
from idempotency.models import Doubt, IdempotencyKey, MessageState, OutboxMessage, Proposal
from idempotency.stores import clock, sessions

if TYPE_CHECKING:
    ModelAdminOf = ModelAdmin[Doubt]  # generic for the type checker only
else:
    ModelAdminOf = ModelAdmin

#: Keys on a page of the queue.
PER_PAGE = 25
#: Proposals shown above the queue, and dead messages counted below it.
MOST_PROPOSALS, MOST_DEAD = 20, 100


@dataclass(frozen=True, slots=True)
class Waiting:
    """A key in the queue, as an operator gets to see it."""

    key: Any
    proposal: Proposal | None

    @property
    def badge(self) -> SafeString:
        return badge(inspection.facts_of(self.key, self.key.now))

    @property
    def age(self) -> SafeString:
        return age(self.key.recovery_point_at, self.key.now)

    @property
    def stake(self) -> Stake:
        return stake_of(self.key)

    @property
    def operation(self) -> str:
        return inspection.operation_of(self.key)

    @property
    def next_look(self) -> SafeString | None:
        """When the job asks the other side again; it does so on its own."""
        return moment(self.key.look_up_at, self.key.now)


@admin.register(Doubt)
class DoubtAdmin(ModelAdminOf):
    """Who may see keys may see the queue; each action on its pages has a permission of its own."""

    class Media:
        css = {"all": ["idempotency/admin.css"]}

    # Permissions

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("idempotency.view_idempotencykey")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    # Pages

    def get_urls(self) -> list[URLPattern]:
        kept = {f"{self.opts.app_label}_{self.opts.model_name}_{page}" for page in _PAGES}
        return [url for url in super().get_urls() if url.name in kept]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        using = router.db_for_write(IdempotencyKey)
        found = doubts.queue(using, after=_place_in(request), limit=PER_PAGE + 1)
        shown = found[:PER_PAGE]
        context = {
            "title": _("In doubt queue"),
            "waiting": _waiting(using, shown),
            "begun": "after" in request.GET,
            "next": _link_after(shown[-1]) if len(found) > PER_PAGE else None,
            "proposals": list(approvals.open_proposals(using)[:MOST_PROPOSALS]),
            "dead": _dead(),
            "most_dead": MOST_DEAD,
            **(extra_context or {}),
        }
        return self.page(request, "doubt/queue.html", context)

    @sessions.non_atomic  # under ATOMIC_REQUESTS: settling commits in two steps
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The page that decides about one key; a POST takes one of its steps."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        key = self.find(object_id)
        if key is None or not key.recovery_point or not inspection.facts_of(key, key.now).is_open:
            # Settled meanwhile, or never an operation: its own page says how it stands.
            return HttpResponseRedirect(self.url_of_key(object_id))
        return deciding.view(self, request, key)

    def find(self, key_id: Any) -> Any:
        """The key with the database's ``now`` beside it; None when there is none."""
        keys = IdempotencyKey.objects.using(router.db_for_write(IdempotencyKey))
        number = record_number(str(key_id))
        return None if number is None else keys.filter(pk=number).annotate(now=clock.now()).first()

    def url(self, page: str, *arguments: Any) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=arguments, current_app=self.admin_site.name)

    def url_of_key(self, key_id: Any) -> str:
        name = "admin:idempotency_idempotencykey_change"
        return reverse(name, args=[key_id], current_app=self.admin_site.name)

    def page(
        self, request: HttpRequest, template: str, context: dict[str, Any]
    ) -> TemplateResponse:
        request.current_app = self.admin_site.name
        common = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
        }
        return TemplateResponse(request, f"admin/idempotency/{template}", common | context)


_PAGES = ("changelist", "change")


def _waiting(using: str, keys: Iterable[Any]) -> list[Waiting]:
    keys = list(keys)
    found = approvals.open_proposals(using, [key.pk for key in keys])
    proposals = {proposal.key_id: proposal for proposal in found}
    return [Waiting(key, proposals.get(key.pk)) for key in keys]


def _dead() -> int:
    """Dead messages of the outbox, counted no further than a bound, by their index."""
    dead = OutboxMessage.objects.using(router.db_for_write(OutboxMessage))
    return dead.filter(state=MessageState.DEAD).order_by()[: MOST_DEAD + 1].count()


def _place_in(request: HttpRequest) -> Place | None:
    """Where the page begins; at the oldest where the query says nothing that can be read."""
    at, _comma, number = request.GET.get("after", "").partition(",")
    try:
        place = datetime.fromisoformat(at), int(number)
    except ValueError:
        return None
    return place if place[0].tzinfo is not None and 0 <= place[1] < 2**63 else None


def _link_after(key: Any) -> str:
    place = f"{key.recovery_point_at.isoformat()},{key.pk}"
    return f"?{urlencode({'after': place})}"
