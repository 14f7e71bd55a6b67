"""``RetryBudgetThrottle``: what keeps retries from being most of a service's work.

::

    class ChargesView(IdempotencyMixin, APIView):
        throttle_classes = [UserRateThrottle, RetryBudgetThrottle]
"""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from idempotency.http.attempts import is_marked_retry
from idempotency.rest_framework.mixin import IdempotencyMixin
from idempotency.retry_budget import ServiceBudget, get_budget


class RetryBudgetThrottle(BaseThrottle):
    """Bounds retries to a share of first attempts; see ``retry_budget.py`` for the rule, and
    ``admission.py`` for what counts as a retry.

    Above the budget the answer is our own 503 ``retry_budget_exhausted`` with Retry-After, not
    DRF's 429: the caller did nothing wrong, and the same key may come again. The key is untouched
    then, and a stored answer is served all the same. Counts the requests that take a key, whether
    or not they bring one; all others pass.

    Put it last: a retry that another throttle turns away afterwards has spent all the same.
    """

    #: Throttles that bear one name share one budget. Give a subclass a name of its own to keep its
    #: views apart. The floor is granted to each.
    budget: ClassVar[str] = "retries"

    def get_budget(self) -> ServiceBudget:
        """The budget that a request falls under."""
        return get_budget(self.budget)

    def allow_request(self, request: Request, view: Any) -> bool:
        """Always True; raises BudgetExhausted for the mixin to answer."""
        if isinstance(view, IdempotencyMixin):
            view.enter_budget(self.get_budget, marked=is_marked_retry(request._request))
        return True
