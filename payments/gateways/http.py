"""The adapter to a gateway over HTTP: one key, a few attempts, an honest outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Self

from django.core.exceptions import ImproperlyConfigured

from idempotency.client.messages import Request
from idempotency.http.deadlines import current_deadline
from idempotency.operations import Outcome
from idempotency.propagation import outgoing_headers
from payments.gateways.base import Movement, Task
from payments.gateways.calling import OPTIONS, CallingGateway, options_of, unsent
from payments.gateways.enquiries import Enquiries
from payments.gateways.readings import collecting


class HttpGateway(CallingGateway):
    """A gateway that speaks the language of ``payments.gateways.simulator``."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._enquiries = Enquiries(self.url, self._enquirer(), self.room)

    @classmethod
    def from_settings(cls, **given: Any) -> Self:
        """The gateway of ``settings.PAYMENTS_GATEWAY``.

        ``URL`` (required), ``TIMEOUT`` (5.0 seconds an attempt), ``ATTEMPTS`` (3), ``DEDUPES``
        (True), ``DEDUPES_FOR`` (None: for ever; seconds), ``CALLS`` (3 at once in a process),
        ``REDIS_URL`` (None), ``HEDGING`` (None, or a ``HedgePolicy``). A missing URL or an unknown
        name raises ``ImproperlyConfigured``.
        """
        url = given.pop("URL", None)
        if not url:
            raise ImproperlyConfigured("PAYMENTS_GATEWAY needs a URL")
        return cls(url, **options_of(given, OPTIONS))

    def charge(
        self, *, amount: int, currency: str, source: str, reference: str, key: str
    ) -> Outcome:
        order = {"amount": amount, "currency": currency, "source": source, "reference": reference}
        return self._call("charge", "/charges", order, key)

    def refund(self, *, charge: str, amount: int, reference: str, key: str) -> Outcome:
        order = {"charge": charge, "amount": amount, "reference": reference}
        return self._call("refund", "/refunds", order, key)

    def find_charge(self, *, reference: str, key: str) -> Outcome:
        return self._enquiries.find("/charges", reference=reference, key=key)

    def find_refund(self, *, charge: str, reference: str, key: str) -> Outcome:
        return self._enquiries.find("/refunds", reference=reference, key=key)

    def movements(self, *, since: datetime, until: datetime) -> Iterator[Movement]:
        return self._enquiries.movements(since, until)

    def _call(self, task: Task, path: str, order: Mapping[str, Any], key: str) -> Outcome:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        headers |= outgoing_headers()
        request = Request("POST", self.url + path, headers, json.dumps(order).encode())
        # None in a job, which takes the time that recovery needs.
        deadline = current_deadline()

        def call() -> Outcome:
            with collecting() as findings:
                result = self._caller.perform(request, operation=task, key=key, deadline=deadline)
            return findings.outcome() or unsent(result)

        return self._in_room(order["reference"], call)
