"""The retry lab in Chromium: a person breaks payments, and the gateway's ledger has each once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.acceptance.pages import (
    LOOKS,
    PHONE,
    check_accessible,
    check_readable,
    new_context,
    reach,
)
from tests.acceptance.product import PATIENCE, Jobs, Product, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.stack, pytest.mark.postgresql]

PRODUCT = {"IDEMPOTENCY_LEASE": "2"}


@pytest.fixture(scope="module")
def jobs(product: Product) -> Iterator[Jobs]:
    with product.jobs() as jobs:
        yield jobs


@pytest.fixture
def context(product: Product, browser: Browser) -> Iterator[BrowserContext]:
    # In this order: gunicorn would wait for the connections that a browser keeps open.
    with new_context(browser, product.url) as context:
        # Steps run in other processes, beside other tests.
        context.set_default_timeout(1000 * PATIENCE)
        expect.set_options(timeout=1000 * PATIENCE)
        yield context
        expect.set_options(timeout=None)


@pytest.fixture
def page(context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto("/lab/")
    return page


def press(page: Page, label: str) -> Locator:
    """Press a step's button; where its outcome is told."""
    button = page.get_by_role("button", name=label, exact=True)
    item = page.get_by_role("listitem").filter(has=button)
    item.get_by_role("button").click()
    return item.locator(".outcome")


def column(page: Page, table: str, number: int) -> list[str]:
    """A column of a table, oldest row first."""
    return page.locator(f"#{table} td:nth-child({number})").all_inner_texts()[::-1]


def places(page: Page) -> list[Any]:
    """Where everything is that must not move when something happens."""
    return [one.bounding_box() for one in page.locator("button, h2, .scroller, dl").all()]


def test_one_key_has_one_effect_whatever_a_person_does_to_it(
    page: Page, product: Product, jobs: Jobs, pictures: Path
) -> None:
    expect(page.locator("#balance")).to_contain_text("EUR")
    before = places(page)
    expect(press(page, "Pay")).to_have_text("As promised: 201; one charge of 19.99 EUR.")
    assert places(page) == before

    expect(press(page, "Double-click: 20 at once")).to_have_text(
        "As promised: 1 x 201, 19 x 201 replayed; one charge of 19.99 EUR."
    )
    expect(press(page, "Lose the answer, then retry")).to_have_text(
        "As promised: no answer, 201 replayed; one charge of 19.99 EUR."
    )
    page.get_by_label("Amount").fill("25.5")
    expect(press(page, "Retry with ten times the amount")).to_have_text(
        "As promised: 201, 422 idempotency_key_reused; one charge of 25.50 EUR."
    )
    expect(press(page, "Pay with a declined card, twice")).to_have_text(
        "As promised: 402 card_declined, 402 card_declined replayed; no charge."
    )
    kill_and_recover(page, product, jobs, pictures)
    expect(press(page, "Transfer, twice")).to_have_text(
        "As promised: 201, 201 replayed; 25.50 USD left the balance."
    )

    expect(page.get_by_role("status")).to_contain_text("Transfer, twice. As promised")
    assert column(page, "keys", 2) == ["succeeded"] * 7
    assert column(page, "keys", 5) == ["1", "1", "1", "1", "0", "1", "0"]
    expect(page.locator("#charges-count")).to_have_text("5")
    assert column(page, "ledger", 2) == ["19.99 EUR"] * 3 + ["25.50 EUR"] * 2
    assert len(column(page, "requests", 3)) >= 31
    take_pictures(page, pictures)

    # All that the page says is so: the gateway charged five times, and our ledger agrees.
    assert [entry["amount"] for entry in product.gateway.ledger()] == [1999] * 3 + [2550] * 2
    product.assert_ledgers_agree()
    assert product.rows("SELECT amount, currency FROM payments_transfer") == [
        {"amount": 2550, "currency": "USD"}
    ]


def kill_and_recover(page: Page, product: Product, jobs: Jobs, pictures: Path) -> None:
    outcome = press(page, "Kill the worker after the charge")
    expect(outcome).to_contain_text("nobody has saved it")
    row = page.locator("#keys tr").first
    expect(row).to_contain_text("processing")
    # The charge is there before anybody but the gateway knows of it.
    expect(page.locator("#ledger tr").first).to_contain_text("not saved by us yet")
    page.screenshot(path=pictures / "lab-killed.png", full_page=True)

    recover(page, product, jobs)
    recovered = r"As promised: no answer, 201 replayed; one charge of 25.50 EUR. Recovered after "
    expect(outcome).to_have_text(re.compile(rf"{recovered}\d+ s."))
    expect(row.locator("td").nth(2)).to_have_text("2")  # the attempt
    expect(page.locator("#ledger tr").first).to_contain_text("Killed worker")


def recover(page: Page, product: Product, jobs: Jobs) -> None:
    """Run the job until it has finished what the newest key stands for."""
    key = page.locator("#keys a").first.inner_text()
    wait_until(lambda: jobs.run("resume_operations") and product.state(key) == "succeeded")


def take_pictures(page: Page, pictures: Path) -> None:
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=pictures / "lab-dark.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(PHONE)
    page.screenshot(path=pictures / "lab-phone.png", full_page=True)


def test_the_lab_is_used_with_the_keyboard_alone(page: Page) -> None:
    reach(page, "#tab-lab")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel").get_by_role("listitem")).to_have_count(7)
    expect(page.get_by_role("button", name="Pay", exact=True)).to_be_hidden()
    check_accessible(page)
    page.keyboard.press("Home")
    reach(page, "#amount")
    page.keyboard.press("Control+A")
    page.keyboard.type("0")
    reach(page, "[data-step=pay] button")
    page.keyboard.press("Enter")
    # The browser says what is wrong with the amount, and puts one there.
    expect(page.get_by_label("Amount")).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("7")
    reach(page, "[data-step=pay] button")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text(
        "Pay. As promised: 201; one charge of 7.00 EUR."
    )
    reach(page, "#keys a")


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_the_lab_is_readable_in_light_and_dark_and_on_a_phone(
    page: Page, scheme: Any, size: Any
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    expect(press(page, "Pay")).to_contain_text("As promised")
    expect(page.locator("#keys td").nth(1)).to_have_text("succeeded")
    check_readable(page, ours="body")
    check_accessible(page)
    page.get_by_role("tab", name="What each step shows").click()
    check_readable(page, ours="body")


def test_a_gateway_that_charges_twice_is_told_of(page: Page, product: Product, jobs: Jobs) -> None:
    product.gateway.control(dedupe=False)
    try:
        outcome = press(page, "Kill the worker after the charge")
        expect(outcome).to_contain_text("nobody has saved it")
        recover(page, product, jobs)
        expect(outcome).to_contain_text("NOT as promised: no answer, 201 replayed; 2 charges")
    finally:
        product.gateway.control(dedupe=True)
    expect(page.locator("[data-step=kill]")).to_have_attribute("data-outcome", "bad")
    assert column(page, "keys", 5) == ["2"]
