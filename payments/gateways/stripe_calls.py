"""One call of ours at Stripe: the SDK makes the requests and reads the objects, the client half
sends.

The SDK's own retries are off. Inside ours they would multiply (three times three), and they send a
payment again without asking what became of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import stripe

from idempotency.client import Deadline
from idempotency.client.history import CallResult
from idempotency.client.messages import Request
from idempotency.client.transports import Cancellation
from idempotency.operations import Done, Outcome, Unknown
from idempotency.propagation import outgoing_headers
from payments.gateways.answers import Answer
from payments.gateways.calling import unsent
from payments.gateways.readings import (
    ReadHeaders,
    Reading,
    ReadingTransport,
    collecting,
    findings,
)
from payments.gateways.stripe_answers import KEY, REFERENCE, Object

# On unless told otherwise: it writes an id of this machine into the user's home.
stripe.enable_telemetry = False

#: Makes one call of the client half: a request, and the key of those that have one.
Perform = Callable[[Request, str | None], CallResult[Any]]
#: Makes the SDK send one request, with those options.
Send = Callable[[stripe.V1Services, stripe.RequestOptions], object]
#: Looks up what became of a step, within so much time. None: nothing that is known.
LookUp = Callable[[Deadline], Object | None]


class SdkHttp(stripe.HTTPClient):
    """Carries the SDK's requests, and remembers how the last of them ended."""

    name = "django-idempotency"

    def __init__(self, perform: Perform) -> None:
        super().__init__()
        self._perform = perform
        self.result: CallResult[Any] | None = None

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        post_data: Any = None,
        *,
        _usage: list[str] | None = None,
    ) -> tuple[Any, int, Mapping[str, str]]:
        sent = {**(headers or {}), **outgoing_headers()}
        key = sent.pop("Idempotency-Key", None)
        body = (post_data or "").encode()
        self.result = self._perform(Request(method.upper(), url, sent, body), key)
        response = self.result.response
        if response is None:
            error = self.result.error
            reason = f"no answer ({type(error).__name__})"
            raise stripe.APIConnectionError(reason) from error  # type: ignore[no-untyped-call]
        return response.content, response.status_code, response.headers

    def close(self) -> None:
        """The connections are the gateway's."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the port, in one or a few steps: requests under keys that are made of one."""

    perform: Perform
    #: Makes a client of the SDK over that carrier.
    sdk: Callable[[SdkHttp], stripe.StripeClient]
    reference: str
    key: str
    deadline: Deadline

    @property
    def metadata(self) -> dict[str, str]:
        """What the objects made by this call are found by."""
        return {REFERENCE: self.reference, KEY: self.key}

    def step(self, send: Send, look_up: LookUp, *, suffix: str = "") -> Outcome:
        """Take one step. ``Done`` holds the object that it ended with, or that was found.

        ``look_up`` is asked before the request is sent again, and at the end if that is in doubt.
        """
        http = SdkHttp(self.perform)
        with collecting() as found, _asking(lambda deadline: self.ask(look_up, deadline)):
            try:
                send(self.sdk(http).v1, {"idempotency_key": self.key + suffix})
            except stripe.StripeError:
                # The findings say more: the exception is about the last attempt alone.
                if http.result is None:
                    raise
        assert http.result is not None  # noqa: S101 - the SDK has sent a request
        outcome = found.outcome() or unsent(http.result)
        if isinstance(outcome, Unknown) and (it := self.ask(look_up)) is not None:
            return Done(it)
        return outcome

    def ask(self, look_up: LookUp, deadline: Deadline | None = None) -> Object | None:
        """What the look-up finds, in the time that is left. None also where it cannot ask."""
        try:
            return look_up(deadline or self.deadline)
        except stripe.StripeError:
            return None


_question: ContextVar[LookUp | None] = ContextVar("question", default=None)


@contextmanager
def _asking(question: LookUp) -> Iterator[None]:
    token = _question.set(question)
    try:
        yield
    finally:
        _question.reset(token)


class AskFirst:
    """A transport that asks before it repeats what may have been carried out.

    The key alone would do, for as long as Stripe keeps it and while nothing on the way drops the
    header. The look-up depends on neither.
    """

    def __init__(self, transport: ReadingTransport) -> None:
        self._transport = transport

    def send(
        self, request: Request, timeout: float, cancellation: Cancellation | None = None
    ) -> Reading:
        """Send the request once, or return what was found in its place. See ``Transport``."""
        question = _question.get()
        if question is None or not findings().in_doubt:
            return self._transport.send(request, timeout, cancellation)
        end = time.monotonic() + timeout
        if (found := question(Deadline.after(timeout / 2))) is not None:
            return _as_answer(found)
        rest = end - time.monotonic()
        return self._transport.send(request, rest, cancellation, granted=timeout)

    def close(self) -> None:
        """Close this process's connections; a later attempt opens new ones."""
        self._transport.close()


def _as_answer(found: Object) -> Reading:
    """What was found, as the answer that was lost."""
    headers = ReadHeaders()
    headers.answer = Answer(Done(found))
    findings().sent()
    findings().heard(headers.answer.outcome)
    return Reading(200, headers, json.dumps(found).encode())
