"""The admin in Chromium, as an operator uses it: find a stuck key, read its story, end it.

Pictures of the pages go to a temporary folder, or to the one that SCREENSHOTS names; `make
screenshots` renews those in the repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from playwright.sync_api import Browser, BrowserContext, Page, expect
from pytest_django.live_server_helper import LiveServer

from idempotency.core.responses import RecordedResponse
from idempotency.models import IdempotencyKey, KeyEvent, OutboxMessage
from tests.acceptance.pages import (
    DESKTOP,
    LOOKS,
    PHONE,
    check_accessible,
    check_readable,
    new_context,
    reach,
)
from tests.integration.portable.admin.rows import (
    JSON,
    PASSWORD,
    new_staff,
    now,
    write_event,
    write_key,
)

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

#: Every look is checked; these are worth a picture.
PICTURES = {
    *(f"{name}-{look}" for name in ("list", "detail") for look in ("light", "dark", "phone")),
    "force-fail-light",
    "force-failed",
    "problem-light",
}
LONGEST = "k" * 255


@pytest.fixture
def context(browser: Browser, live_server: LiveServer) -> Iterator[BrowserContext]:
    with new_context(browser, live_server.url) as context:
        yield context


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


@pytest.fixture
def operator(live_server: LiveServer) -> User:
    return new_staff(
        "view_idempotencykey",
        "view_keyevent",
        "force_fail_idempotencykey",
        "view_response_body",
        name="maria",
    )


def log_in(page: Page, name: str) -> None:
    page.goto("/admin/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="Idempotency keys").first.click()


def stuck_key(key: str = "order-7731") -> IdempotencyKey:
    return write_key(
        key=key,
        lease=timedelta(minutes=-4),
        age=timedelta(minutes=5),
        attempt=2,
        recovery_point="prepared",
        context={
            "operation": "payments.charge",
            "ttl": 86400.0,
            "context": {"amount": 4900, "currency": "EUR", "source": "tok_slow"},
        },
    )


def busy_table() -> IdempotencyKey:
    """A list as it looks on an ordinary bad day; returns its stuck key."""
    for number in range(3):
        charge = (
            b'{"id":"ch_%d","object":"charge","amount":1250,"currency":"EUR","status":"succeeded"}'
        )
        headers = (*JSON, ("Location", f"/v1/charges/ch_{number}"), ("ETag", '"1"'))
        write_key(
            "succeeded",
            key=f"8e03978e-40d5-43dd-bc93-6894a57f932{number}",
            answer=RecordedResponse(201, headers, charge % number),
            age=timedelta(hours=2 - number / 2, seconds=7 * number),
        )
    write_key(
        "failed",
        key="refund-118",
        route="POST /v1/charges/{id}/refunds",
        failure="OperationalError",
        age=timedelta(minutes=31),
        tenant="acct_globex",
    )
    write_key(
        "in_doubt",
        key="payout-2026-03-01",
        tenant="acct_globex",
        failure="interrupted at a call that cannot be repeated",
        age=timedelta(minutes=12),
        recovery_point="prepared",
    )
    stuck = stuck_key()
    write_event(stuck, "takeover", attempt=2, at=now() - timedelta(minutes=4, seconds=30))
    write_key(key="transfer-5512", route="POST /v1/transfers", age=timedelta(seconds=4))
    write_key(key="order-7740", tenant="acct_globex", age=timedelta(seconds=1))
    return stuck


def test_an_operator_finds_a_stuck_key_and_ends_it_with_a_reason(
    page: Page, operator: User, pictures: Path
) -> None:
    stuck = busy_table()
    log_in(page, "maria")

    page.get_by_role("link", name="stuck: processing, lease over").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    page.get_by_role("link", name="order-7731").click()
    expect(
        page.get_by_text("it repeats the outside call under the same downstream key")
    ).to_be_visible()

    page.get_by_role("link", name="Force-fail…").click()
    expect(
        page.get_by_role("alert").get_by_text("Something may have happened outside")
    ).to_be_visible()
    page.get_by_role("button", name="Force-fail this key").click()
    expect(page.get_by_text("Please correct the errors below.")).to_be_visible()
    assert IdempotencyKey.objects.get(pk=stuck.pk).state == "processing"

    page.get_by_label("Final").check()
    page.get_by_label("Reason").fill("The gateway has no such charge; asked at 03:12")
    page.get_by_role("button", name="Force-fail this key").click()

    expect(page.get_by_text("Force-failed 1 key.")).to_be_visible()
    expect(page.get_by_text("gets the stored 410")).to_be_visible()
    expect(page.get_by_text("An operator ended attempt 2: The gateway has no such")).to_be_visible()
    expect(page.get_by_role("link", name="Force-fail…")).to_have_count(0)
    take(page, pictures, "force-failed")

    assert IdempotencyKey.objects.get(pk=stuck.pk).state == "succeeded"
    event = KeyEvent.objects.get(key_id=stuck.pk, kind="force_failed")
    assert (event.actor, event.reason) == (
        "maria",
        "The gateway has no such charge; asked at 03:12",
    )
    assert LogEntry.objects.get().object_id == str(stuck.pk)

    # Back in the list, still filtered: nothing is stuck any more.
    page.get_by_role("link", name="Idempotency keys").first.click()
    page.get_by_role("link", name="stuck: processing, lease over").click()
    expect(page.get_by_text("Nothing to show")).to_be_visible()


def test_without_the_permission_there_is_no_button_and_the_page_is_refused(page: Page) -> None:
    new_staff("view_idempotencykey", name="viewer")
    stuck = stuck_key()
    log_in(page, "viewer")
    page.get_by_role("link", name="order-7731").click()
    expect(page.get_by_text("Your account may not force-fail keys")).to_be_visible()
    expect(page.get_by_role("link", name="Force-fail…")).to_have_count(0)

    answer = page.goto(f"/admin/idempotency/idempotencykey/force-fail/?key={stuck.pk}")
    assert answer is not None
    assert answer.status == 403
    assert IdempotencyKey.objects.get().state == "processing"


def test_a_key_that_changed_while_the_operator_typed_is_left_alone(
    page: Page, operator: User
) -> None:
    from idempotency.stores import get_store

    stuck = stuck_key()
    log_in(page, "maria")
    page.get_by_role("link", name="order-7731").click()
    page.get_by_role("link", name="Force-fail…").click()
    page.get_by_label("Free for retry").check()
    page.get_by_label("Reason").fill("the worker is gone")
    assert get_store().take_over(stuck.pk, timedelta(minutes=1)) is not None

    page.get_by_role("button", name="Force-fail this key").click()

    expect(
        page.get_by_text("changed since you looked. It is now processing, attempt 3")
    ).to_be_visible()
    assert IdempotencyKey.objects.get().state == "processing"
    assert not KeyEvent.objects.filter(kind="force_failed").exists()


def test_several_keys_are_ended_from_the_list_with_the_keyboard_alone(
    page: Page, operator: User
) -> None:
    for number in range(3):
        stuck_key(f"order-{number}")
    log_in(page, "maria")
    for number in (0, 2):
        row = page.get_by_role("row").filter(has_text=f"order-{number}")
        row.get_by_role("checkbox").focus()
        page.keyboard.press("Space")
    page.locator("select[name=action]").focus()
    page.keyboard.type("Force")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="These 2 keys will be ended")).to_be_visible()

    reach(page, 'input[value="free"]')
    page.keyboard.press("Space")
    reach(page, "textarea")
    page.keyboard.type("drill")
    reach(page, 'input[type="submit"]')
    page.keyboard.press("Enter")

    expect(page.get_by_text("Force-failed 2 keys.")).to_be_visible()
    ended = KeyEvent.objects.filter(kind="force_failed").values_list("key_id", flat=True)
    keys = IdempotencyKey.objects.filter(pk__in=ended).order_by("key")
    # Operations past their recovery point: left to the job.
    assert [(key.key, key.state) for key in keys] == [
        ("order-0", "processing"),
        ("order-2", "processing"),
    ]


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_list_and_page_are_readable_in_light_and_dark_and_on_a_phone(
    page: Page,
    operator: User,
    pictures: Path,
    scheme: Any,
    size: Any,
    request: pytest.FixtureRequest,
) -> None:
    busy_table()
    look = request.node.callspec.id
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    log_in(page, "maria")
    page.get_by_role("link", name="order-7731").wait_for()
    check_readable(page)
    check_accessible(page)
    take(page, pictures, f"list-{look}")
    write_key("failed", key=LONGEST, tenant="t" * 255, failure="f" * 500, age=timedelta(days=1))
    page.reload()
    check_readable(page)
    for key in (LONGEST, "8e03978e-40d5-43dd-bc93-6894a57f9320", "payout-2026-03-01", "order-7731"):
        page.get_by_role("link", name=key).click()
        page.get_by_role("heading", name="What a retry gets now").wait_for()
        check_readable(page)
        page.go_back()
    page.get_by_role("link", name="order-7731").click()
    page.get_by_role("heading", name="What a retry gets now").wait_for()
    check_accessible(page)
    take(page, pictures, f"detail-{look}")
    page.get_by_role("link", name="Force-fail…").click()
    page.get_by_role("button", name="Force-fail this key").wait_for()
    check_readable(page)
    check_accessible(page)
    take(page, pictures, f"force-fail-{look}")


def test_the_pages_of_events_and_of_the_outbox_put_nothing_in_anybodys_way(
    page: Page, live_server: LiveServer
) -> None:
    stuck = stuck_key()
    write_event(stuck, "takeover", attempt=2, at=now() - timedelta(minutes=4, seconds=30))
    times = dict.fromkeys(("due_at", "created_at", "queued_at", "settled_at"), now())
    message = OutboxMessage.objects.create(
        message_id=stuck.owner, channel="mail", payload={}, state="dead", **times
    )
    new_staff("view_keyevent", "view_outboxmessage", "resend_outboxmessage", name="maria")
    page.goto("/admin/")
    page.get_by_label("Username").fill("maria")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    outbox = "/admin/idempotency/outboxmessage/"
    for path in (
        "/admin/idempotency/keyevent/",
        outbox,
        f"{outbox}{message.pk}/change/",
        f"{outbox}resend/?message={message.pk}",
    ):
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200
        page.set_viewport_size(DESKTOP)
        check_accessible(page)
        page.set_viewport_size(PHONE)
        check_readable(page)


def test_in_german_the_pages_fit_a_phone_as_well(
    browser: Browser, live_server: LiveServer, operator: User
) -> None:
    busy_table()
    with new_context(browser, live_server.url, locale="de-DE", viewport=PHONE) as context:
        page = context.new_page()
        page.goto("/admin/idempotency/idempotencykey/")
        page.get_by_label("Benutzername").fill("maria")
        page.get_by_label("Passwort").fill(PASSWORD)
        page.get_by_role("button", name="Anmelden").click()
        expect(page.get_by_text("in Bearbeitung").first).to_be_visible()
        check_readable(page)
        page.get_by_role("link", name="order-7731").click()
        expect(page.get_by_role("heading", name="Was eine Wiederholung jetzt")).to_be_visible()
        check_readable(page)
        page.get_by_role("link", name="Zwangsweise beenden…").click()
        page.get_by_role("button", name="Diesen Schlüssel zwangsweise beenden").wait_for()
        check_readable(page)


def take(page: Page, folder: Path, name: str) -> None:
    """A picture of the whole page, if it is one of those that are kept."""
    if name in PICTURES:
        page.screenshot(path=folder / f"{name}.png", full_page=True)


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_the_page_of_a_problem_is_readable_by_itself(
    page: Page, pictures: Path, scheme: Any, size: Any, request: pytest.FixtureRequest
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    page.goto("/problems/idempotency_key_in_use/")
    expect(page.get_by_role("heading", name="Idempotency key in use")).to_be_visible()
    expect(page.get_by_text("Repeat the request unchanged")).to_be_visible()
    assert re.search(r'"retry": "same_key"', page.locator("pre").inner_text())
    check_readable(page, ours="body")
    check_accessible(page)
    take(page, pictures, f"problem-{request.node.callspec.id}")
    page.get_by_role("link", name="Outcome in doubt").click()
    expect(page.get_by_role("heading", name="Outcome in doubt")).to_be_visible()
