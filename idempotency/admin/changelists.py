"""Lists over tables that are too large to count: pages by keyset, and a bound on every query."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters, ModelAdmin, ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db import DataError, router
from django.db.models import Field, Model, Q, QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from idempotency.admin.times import span
from idempotency.stores.bounds import QueryTooSlow, is_cheap, statement_timeout
from idempotency.stores.walks import walk

if TYPE_CHECKING:
    ModelAdminOf = ModelAdmin[Any]  # generic for the type checker only
else:
    ModelAdminOf = ModelAdmin

OLDER, NEWER = "older", "newer"
#: How long a list looks through a table to which no index leads.
WALKING = timedelta(seconds=0.5)


class KeysetChangeList(ChangeList):
    """Newer and older instead of page numbers: no COUNT, and page 10,000 costs what page 1 does.

    The order is the model admin's ``keyset``, descending; no parameter changes it.
    """

    model_admin: LargeTableAdmin

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str | Combinable]:
        return [f"-{name}" for name in self.model_admin.keyset]

    def get_filters_params(self, params: dict[str, Any] | None = None) -> dict[str, Any]:
        given = super().get_filters_params(params)
        return {name: value for name, value in given.items() if name not in (OLDER, NEWER)}

    def get_query_string(
        self, new_params: dict[str, Any] | None = None, remove: Iterable[str] | None = None
    ) -> str:
        """A link that changes a filter goes to the newest page, so the place is left out."""
        return super().get_query_string(new_params, [*(remove or []), OLDER, NEWER])

    def get_results(self, request: HttpRequest) -> None:
        self.has_newer = self.has_older = False
        self._older_place, self._walked = "", False
        try:
            rows = self._page_in_time(request)
        except DataError as error:  # a NUL in the query string
            raise IncorrectLookupParameters from error
        self.result_list = rows
        # What Django's templates read. There is no total: with both alike they do not show one.
        self.result_count = self.full_result_count = len(rows)
        self.show_full_result_count = False
        self.show_admin_actions = bool(rows)
        self.can_show_all = self.multi_page = False
        self.paginator = Paginator(rows, self.list_per_page)

    def _page_in_time(self, request: HttpRequest) -> list[Model]:
        if self._needs_a_walk():
            return self._walk(request)
        limit = self.model_admin.statement_timeout
        try:
            with statement_timeout(self.queryset.db, limit):
                return self._page()
        except QueryTooSlow:
            text = _("The database gave the query up after %s. Narrow it, or search as described.")
            messages.warning(request, text % span(limit))
            return []

    def _needs_a_walk(self) -> bool:
        """Whether a filter leaves so little that a page of it may be spread over the whole
        table."""
        filtered = bool(self.queryset.query.where)
        by_number = len(self.model_admin.keyset) == 1
        return filtered and by_number and not is_cheap(self._older_rows()[: self.list_per_page])

    def _walk(self, request: HttpRequest) -> list[Model]:
        """As much of the page as there is time for. "Older" goes on where this one ends, and
        "Newer" goes to the newest page."""
        size, before = self.list_per_page, None
        if OLDER in self.params:
            self.has_newer = self._walked = True
            [(_name, before)] = self._parse(self.params[OLDER])
        walked = walk(self.queryset, WALKING.total_seconds(), before=before, most=size + 1)
        if len(walked.found) > size:
            self.has_older = True
        elif walked.since is not None:
            self.has_older, self._older_place = True, str(walked.since)
            text = _(
                "No index leads to these, and the table is too large to be read at once: the "
                "records from number %d on were looked at. “Older” goes on from there."
            )
            messages.warning(request, text % walked.since)
        return walked.found[:size]

    def _older_rows(self) -> QuerySet[Any]:
        """From the place in the list on, the newest first."""
        rows: QuerySet[Any] = self.queryset
        if OLDER in self.params:
            rows = rows.filter(self._beyond(self.params[OLDER], "lt"))
        return rows

    def _page(self) -> list[Model]:
        size = self.list_per_page
        if NEWER in self.params:
            ascending = self.queryset.filter(self._beyond(self.params[NEWER], "gt")).reverse()
            rows = list(ascending[: size + 1])
            if len(rows) > size:
                self.has_newer = self.has_older = True
                return rows[:size][::-1]
            # Less than a page is newer: the newest page is the one to show, and it is a full one.
        self.has_newer = OLDER in self.params
        rows = list(self._older_rows()[: size + 1])
        self.has_older = len(rows) > size
        return rows[:size]

    def _beyond(self, cursor: str, side: str) -> Q:
        """The rows on one side of a place in the order, compared as SQL compares rows."""
        places = self._parse(cursor)
        name, value = places[-1]
        beyond = Q(**{f"{name}__{side}": value})
        for name, value in reversed(places[:-1]):
            # The first condition is implied; it lets PostgreSQL leave partitions out.
            beyond = Q(**{f"{name}__{side}e": value}) & (
                Q(**{f"{name}__{side}": value}) | Q(**{name: value}) & beyond
            )
        return beyond

    def _parse(self, cursor: str) -> list[tuple[str, Any]]:
        try:
            texts = list(zip(self.model_admin.keyset, cursor.split(","), strict=True))
            return [(name, self._field(name).to_python(text)) for name, text in texts]
        except (ValidationError, ValueError) as error:
            raise IncorrectLookupParameters from error

    def _field(self, name: str) -> Field[Any, Any]:
        return cast("Field[Any, Any]", self.lookup_opts.get_field(name))

    @property
    def newest_link(self) -> str:
        return self.get_query_string()

    @property
    def newer_link(self) -> str:
        if self._walked or not self.result_list:
            return self.newest_link
        return self._link(NEWER, self.result_list[0])

    @property
    def older_link(self) -> str:
        if self._older_place:
            return self.get_query_string({OLDER: self._older_place})
        return self._link(OLDER, self.result_list[-1])

    def _link(self, name: str, row: Model) -> str:
        place = ",".join(str(getattr(row, field)) for field in self.model_admin.keyset)
        return self.get_query_string({name: place})


class LargeTableAdmin(ModelAdminOf):
    """Read-only, whatever the user's rights, and bounded: for the tables that a store writes."""

    #: The order, newest first: fields that are unique together and that one index covers.
    keyset: ClassVar[tuple[str, ...]] = ("id",)
    #: After which the database gives a list up.
    statement_timeout = timedelta(seconds=3)

    list_per_page = 50
    show_full_result_count = False
    show_facets = ShowFacets.NEVER  # facets count
    sortable_by = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # Where the stores write: a replica that lags would show an operator what is no longer so.
        return super().get_queryset(request).using(router.db_for_write(self.model))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return KeysetChangeList

    def page_of(self, request: HttpRequest, record: Any) -> dict[str, Any]:
        """What the page of one record shows, over what Django's would."""
        return {}

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        context.update(self.page_of(request, obj))
        return super().render_change_form(request, context, add, change, form_url, obj)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
