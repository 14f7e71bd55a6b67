"""The operations page in Chromium, on an ordinary bad day."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from django.db import connection
from playwright.sync_api import Browser, BrowserContext, Page, expect
from pytest_django.live_server_helper import LiveServer

from idempotency import traffic
from idempotency.client.breaker import BreakerPolicy, Outcome
from idempotency.client.shared import PREFIX, RedisLink, SharedBreaker, SharedBudget
from tests.acceptance.pages import LOOKS, check_accessible, check_readable, new_context
from tests.integration.portable.admin.rows import PASSWORD, new_staff, write_key

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgresql,
]

PAGE = "/admin/idempotency/operations/"
BOUNDS = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "+Inf")
#: Of a hundred requests, how many take up to each bound.
SHARES = (4, 21, 46, 18, 7, 3, 1)


@pytest.fixture
def page(browser: Browser, live_server: LiveServer) -> Iterator[Page]:
    with new_context(browser, live_server.url) as context:
        yield opened(context)


def opened(context: BrowserContext) -> Page:
    new_staff("view_operations", "view_idempotencykey", name="maria")
    page = context.new_page()
    page.goto("/admin/")
    page.get_by_label("Username").fill("maria")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    return page


@pytest.fixture
def bad_day() -> Iterator[None]:
    """Keys of every kind, a day of requests with a bad quarter of an hour, a gateway that fails."""
    server = redis.Redis.from_url(os.environ["REDIS_URL"])
    forget(server)
    for _ in range(40):
        write_key("succeeded", age=timedelta(hours=3))
    write_key("failed", age=timedelta(hours=1))
    write_key(age=timedelta(seconds=4))
    write_key(age=timedelta(minutes=9), lease=timedelta(minutes=-4))
    write_key("in_doubt", age=timedelta(hours=2))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE idempotency_idempotencykey")
    write_traffic(server)
    call_gateway(server)
    yield
    forget(server)
    server.close()


def forget(server: redis.Redis) -> None:
    for name in (traffic._HASH, *server.scan_iter(f"{PREFIX}*")):
        server.delete(name)


def write_traffic(server: redis.Redis) -> None:
    """As the processes would have told it."""
    now = int(server.time()[0]) // 60  # type: ignore[index]
    minutes: dict[str, str] = {}
    for ago in range(1, traffic.MINUTES):
        wave = 1 + math.sin(2 * math.pi * ago / traffic.MINUTES) + 0.1 * math.sin(ago)
        executed = round(300 * wave + 40)
        bad = 190 < ago < 206
        counts = {"executed": executed, "replayed": executed * (4 if bad else 1) // 20}
        counts |= {"in_use": 60, "takeover": 7, "failed": 35} if bad else {"in_use": ago % 3}
        counts |= {
            f"executed@{bound}": executed * share // 100
            for bound, share in zip(BOUNDS, SHARES, strict=True)
        }
        text = " ".join(f"{name}={number}" for name, number in counts.items())
        minutes[str((now - ago) % traffic.MINUTES)] = f"{now - ago} {text}"
    server.hset(traffic._HASH, mapping=minutes)


def call_gateway(server: redis.Redis) -> None:
    link = RedisLink(server)
    budget = SharedBudget(link, "gateway:gateway.example.com")
    for _ in range(40):
        budget.credit()
    failing = BreakerPolicy(minimum_calls=1, open_for=60, open_jitter=0)
    charge = SharedBreaker(link, "gateway:gateway.example.com", "charge", failing)
    charge.settle(charge.admit(), Outcome.FAILURE)
    refund = SharedBreaker(link, "gateway:gateway.example.com", "refund")
    refund.settle(refund.admit(), Outcome.SUCCESS)
    SharedBudget(link, "service:payments").credit()


@pytest.mark.usefixtures("bad_day")
def test_the_page_is_readable_in_light_and_dark_and_on_a_phone(page: Page, pictures: Path) -> None:
    page.get_by_role("link", name="Operations overview").first.click()
    expect(page.get_by_role("heading", name="What needs somebody")).to_be_visible()
    expect(page.get_by_text("gateway:gateway.example.com fails")).to_be_visible()
    expect(page.get_by_role("img", name="Executed")).to_be_visible()
    for look in LOOKS:
        scheme, size = look.values
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        # The admin's links fade from one theme's colour to the other's.
        page.evaluate("Promise.all(document.getAnimations().map(fading => fading.finished))")
        check_readable(page)
        if look.id != "phone-dark":
            page.screenshot(path=pictures / f"operations-{look.id}.png", full_page=True)
        switch_details(page)
        expect(page.get_by_role("columnheader", name="Statement")).to_be_visible()
        check_readable(page)
        check_accessible(page)
        switch_details(page)


def switch_details(page: Page) -> None:
    for summary in page.locator("main summary").all():
        summary.click()


@pytest.mark.usefixtures("bad_day")
def test_every_figure_of_a_chart_is_in_a_table_that_the_keyboard_opens(page: Page) -> None:
    page.goto(PAGE)
    page.get_by_text("Hour by hour").first.focus()
    page.keyboard.press("Enter")
    hours = page.get_by_role("region", name="Hour by hour").get_by_role("row")
    expect(hours).to_have_count(25)
    page.get_by_text("Day by day").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="Day", exact=True)).to_be_visible()
    # From a number to the keys behind it.
    row = page.get_by_role("row", name="processing")
    row.get_by_role("link").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(2)
    page.get_by_role("link", name="Operations", exact=True).click()
    expect(page).to_have_url(f"{page.url.split('/admin/')[0]}{PAGE}")
