"""What the gateway tells us: taken when it is signed, and recorded once."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.utils import timezone

from idempotency.models import IdempotencyKey, OutboxMessage
from payments.webhooks import gateway_events
from tests.integration.payments.api import Api, at_once, problem
from tests.integration.payments.gateway_messages import PATH, SECRET, Event

pytestmark = pytest.mark.django_db

DATA = {
    "id": "gch_1",
    "status": "succeeded",
    "amount": 1000,
    "currency": "EUR",
    "reference": "ch_x",
}
OTHER_SECRET = "whsec_b3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIgb3RoZXI="


@pytest.fixture(autouse=True)
def _secret(settings: Any) -> None:
    settings.PAYMENTS_WEBHOOKS = {"GATEWAY_SECRETS": [SECRET]}


@pytest.fixture
def event() -> Event:
    return Event("charge.succeeded", DATA)


def recorded() -> int:
    """How many messages wait to be settled."""
    return OutboxMessage.objects.filter(channel="gateway-events").count()


def test_an_event_is_recorded_with_what_is_to_be_done(event: Event) -> None:
    assert event.send().status_code == 204
    message = OutboxMessage.objects.get()
    assert (message.channel, message.payload["reference"]) == ("gateway-events", "ch_x")


@pytest.mark.django_db(transaction=True)
def test_the_same_event_twenty_times_at_once_is_recorded_once(event: Event) -> None:
    answers = at_once(*[event.send] * 20)
    assert {answer.status_code for answer in answers} <= {204, 409}
    assert all(answer["Retry-After"] for answer in answers if answer.status_code == 409)
    assert event.send().status_code == 204
    assert recorded() == 1


def test_an_event_that_is_sent_again_a_day_later_is_known(event: Event) -> None:
    event.send()
    with time_machine.travel(timezone.now() + timedelta(days=1)):
        assert event.send().status_code == 204
    assert recorded() == 1


def test_a_recording_of_an_event_played_back_a_day_later_is_refused(event: Event) -> None:
    headers = event.headers()
    event.send(headers=headers)
    with time_machine.travel(timezone.now() + timedelta(days=1)):
        problem(event.send(headers=headers), 401, "not_signed")


def test_a_wrong_signature_is_refused_and_names_the_scheme(event: Event) -> None:
    answer = event.send(headers=event.headers(secret=OTHER_SECRET))
    problem(answer, 401, "not_signed")
    assert answer["WWW-Authenticate"].startswith("StandardWebhooks")
    assert (recorded(), IdempotencyKey.objects.count()) == (0, 0)


def test_an_old_signature_is_refused(event: Event) -> None:
    problem(event.send(headers=event.headers(age=301)), 401, "not_signed")
    assert recorded() == 0


def test_an_altered_body_is_refused(event: Event) -> None:
    problem(event.send(body=event.body.replace("1000", "9000")), 401, "not_signed")
    problem(event.send(body=event.body + " "), 401, "not_signed")
    assert recorded() == 0


def test_an_altered_body_that_is_signed_is_not_the_event_that_was_recorded(event: Event) -> None:
    event.send()
    other = Event("charge.succeeded", DATA | {"amount": 9000}, event_id=event.id)
    assert other.send().status_code == 422
    assert recorded() == 1


def test_both_secrets_are_good_while_they_are_changed(event: Event, settings: Any) -> None:
    settings.PAYMENTS_WEBHOOKS = {"GATEWAY_SECRETS": [OTHER_SECRET, SECRET]}
    assert event.send().status_code == 204
    second = Event("charge.succeeded", DATA)
    assert second.send(headers=second.headers(secret=OTHER_SECRET)).status_code == 204


def test_without_a_secret_no_event_is_taken(event: Event, settings: Any) -> None:
    settings.PAYMENTS_WEBHOOKS = {}
    problem(event.send(), 401, "not_signed")


def test_an_api_key_is_no_signature_and_a_signature_needs_none(event: Event, acme: Api) -> None:
    key = {"Authorization": f"Bearer {acme.secret}"}
    answer = Client().post(PATH, event.body, "application/json", headers=key)
    problem(answer, 401, "not_signed")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("charge.refunded", DATA),
        ("payout.paid", {}),
        ("charge.succeeded", DATA | {"reference": None}),
    ],
)
def test_what_is_none_of_our_business_is_recorded_and_left_alone(
    kind: str, data: dict[str, Any]
) -> None:
    assert Event(kind, data).send().status_code == 204
    assert (recorded(), IdempotencyKey.objects.count()) == (0, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"amount": "1000"},
        {"amount": 10.5},
        {"amount": True},
        {"currency": 5},
        {"id": ""},
        {"id": "x" * 256},
        {"reference": 7},
    ],
)
def test_an_event_that_cannot_be_understood_is_an_error_and_not_recorded(
    changes: dict[str, Any],
) -> None:
    problem(Event("charge.succeeded", DATA | changes).send(), 400, "invalid_request")
    assert (recorded(), IdempotencyKey.objects.count()) == (0, 0)


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"type": 5}', '{"type": "charge.succeeded"}'])
def test_what_is_no_event_at_all_is_an_error(event: Event, body: str) -> None:
    event.body = body
    assert event.send().status_code in (400, 401)
    assert recorded() == 0


@pytest.mark.parametrize("body", ["{", '{"type": "a", "type": "b"}', '{"type": NaN}', "\\u0000"])
def test_json_is_read_strictly(event: Event, body: str) -> None:
    event.body = body
    problem(event.send(), 400, "malformed_request")


def test_a_long_body_is_refused_before_it_is_read(event: Event) -> None:
    event.body = json.dumps({"type": "x" * gateway_events.MAX_EVENT})
    problem(event.send(), 413, "request_too_large")


def test_the_address_takes_posts_only() -> None:
    problem(Client().get(PATH), 405, "method_not_allowed")
