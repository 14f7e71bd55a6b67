"""``IdempotencyMixin``: put it before APIView or a viewset, and its POST and PATCH run once for a
key."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http.response import HttpResponseBase
from rest_framework.exceptions import APIException, ParseError
from rest_framework.request import Request

from idempotency.admission import Admission
from idempotency.conf import Settings, settings
from idempotency.core.errors import CallNotSent, DeadlinePassed, IdempotencyError, StoreUnavailable
from idempotency.core.keys import Scope
from idempotency.core.policies import Policy, Verdict
from idempotency.engine import Handled, KeyedRequest
from idempotency.execution import Execution
from idempotency.http import deadlines, protection, requests
from idempotency.http.decorators import CLIENT_ERRORS
from idempotency.http.problems import problem_response
from idempotency.operations import Operation, Reply
from idempotency.retry_budget import ServiceBudget
from idempotency.stores import sessions

try:
    from idempotency.rest_framework.openapi import IdempotencyAutoSchema as _Schema
except ImportError:  # the ``openapi`` extra is not installed
    from rest_framework.schemas.inspectors import DefaultSchema as _Schema  # type: ignore[assignment]

Handler = Callable[..., Any]


class BodyTooLarge(APIException):
    """Django refused to read the body (DATA_UPLOAD_MAX_MEMORY_SIZE); no claim was made."""

    status_code = 413
    default_detail = "The request body is too large."
    default_code = "body_too_large"


class IdempotencyMixin:
    """Runs the handlers of a DRF view once for a key and replays their answers.

    Checks keep DRF's order: authentication, permission, throttle and parsing come before the key,
    so that none of them is answered from a record. Set ``idempotency_<name>`` to choose a policy
    for the view; the names and their defaults are in ``IDEMPOTENCY``. A handler may return an
    ``Operation`` instead of a response.

    ``request.deadline`` says how long the caller waits (``X-Request-Deadline-Ms``, at most
    ``MAX_DEADLINE``); with nothing left a request is answered 504 before anything else.

    The view is non-atomic under ATOMIC_REQUESTS: the claim has to commit before the work. The work
    has a transaction of its own.
    """

    schema = _Schema()

    #: Handlers that carry a key may be narrowed by name in a viewset; None: every one of the
    #: policy's methods.
    idempotency_actions: ClassVar[frozenset[str] | None] = None

    @classmethod
    def as_view(cls, *args: Any, **kwargs: Any) -> Any:
        chosen = sorted(name for name in kwargs if name.startswith("idempotency_"))
        if chosen:
            # Also what @action(...) passes on. The instance would keep it and nobody read it.
            raise ImproperlyConfigured(
                f"{cls.__name__}: {', '.join(chosen)} must be set on the class, since a policy "
                "belongs to all of a view. Make a subclass, or name actions in idempotency_actions."
            )
        view = super().as_view(*args, **kwargs)  # type: ignore[misc]
        return sessions.non_atomic(view)

    @classmethod
    def get_idempotency_policy(cls) -> Policy:
        """The view's policy: its ``idempotency_*`` attributes over the settings."""
        return _policy(cls, settings())  # type: ignore[arg-type]

    def get_idempotency_key(self, policy: Policy) -> str | None:
        """The request's key; None when it has none and needs none. Raises KeyMissing or
        KeyInvalid."""
        return requests.read_key(self._http, self.request.data, policy)

    def get_idempotency_header_key(self, policy: Policy) -> str | None:
        """The key, as far as it is known before the body is parsed; None otherwise.

        Only read to find the stored answer of a retry above the retry budget. Override it together
        with ``get_idempotency_key()``.
        """
        return requests.header_key(self._http, policy)

    def get_idempotency_tenant(self) -> str:
        """The account the key belongs to. Override it where an account has several users or
        credentials."""
        return protection.default_tenant(self.request.user)

    def get_idempotency_scope(self, key: str, policy: Policy) -> Scope:
        """What the key is unique within."""
        route = requests.route_of(self._http)
        return protection.scope_of(route, self.get_idempotency_tenant(), key, policy)

    def get_idempotency_obstacle(self) -> CallNotSent | None:
        """What is known to be in the way of the work, without asking anybody: a new error each
        time. None: nothing.

        Override it where the work needs something scarce, such as a place in a bulkhead. A new key,
        which would only be claimed and given back, is then refused with that error for one read,
        before the handler looks at the body; for any other key all is as ever. The work still has
        to take what it needs.
        """
        return None

    request: Request
    _admission: Admission

    @property
    def _http(self) -> Any:
        """Django's request. DRF's forwards every attribute to it, at a price."""
        return self.request._request

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        request.idempotency = None  # type: ignore[attr-defined]
        self._admission = Admission(deadlines.attach(self._http), self.get_idempotency_obstacle)
        self._admission.demand_time()
        method = self._http.method
        policy = self.get_idempotency_policy()
        takes_key = self._takes_key(method, policy)
        try:
            super().initial(request, *args, **kwargs)  # type: ignore[misc]
        except (OperationalError, InterfaceError) as error:
            # Authentication needs the database first. Fail closed, as the claim would.
            if takes_key:
                raise StoreUnavailable from error
            raise
        handler = getattr(self, method.lower(), None)
        if handler is None or not takes_key:
            return
        # DRF looks the handler up on the instance next; the instance serves this one request.
        setattr(self, method.lower(), functools.partial(self._answer, handler, policy))

    def enter_budget(self, get_budget: Callable[[], ServiceBudget], *, marked: bool) -> None:
        """Put the request under a retry budget, for ``RetryBudgetThrottle``. Raises
        BudgetExhausted.

        A retry above it passes when its answer is stored. Where its key is not in the header, that
        is seen once the body is parsed.
        """
        policy = self.get_idempotency_policy()
        if not self._takes_key(self._http.method, policy):
            return
        if self._admission.enter(get_budget(), marked=marked):
            return
        key = self.get_idempotency_header_key(policy)
        if key is not None:
            protection.turn_away(self.get_idempotency_scope(key, policy), self._admission)

    @classmethod
    def takes_idempotency_key(cls, method: str, action: str, policy: Policy) -> bool:
        """Whether a handler reads a key: by its action where the view lists some, or by method."""
        if cls.idempotency_actions is not None:
            return action in cls.idempotency_actions and method not in requests.SAFE_METHODS
        return method in policy.methods

    def _takes_key(self, method: str, policy: Policy) -> bool:
        action = getattr(self, "action", None) or method.lower()
        return self.takes_idempotency_key(method, action, policy)

    def handle_exception(self, exc: Exception) -> Any:
        """Our own errors are answered here, whatever EXCEPTION_HANDLER does with the others."""
        if isinstance(exc, deadlines.DeadlineExceeded):
            # ``request.deadline.require()`` in a handler, whose work was rolled back.
            exc = DeadlinePassed()
        if isinstance(exc, IdempotencyError):
            return problem_response(exc, self._http)
        return super().handle_exception(exc)  # type: ignore[misc]

    def _answer(
        self, handler: Handler, policy: Policy, request: Request, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        work = _HandlerWork(self, handler, request, args, kwargs)
        try:
            keyed = self._keyed(request, policy)
            if keyed is None:
                self._admission.demand_time()
                self._admission.admit(attempt=1)
        except IdempotencyError as error:
            return problem_response(error, self._http)
        with deadlines.governing(self._http.deadline):
            if keyed is None:
                return protection.run_unkeyed(self._http, policy, work)
            return protection.run_keyed(self._http, keyed, work)

    def _keyed(self, request: Request, policy: Policy) -> KeyedRequest | None:
        http = self._http
        requests.demand_length(http)
        parsed = requests.is_form(http)
        # Read the bytes before DRF parses them away; a form's may be gone already, and its fields
        # are as good.
        body = b"" if parsed else _body(http)
        if parsed:
            requests.demand_text(http)
        else:
            requests.demand_whole(http)
        # Parsing comes before the key: what cannot be parsed is DRF's 400 or 415.
        try:
            request.data  # noqa: B018
        except RecursionError:
            # DRF's JSON parser on a body nested 100,000 deep.
            raise ParseError("The body is nested too deeply.") from None
        except RequestDataTooBig as error:
            raise BodyTooLarge from error
        if parsed:
            requests.demand_whole(http)
        key = self.get_idempotency_key(policy)
        if key is None:
            return None
        form = requests.form_facts(request.POST, request.FILES) if parsed else None
        return KeyedRequest(
            scope=self.get_idempotency_scope(key, policy),
            policy=policy,
            fingerprint=requests.fingerprinter(http, body, form, policy),
            admission=self._admission,
        )


@functools.lru_cache(maxsize=1024)
def _policy(view: type[IdempotencyMixin], base: Settings) -> Policy:
    """Built once for a view and a state of the settings; ``base`` is in the key of the cache."""
    return requests.build_policy(requests.known_choices(view))


def _body(http: Any) -> bytes:
    try:
        body: bytes = http.body
    except RequestDataTooBig as error:
        raise BodyTooLarge from error
    return body


class _HandlerWork:
    """A DRF handler as the engine sees it."""

    def __init__(
        self,
        view: Any,
        handler: Handler,
        request: Request,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._view, self._handler = view, handler
        self._request, self._args, self._kwargs = request, args, kwargs

    def call(self) -> Any:
        return self._handler(self._request, *self._args, **self._kwargs)

    def handle(self, execution: Execution | None) -> Handled[HttpResponseBase] | Operation:
        self._request.idempotency = execution  # type: ignore[attr-defined]
        response = self.call()
        if isinstance(response, Operation):
            return response
        # DRF gives a response its renderer here; it does so again on the way out, which changes
        # nothing.
        response = self._view.finalize_response(
            self._request, response, *self._args, **self._kwargs
        )
        return protection.handled(response)

    def prepare(self, operation: Operation) -> dict[str, Any] | Reply:
        return operation.prepare(self._request)

    def verdict_of(self, error: Exception) -> Verdict:
        if isinstance(error, APIException):
            return Verdict.RELEASE if error.status_code < 500 else Verdict.FAIL
        return Verdict.RELEASE if isinstance(error, CLIENT_ERRORS) else Verdict.FAIL
