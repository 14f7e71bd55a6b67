"""What is asked of Stripe between two attempts, and what its books say of a refund."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from idempotency.client.classification import Trouble
from idempotency.client.messages import Request
from idempotency.client.transports import NoAnswer
from idempotency.operations import Unknown
from payments.gateways import stripe_books, stripe_calls
from payments.gateways.readings import ReadingTransport, collecting, findings
from payments.gateways.stripe import StripeGateway
from payments.gateways.stripe_calls import AskFirst

REQUEST = Request("POST", "https://api.example/v1/payment_intents", {}, b"")


class Silent:
    """Never answers in time."""

    def send(self, request: Request, timeout: float, cancellation: Any = None) -> Any:
        raise NoAnswer(Trouble.TIMEOUT, httpx2.ReadTimeout("no answer"))

    def close(self) -> None: ...


def test_the_time_of_the_question_does_not_make_a_silence_the_callers_hurry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look-up that took its time leaves less for the attempt; the gateway is silent all the
    same, and its breaker has to hear of it."""
    monkeypatch.setattr(stripe_calls.time, "monotonic", iter([0.0, 2.0]).__next__)
    transport = AskFirst(ReadingTransport(Silent(), timeout=5.0))
    with collecting(), stripe_calls._asking(lambda deadline: None):
        findings().sent()
        findings().heard(Unknown("the first attempt"))
        with pytest.raises(NoAnswer) as raised:
            transport.send(REQUEST, 5.0)
    assert raised.value.trouble is Trouble.TIMEOUT


@pytest.mark.parametrize(("status", "counts"), [("succeeded", True), ("failed", False)])
def test_a_refund_that_came_back_moved_nothing(status: str, counts: bool) -> None:
    source = {"id": "re_1", "amount": 5, "currency": "eur", "metadata": {}, "status": status}
    transaction = {"type": "refund", "source": source, "created": 0}
    assert (stripe_books._movement(transaction) is not None) is counts


def test_the_books_of_its_test_mode_are_others() -> None:
    live, test = (StripeGateway(api_key=f"sk_{mode}_1") for mode in ("live", "test"))
    assert live.books != test.books
