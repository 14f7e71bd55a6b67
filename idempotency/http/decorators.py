"""Protect a plain Django view.

::

    @idempotent(required=True)
    def create_order(request):
        order = Order.objects.create(...)
        return JsonResponse({"id": order.pk}, status=201)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import (
    BadRequest,
    ImproperlyConfigured,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from idempotency.admission import Admission
from idempotency.core.errors import DeadlinePassed, IdempotencyError, StoreUnavailable
from idempotency.core.policies import Policy, Verdict
from idempotency.engine import Handled, KeyedRequest
from idempotency.execution import Execution
from idempotency.http import deadlines, protection, requests
from idempotency.http.problems import problem_response
from idempotency.operations import Operation, Reply
from idempotency.stores import sessions

View = Callable[..., Any]

#: What Django turns into a 4xx by itself.
CLIENT_ERRORS = (Http404, PermissionDenied, SuspiciousOperation, BadRequest)


def idempotent(
    view: View | None = None,
    *,
    tenant: Callable[[HttpRequest], str] | None = None,
    **choices: Any,
) -> Any:
    """Run the view once for a key. ``choices`` are the policy's names: required, methods, ttl,
    lease, …

    ``tenant`` names the account of a request; by default the signed-in user. The view runs in one
    transaction with the record of its answer, or returns an Operation. Async views are refused:
    Django's transactions are sync.
    """
    unknown = set(choices) - set(requests.POLICY_NAMES)
    if unknown:
        raise ImproperlyConfigured(f"@idempotent has no option {', '.join(sorted(unknown))}.")

    def decorate(view: View) -> View:
        if asyncio.iscoroutinefunction(view):
            raise ImproperlyConfigured(
                "@idempotent protects sync views; wrap an async one in sync code."
            )

        @wraps(view)
        def protected(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            request.idempotency = None  # type: ignore[attr-defined]
            deadline = deadlines.attach(request)
            try:
                with deadlines.governing(deadline):
                    deadline.require()
                    policy = requests.build_policy(choices)
                    if request.method not in policy.methods:
                        return view(request, *args, **kwargs)
                    return _answer(request, tenant, policy, _ViewWork(view, request, args, kwargs))
            except deadlines.DeadlineExceeded:
                # Before the work, or ``request.deadline.require()`` in it: then it was rolled back.
                return problem_response(DeadlinePassed(), request)

        protected.idempotency_policy = choices  # type: ignore[attr-defined]
        # ATOMIC_REQUESTS would put the claim inside the work's transaction.
        return sessions.non_atomic(protected)

    return decorate if view is None else decorate(view)


def _answer(
    request: HttpRequest,
    tenant: Callable[[HttpRequest], str] | None,
    policy: Policy,
    work: _ViewWork,
) -> HttpResponseBase:
    try:
        keyed = _keyed(request, tenant, policy)
    except IdempotencyError as error:
        return problem_response(error, request)
    except RequestDataTooBig:
        return HttpResponse("The request body is too large.\n", status=413)
    if keyed is None:
        return protection.run_unkeyed(request, policy, work)
    return protection.run_keyed(request, keyed, work)


def _keyed(
    request: HttpRequest, tenant: Callable[[HttpRequest], str] | None, policy: Policy
) -> KeyedRequest | None:
    requests.demand_length(request)
    form, data = requests.parse_form(request)
    body = b"" if form is not None else request.body
    requests.demand_whole(request)
    if form is None and policy.body_field is not None:
        # A view that parses JSON does so itself, so its body is looked into only for a key.
        data = requests.json_object(request)
    key = requests.read_key(request, data, policy)
    if key is None:
        return None
    return KeyedRequest(
        scope=protection.scope_of(
            requests.route_of(request), _account(request, tenant), key, policy
        ),
        policy=policy,
        fingerprint=requests.fingerprinter(request, body, form, policy),
        admission=Admission(request.deadline),  # type: ignore[attr-defined]
    )


def _account(request: HttpRequest, tenant: Callable[[HttpRequest], str] | None) -> str:
    try:
        if tenant is not None:
            return tenant(request)
        return protection.default_tenant(getattr(request, "user", None))
    except (OperationalError, InterfaceError) as error:
        # Who it is needs the database first. Fail closed, as the claim would.
        raise StoreUnavailable from error


class _ViewWork:
    def __init__(
        self, view: View, request: HttpRequest, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._view, self._request, self._args, self._kwargs = view, request, args, kwargs

    def call(self) -> Any:
        return self._view(self._request, *self._args, **self._kwargs)

    def handle(self, execution: Execution | None) -> Handled[HttpResponseBase] | Operation:
        self._request.idempotency = execution  # type: ignore[attr-defined]
        response = self.call()
        return response if isinstance(response, Operation) else protection.handled(response)

    def prepare(self, operation: Operation) -> dict[str, Any] | Reply:
        return operation.prepare(self._request)

    def verdict_of(self, error: Exception) -> Verdict:
        return Verdict.RELEASE if isinstance(error, CLIENT_ERRORS) else Verdict.FAIL
