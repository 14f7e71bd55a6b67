"""The adapter to Stripe: PaymentIntents through the official SDK, with our client half around it.

An intent says in its ``metadata`` whose it is: our reference and the downstream key. The key is
Stripe's ``Idempotency-Key`` as well, with a suffix in the later steps of a call. An attempt whose
end nobody knows is looked up by the reference before anything is sent again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Self, get_args

import httpx2
import stripe
from django.core.exceptions import ImproperlyConfigured

from idempotency.client import BulkheadFull, Deadline
from idempotency.client.history import CallResult
from idempotency.client.messages import Request
from idempotency.client.transports import Transport
from idempotency.http.deadlines import current_deadline
from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown
from payments.gateways import stripe_answers as answers
from payments.gateways.answers import Answer
from payments.gateways.base import Movement, Task
from payments.gateways.calling import OPTIONS, CallingGateway, options_of
from payments.gateways.events import Event
from payments.gateways.readings import Reading, ReadingTransport, wait_asked_for
from payments.gateways.stripe_answers import Object
from payments.gateways.stripe_books import Books
from payments.gateways.stripe_calls import AskFirst, Call, SdkHttp
from payments.gateways.stripe_events import read_event

#: How long Stripe keeps a key at least (docs.stripe.com: "Idempotent requests").
KEPT = timedelta(hours=24)

Capture = Literal["automatic", "manual"]

#: The names in ``settings.PAYMENTS_GATEWAY``, and what they are here.
_OPTIONS = {name: OPTIONS[name] for name in OPTIONS if name not in ("DEDUPES_FOR", "HEDGING")} | {
    "API_KEY": "api_key",
    "WEBHOOK_SECRET": "webhook_secret",
    "URL": "url",
    "CAPTURE": "capture",
}

_OTHER_UNITS = {
    "code": "currency_not_supported",
    "message": "Stripe counts this currency in other units than we do.",
}

_NEEDS_PAYER = {
    "code": "authentication_required",
    "message": "The payer would have to authenticate the payment, and there is no way to ask.",
}

#: What takes an intent on from each state that is not its end.
_STEPS = {
    "requires_confirmation": "confirm",
    "requires_capture": "capture",
    "requires_action": "cancel",
}


class StripeGateway(CallingGateway):
    """Stripe. Thread-safe, and safe to create before a fork.

    ``capture``: ``automatic`` moves the money in one request; ``manual`` authorises it first, so
    that what a crash leaves behind is an authorisation, which lapses. ``dedupes``: False where
    something between us and Stripe drops the header ``Idempotency-Key``. The other options are
    those of ``CallingGateway``.

    A call returns within ``longest_call`` seconds: the time of its attempts, and one ``timeout``
    more to look up what became of them.
    """

    def __init__(
        self,
        url: str = stripe.DEFAULT_API_BASE,
        *,
        api_key: str,
        webhook_secret: str = "",
        capture: Capture = "automatic",
        **options: Any,
    ) -> None:
        if not api_key:
            raise ValueError("Stripe needs an API key (API_KEY)")
        if capture not in get_args(Capture):
            raise ValueError(f"CAPTURE is one of {', '.join(get_args(Capture))}")
        super().__init__(url, dedupes_for=KEPT, **options)
        # Its test mode has books of its own. Which account a key is of it does not say.
        self.books += " live" if "_live_" in api_key else " test"
        self._api_key = api_key
        self._webhook_secret = webhook_secret
        self._capture = capture
        self._asking = self._enquirer()

    @classmethod
    def from_settings(cls, **given: Any) -> Self:
        """The gateway of ``settings.PAYMENTS_GATEWAY``.

        ``API_KEY`` (required), ``WEBHOOK_SECRET`` (of the endpoint at Stripe; without one no event
        is taken), ``CAPTURE`` (``automatic``), ``URL`` (Stripe's own), and as for ``HttpGateway``
        ``TIMEOUT``, ``ATTEMPTS``, ``DEDUPES``, ``CALLS`` and ``REDIS_URL``. What is wrong raises
        ``ImproperlyConfigured``.
        """
        try:
            return cls(**{"api_key": "", **options_of(given, _OPTIONS)})
        except ValueError as error:
            raise ImproperlyConfigured(f"PAYMENTS_GATEWAY: {error}") from error

    @property
    def longest_call(self) -> float:
        return super().longest_call + self.timeout

    def charge(
        self, *, amount: int, currency: str, source: str, reference: str, key: str
    ) -> Outcome:
        if currency in answers.OTHER_UNITS:
            return Refused(answers.refusal(400, _OTHER_UNITS))
        call = self._call("charge", reference, key)
        params: Any = {
            "amount": amount,
            "currency": currency.lower(),
            "payment_method": answers.TEST_CARDS.get(source, source),
            "payment_method_types": ["card"],
            "metadata": call.metadata,
        }
        params |= {"capture_method": "manual"} if self._capture == "manual" else {"confirm": True}
        return self._in_room(reference, lambda: self._charge(call, params))

    def refund(self, *, charge: str, amount: int, reference: str, key: str) -> Outcome:
        call = self._call("refund", reference, key)
        params: Any = {"payment_intent": charge, "amount": amount, "metadata": call.metadata}
        return self._in_room(reference, lambda: self._refund(call, params))

    def find_charge(self, *, reference: str, key: str) -> Outcome:
        its = answers.is_of(reference, key)
        return self._found(
            reference, answers.of_intent, lambda books: books.intents(reference, its)
        )

    def find_refund(self, *, charge: str, reference: str, key: str) -> Outcome:
        its = answers.is_of(reference, key)
        return self._found(reference, answers.of_refund, lambda books: books.refunds(charge, its))

    def movements(self, *, since: datetime, until: datetime) -> Iterator[Movement]:
        return self._books().movements(since, until)

    def read_event(self, *, body: bytes, headers: Mapping[str, str]) -> Event:
        """See ``ReadsEvents``."""
        return read_event(body, headers, self._webhook_secret)

    # --- Money ------------------------------------------------------------------------------------

    def _charge(self, call: Call, params: Any) -> Outcome:
        began = time.time()

        def look_up(deadline: Deadline) -> Object | None:
            books = self._books(deadline)
            return _foremost(books.intents_since(began, answers.is_outcome_of(params)))

        outcome = call.step(lambda v1, under: v1.payment_intents.create(params, under), look_up)
        for _ in _STEPS:
            if not (isinstance(outcome, Done) and outcome.result.get("status") in _STEPS):
                break
            outcome = self._take_on(call, outcome.result)
        return self._verdict(call, outcome, answers.of_intent, Books.intent)

    def _take_on(self, call: Call, intent: Object) -> Outcome:
        """Take an intent one step on."""
        intent_id, status = intent["id"], intent["status"]
        name = _STEPS[status]

        def look_up(deadline: Deadline) -> Object | None:
            now = self._books(deadline).intent(intent_id)
            return None if now["status"] == status else now

        outcome = call.step(
            lambda v1, under: getattr(v1.payment_intents, name)(intent_id, {}, under),
            look_up,
            suffix=f"-{name}",
        )
        if isinstance(outcome, NotSent):
            # The intent is there, perhaps authorised: the call is to be made again, not withdrawn.
            return Unknown(outcome.reason)
        if (
            name == "cancel"
            and isinstance(outcome, Done)
            and outcome.result["status"] == "canceled"
        ):
            return Refused(answers.refusal(402, _NEEDS_PAYER))
        return outcome

    def _refund(self, call: Call, params: Any) -> Outcome:
        def look_up(deadline: Deadline) -> Object | None:
            books = self._books(deadline)
            its = answers.is_outcome_of(params)
            return _foremost(books.refunds(params["payment_intent"], its))

        outcome = call.step(lambda v1, under: v1.refunds.create(params, under), look_up)
        return self._verdict(call, outcome, answers.of_refund, Books.refund)

    def _verdict(
        self,
        call: Call,
        outcome: Outcome,
        meaning: Callable[[Object], Outcome],
        retrieve: Callable[[Books, str], Object],
    ) -> Outcome:
        """What the object that a step ended with says about the money."""
        if not isinstance(outcome, Done):
            return outcome
        verdict = meaning(outcome.result)
        if isinstance(verdict, Unknown):
            # A replay tells how it was the first time.
            its = str(outcome.result.get("id"))
            now = call.ask(lambda deadline: retrieve(self._books(deadline), its))
            verdict = verdict if now is None else meaning(now)
        return verdict

    # --- The pieces -------------------------------------------------------------------------------

    def _call(self, task: Task, reference: str, key: str) -> Call:
        deadline = self._deadline()

        def perform(request: Request, key: str | None) -> CallResult[Reading]:
            return self._caller.perform(request, operation=task, key=key, deadline=deadline)

        return Call(perform, self._sdk, reference, key, deadline)

    def _deadline(self) -> Deadline:
        # Without a request there is none: a job takes the time that recovery needs.
        given = current_deadline() or Deadline.after(math.inf)
        return given.child(limit=self.longest_call)

    def _books(self, deadline: Deadline | None = None) -> Books:
        """What answers questions, all of them together by that time; without one, each by itself
        as long as a call may take."""

        def perform(request: Request, key: str | None) -> CallResult[Any]:
            return self._asking.perform(request, operation="enquiry", deadline=deadline)

        return Books(self._sdk(SdkHttp(perform)))

    def _sdk(self, http: SdkHttp) -> stripe.StripeClient:
        return stripe.StripeClient(
            self._api_key,
            base_addresses={"api": self.url},
            http_client=http,
            max_network_retries=0,
        )

    def _found(
        self,
        reference: str,
        meaning: Callable[[Object], Outcome],
        look_up: Callable[[Books], list[Object]],
    ) -> Outcome:
        books = self._books(self._deadline())
        try:
            with self.room.hold(reference):
                return answers.first_of(map(meaning, look_up(books)))
        except BulkheadFull:
            return Unknown("too many calls of the gateway are under way")
        except stripe.StripeError as error:
            return Unknown(f"Stripe could not be asked: {error}")

    def _transport(self) -> Transport[Reading]:
        return AskFirst(ReadingTransport(self._connections, timeout=self.timeout, read=_read))


def _read(response: httpx2.Response) -> Answer:
    asked = wait_asked_for(response)
    return answers.classify(response.status_code, response.headers, response.content, asked)


def _foremost(objects: list[Object]) -> Object | None:
    """Of several, oldest first: one that moved money, else the first."""
    return min(objects, key=lambda it: it.get("status") != "succeeded", default=None)
