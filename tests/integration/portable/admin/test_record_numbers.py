"""What a request calls the number of a record, and no record can have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from idempotency.admin.seen import LARGEST, record_number

pytestmark = pytest.mark.django_db

#: Longer than what int() reads.
ENDLESS = "9" * 5000


@pytest.fixture
def client(make_key: Callable[..., Any]) -> Client:
    make_key()
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def page(name: str, *arguments: str) -> str:
    return reverse(f"admin:idempotency_{name}", args=arguments)


@pytest.mark.parametrize("number", [ENDLESS, str(LARGEST + 1), "-1", "²", "x"])
def test_a_number_that_no_record_has_finds_nothing_on_any_page(client: Client, number: str) -> None:
    for name in ("keyevent", "proposal"):
        listed = client.get(page(f"{name}_changelist"), {"q": number})
        assert (listed.status_code, list(listed.context["cl"].result_list)) == (200, [])
    assert client.get(page("doubt_change", number)).status_code == 302
    for name, field in (("idempotencykey", "key"), ("outboxmessage", "message")):
        action = "force_fail" if name == "idempotencykey" else "discard"
        assert client.get(page(f"{name}_{action}"), {field: number}).status_code == 200


def test_a_token_with_such_a_number_decides_nothing(client: Client) -> None:
    decision = {"token": f"{ENDLESS}:dead:1:2026-01-01T00:00:00+00:00", "reason": "x"}
    assert client.post(page("outboxmessage_discard"), decision).status_code == 302


def test_the_largest_number_that_a_record_can_have_is_one() -> None:
    assert record_number(str(LARGEST)) == LARGEST
    assert record_number("0") == 0
