"""What the mixin and the decorator share: run a request under its key, and answer in HTTP."""

from __future__ import annotations

from typing import Any

from django.db import connections, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from idempotency import operations, signals
from idempotency.admission import Admission
from idempotency.core.errors import IdempotencyError
from idempotency.core.keys import Scope
from idempotency.core.policies import Policy, Verdict
from idempotency.engine import Answer, Engine, Handled, KeyedRequest, Work
from idempotency.http.problems import problem_response
from idempotency.http.recording import record, respond
from idempotency.stores import get_store
from idempotency.stores.sessions import keys_database
from idempotency.stores.transactions import demand_unmarked

#: Characters the tenant column holds.
TENANT_LENGTH = 255


def scope_of(route: str, tenant: str, key: str, policy: Policy) -> Scope:
    """The scope of a key under a policy."""
    if len(tenant) > TENANT_LENGTH:
        raise ValueError("An idempotency tenant has at most 255 characters; use the account's id.")
    return Scope(route, tenant, key, per_route=policy.scope == "route")


def default_tenant(user: Any) -> str:
    """The account of a signed-in user. Anonymous callers share one account: see the README before
    relying on it."""
    if user is None or not getattr(user, "is_authenticated", False):
        return "anonymous"
    return f"user:{user.pk}"


def turn_away(scope: Scope, admission: Admission) -> None:
    """Refuse a retry above the budget as soon as its key is known, unless its answer is stored.
    Raises BudgetExhausted."""
    try:
        admission.look(get_store(), scope)
    except IdempotencyError as error:
        signals.send(
            signals.key_rejected,
            Engine,
            digest=scope.digest,
            route=scope.route,
            tenant=scope.tenant,
            code=error.code,
        )
        raise


def run_keyed(
    request: HttpRequest, keyed: KeyedRequest, work: Work[HttpResponseBase]
) -> HttpResponseBase:
    """Run, replay or refuse a request under its key."""
    try:
        outcome = Engine().run(keyed, work)
    except IdempotencyError as error:
        return problem_response(error, request)
    if isinstance(outcome, Answer):
        return respond(outcome.recorded, replayed=outcome.replayed)
    return outcome.response


def run_unkeyed(
    request: HttpRequest, policy: Policy, work: Work[HttpResponseBase]
) -> HttpResponseBase:
    """Run a request that brought no key where none is required: in one transaction that the same
    endings commit or roll back, but with no record of it."""
    using = keys_database()
    with transaction.atomic(using=using):
        handled = work.handle(None)
        if isinstance(handled, Handled):
            if handled.recorded.status < 400:
                demand_unmarked(connections[using])
            if policy.verdict(handled.recorded.status) is not Verdict.STORE:
                transaction.set_rollback(True, using=using)
            return handled.response
    try:
        recorded = operations.run_without_key(handled, work.prepare, policy, using)
    except IdempotencyError as error:
        return problem_response(error, request)
    return respond(recorded, replayed=False)


def handled(response: HttpResponseBase) -> Handled[HttpResponseBase]:
    """A handler's response, rendered inside the transaction so that rendering can still fail it."""
    render = getattr(response, "render", None)
    if callable(render):
        response = render()
    if not isinstance(response, HttpResponseBase):
        raise TypeError(
            f"The view returned {type(response).__name__}, not a response or an Operation."
        )
    return Handled(response, record(response))
