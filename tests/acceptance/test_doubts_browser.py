"""The queue of decisions in Chromium: ask the gateway, settle, let another person approve; each
with the permission and without. The gateway is a process of its own, and its ledger is the truth.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from idempotency.models import IdempotencyKey, KeyEvent, OutboxMessage, Proposal
from payments.models import Charge, LedgerDifference, LedgerTransaction
from tests.acceptance.pages import (
    DESKTOP,
    LOOKS,
    check_accessible,
    check_readable,
    new_context,
    reach,
)
from tests.integration.payments.api import Api, new_api
from tests.plugins.gateway import GatewayProcess

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgresql,
]

QUEUE = "/admin/idempotency/doubt/"
#: Every look is checked; these are worth a picture.
PICTURES = {
    *(f"{name}-{look}" for name in ("queue", "decide") for look in ("light", "dark", "phone")),
    "proposal-light",
    "settled-light",
}


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that does not know a key again, so that calling it twice would charge twice."""
    gateway = GatewayProcess(tmp_path_factory.mktemp("gateway") / "ledger.sqlite3")
    gateway.start()
    gateway.control(dedupe=False)
    yield gateway
    gateway.close()


_calls = itertools.count(3)


@pytest.fixture
def gateway(forgetful: GatewayProcess, settings: Any) -> Iterator[GatewayProcess]:
    # Other settings, another breaker: each test's own.
    calls = {"DEDUPES": False, "ATTEMPTS": 1, "CALLS": next(_calls)}
    settings.PAYMENTS_GATEWAY = {"URL": forgetful.url, **calls}
    settings.IDEMPOTENCY = settings.IDEMPOTENCY | {"FOUR_EYES_ABOVE": {"*": 100_000}}
    yield forgetful
    if not forgetful.running:
        forgetful.start()
        forgetful.control(dedupe=False)


@pytest.fixture
def acme(gateway: GatewayProcess) -> Api:
    return new_api("Acme")


Open = Callable[..., Page]


@pytest.fixture
def open_as(browser: Browser, live_server: LiveServer) -> Iterator[Open]:
    """Opens the queue for a new member of the staff with these permissions, in a profile of his."""

    def log_in(name: str, *permissions: str) -> Page:
        user = User.objects.create_user(name, is_staff=True)
        granted = Permission.objects.filter(codename__in=permissions)
        assert len(granted) == len(permissions), permissions
        user.user_permissions.set(granted)
        client = Client()
        client.force_login(user)
        cookie = {"name": "sessionid", "value": client.cookies["sessionid"].value}
        context = opened.enter_context(new_context(browser, live_server.url))
        context.add_cookies([cookie | {"url": live_server.url}])
        page = context.new_page()
        page.goto(QUEUE)
        return page

    with ExitStack() as opened:
        yield log_in


MONEY = ("view_charge", "view_ledgertransaction", "view_ledgerdifference")
ALL = (
    "view_idempotencykey",
    "view_keyevent",
    "ask_idempotencykey",
    "settle_idempotencykey",
    "force_fail_idempotencykey",
    "view_proposal",
    "view_outboxmessage",
    *MONEY,
)


def doubt(acme: Api, key: str = "order-7731", amount: int = 4900, source: str = "") -> Charge:
    """A charge that the gateway may have made: its answer was lost."""
    answer = acme.charge(source or "tok_answer_lost", key=key, amount=amount)
    assert answer.status_code == 409, answer.content
    return Charge.objects.latest("pk")


def key_of(charge: Charge) -> IdempotencyKey:
    return IdempotencyKey.objects.get(pk=charge.idempotency_key_id)


def begin(page: Page, key: str = "order-7731") -> None:
    page.get_by_role("link", name=f"Decide… POST /v1/charges {key}").click()


def settle(page: Page, choice: str, reason: str, record: str = "") -> None:
    form = page.locator("form").filter(has_text="What happened")
    form.get_by_role("radio", name=choice).check()
    form.get_by_label("The other side's record").fill(record)
    form.get_by_label("Reason").fill(reason)
    form.get_by_role("button").click()


def posted(charge: Charge) -> int:
    return LedgerTransaction.objects.filter(charge=charge).count()


def test_an_operator_asks_the_gateway_and_settles_as_it_answers(
    open_as: Open, acme: Api, gateway: GatewayProcess, pictures: Path
) -> None:
    charge = doubt(acme)
    [entry] = gateway.find("charges", charge.public_id)
    page = open_as("maria", *ALL)
    begin(page)
    expect(page.get_by_text("49.00 EUR · payments.charge")).to_be_visible()
    expect(page.get_by_text("Nobody has asked since the last attempt.")).to_be_visible()

    page.get_by_role("button", name="Ask now").click()
    expect(page.get_by_role("list").get_by_text(entry["id"])).to_be_visible()
    expect(page.get_by_text("maria asked,")).to_be_visible()
    assert (key_of(charge).state, posted(charge)) == ("in_doubt", 0)

    page.get_by_role("button", name="Ask again").click()
    expect(page.get_by_text("This field is required.")).to_be_visible()
    page.locator("form").filter(has_text="settle as it answers").get_by_label("Reason").fill(
        "The gateway is back; asked at 03:12"
    )
    page.get_by_role("button", name="Ask again").click()

    expect(page.get_by_text("Settled as succeeded.")).to_be_visible()
    expect(page.get_by_text("gets the stored 201")).to_be_visible()
    charge.refresh_from_db()
    assert (charge.gateway_reference, posted(charge)) == (entry["id"], 1)
    take(page, pictures, "settled-light")

    # The money and the way back.
    page.get_by_role("link", name=f"{charge.public_id} 49.00 EUR").click()
    page.get_by_role("link", name="Its story:").click()
    expect(page.get_by_role("heading", name="What a retry gets now")).to_be_visible()
    for told in ("Recovery point “prepared”", "Downstream key", "by maria", "The other side"):
        expect(page.locator(".idem-story").get_by_text(told).first).to_be_visible()
    assert acme.charge("tok_answer_lost", key="order-7731", amount=4900).status_code == 201
    assert len(gateway.find("charges", charge.public_id)) == 1


def test_on_ones_own_word_and_with_the_keyboard_alone_while_the_gateway_is_silent(
    open_as: Open, acme: Api, gateway: GatewayProcess
) -> None:
    charge = doubt(acme)
    gateway.kill()
    page = open_as("maria", *ALL)
    begin(page)
    page.get_by_role("button", name="Settle", exact=True).click()
    expect(page.get_by_text("Please correct the errors below.")).to_be_visible()
    settle(page, "Succeeded.", "Their support found it on the phone")
    expect(page.get_by_text("Say what the other side calls it. It does not say")).to_be_visible()
    assert key_of(charge).state == "in_doubt"
    reach(page, 'input[name="record"]')
    page.keyboard.type("gch_by_phone")
    reach(page, 'button[value="settle"]')
    page.keyboard.press("Enter")

    expect(page.get_by_text("Settled.", exact=True)).to_be_visible()
    charge.refresh_from_db()
    assert (charge.gateway_reference, posted(charge)) == ("gch_by_phone", 1)
    event = KeyEvent.objects.get(kind="resolved")
    assert (event.actor, event.reason) == ("maria", "Their support found it on the phone")


def test_what_the_gateway_contradicts_is_not_settled_by_mistake(open_as: Open, acme: Api) -> None:
    charge = doubt(acme)
    page = open_as("maria", *ALL)
    begin(page)
    settle(page, "Refused.", "I misread it", "card_declined")
    expect(page.get_by_role("alert").get_by_text("the other side says otherwise")).to_be_visible()
    expect(page.get_by_label("I know, and settle it so")).not_to_be_checked()
    check_accessible(page)
    assert (key_of(charge).state, posted(charge)) == ("in_doubt", 0)
    settle(page, "Never happened.", "it is not in my list")
    expect(page.get_by_role("alert").get_by_text("the other side says otherwise")).to_be_visible()
    settle(page, "Succeeded.", "I read it again")
    expect(page.get_by_text("Settled.", exact=True)).to_be_visible()
    assert posted(charge) == 1


def test_without_the_permissions_there_is_nothing_to_press(open_as: Open, acme: Api) -> None:
    charge = doubt(acme)
    page = open_as("viewer", "view_idempotencykey")
    begin(page)
    expect(page.get_by_text("Your account may not ask")).to_be_visible()
    expect(page.get_by_text("Your account may not settle")).to_be_visible()
    expect(page.locator("main button")).to_have_count(0)
    expect(page.get_by_role("link", name="Force-fail…")).to_have_count(0)
    expect(page.get_by_text(charge.public_id)).to_have_count(0)
    # Even with a form that a colleague's page had.
    token = {"step": "settle", "choice": "succeeded", "reason": "x"}
    cookie = next(it["value"] for it in page.context.cookies() if it["name"] == "csrftoken")
    headers = {"X-CSRFToken": cookie}
    answer = page.context.request.post(page.url, form=token, headers=headers)
    assert answer.status == 403
    assert key_of(charge).state == "in_doubt"


def test_much_money_takes_two_people(open_as: Open, acme: Api, gateway: GatewayProcess) -> None:
    other, charge = doubt(acme, "other", 4_800_000), doubt(acme, amount=4_900_000)
    maria, bob = open_as("maria", *ALL), open_as("bob", "approve_proposal", *ALL)
    for key in ("other", "order-7731"):
        maria.goto(QUEUE)
        begin(maria, key)
        expect(maria.get_by_text("you propose, and another person has to approve")).to_be_visible()
        settle(maria, "Succeeded.", "The gateway has it")
        expect(maria.get_by_text("Nothing is settled until another person")).to_be_visible()
    assert (key_of(charge).state, posted(charge)) == ("in_doubt", 0)

    # Not by herself, whatever she may.
    maria.get_by_role("link", name="Look at proposal").click()
    expect(maria.get_by_role("button", name="Approve")).to_have_count(0)
    expect(maria.get_by_role("button", name="Take it back")).to_be_visible()
    # Nor by somebody who may only look.
    viewer = open_as("viewer", "view_proposal", "view_idempotencykey")
    viewer.goto(maria.url)
    expect(viewer.get_by_text("Your account may not decide")).to_be_visible()
    expect(viewer.locator("main button")).to_have_count(0)

    bob.goto(maria.url)
    expect(bob.get_by_text("49000.00 EUR").first).to_be_visible()
    bob.get_by_role("button", name="Approve, and carry it out").click()
    expect(bob.get_by_text("This field is required.")).to_be_visible()
    bob.get_by_label("Reason").fill("I asked them as well")
    bob.get_by_role("button", name="Approve, and carry it out").click()
    expect(bob.get_by_text("Approved and carried out.")).to_be_visible()
    [entry] = gateway.find("charges", charge.public_id)
    charge.refresh_from_db()
    assert (charge.gateway_reference, posted(charge)) == (entry["id"], 1)

    bob.goto(QUEUE)
    bob.get_by_role("link", name="Look at proposal").first.click()
    bob.get_by_label("Reason").fill("It is another customer's")
    bob.get_by_role("button", name="Reject").click()
    expect(bob.get_by_text("Rejected. Nothing was settled.")).to_be_visible()
    assert (key_of(other).state, posted(other)) == ("in_doubt", 0)
    told = Proposal.objects.order_by("pk").values_list("status", "decided_by")
    assert list(told) == [("rejected", "bob"), ("approved", "bob")]


def test_a_dead_message_is_sent_again_or_given_up_by_those_who_may(
    open_as: Open, acme: Api
) -> None:
    times = dict.fromkeys(("due_at", "created_at", "queued_at", "settled_at"), timezone.now())
    first, second = (
        OutboxMessage.objects.create(
            message_id=uuid.uuid4(), channel="mail", payload={}, state="dead", **times
        )
        for _ in range(2)
    )
    viewer = open_as("viewer", "view_idempotencykey", "view_outboxmessage")
    viewer.get_by_text("2 dead messages in the outbox").get_by_role("link").click()
    viewer.get_by_role("link", name=str(first.message_id)).click()
    expect(viewer.get_by_role("link", name="Re-send…")).to_have_count(0)
    expect(viewer.get_by_role("link", name="Discard…")).to_have_count(0)
    for name in ("resend", "discard"):
        answer = viewer.goto(f"/admin/idempotency/outboxmessage/{name}/?message={first.pk}")
        assert answer is not None
        assert answer.status == 403

    may = ("view_outboxmessage", "resend_outboxmessage", "discard_outboxmessage")
    page = open_as("maria", *may)
    for message, verb, state in ((first, "Re-send", "pending"), (second, "Discard", "discarded")):
        page.goto(f"/admin/idempotency/outboxmessage/{message.pk}/change/")
        page.get_by_role("link", name=verb).click()
        page.get_by_role("button", name=verb).click()
        expect(page.get_by_text("This field is required.")).to_be_visible()
        page.get_by_label("Reason").fill("they are back")
        page.get_by_role("button", name=verb).click()
        expect(page.get_by_text(f"{verb}: 1 message.")).to_be_visible()
        message.refresh_from_db()
        assert message.state == state
        assert message.history.get().actor == "maria"


def test_a_difference_between_the_ledgers_is_handled_by_those_who_may(
    open_as: Open, acme: Api
) -> None:
    now = timezone.now()
    difference = LedgerDifference.objects.create(
        kind="double", movement="charge", reference="ch_1", moved_at=now, found_at=now
    )
    viewer = open_as("viewer", "view_idempotencykey", "view_ledgerdifference")
    viewer.get_by_text("1 difference to the gateway's ledger").get_by_role("link").click()
    expect(viewer.locator("#result_list").get_by_role("link", name="double")).to_be_visible()
    expect(viewer.locator("select[name=action]")).to_have_count(0)

    page = open_as("maria", "view_ledgerdifference", "handle_ledgerdifference")
    page.goto("/admin/payments/ledgerdifference/?standing=open")
    page.locator("input.action-select").check()
    page.locator("select[name=action]").select_option("mark_as_handled")
    page.get_by_label("How it was handled:").fill("refunded by hand")
    page.get_by_role("button", name="Run").or_(page.get_by_role("button", name="Go")).click()
    expect(page.get_by_text("1 difference marked as handled.")).to_be_visible()
    difference.refresh_from_db()
    assert (difference.handled_by, difference.handling) == ("maria", "refunded by hand")


def test_queue_decision_and_proposal_are_readable_in_light_and_dark_and_on_a_phone(
    open_as: Open, acme: Api, pictures: Path
) -> None:
    bad_night(acme)
    page = open_as("maria", "view_response_body", *ALL)
    page.get_by_role("heading", name="Somebody has to decide").wait_for()
    check_looks(page, pictures, "queue")
    begin(page)
    page.get_by_role("button", name="Ask now").click()
    page.get_by_text("maria asked,").wait_for()
    check_looks(page, pictures, "decide")
    page.goto(QUEUE)
    begin(page, "payout-2026-03-01")
    settle(page, "Succeeded.", "The gateway has it as succeeded; asked at 03:12")
    page.get_by_role("link", name="Look at proposal").click()
    page.get_by_role("button", name="Take it back").wait_for()
    check_looks(page, pictures, "proposal")


def bad_night(acme: Api) -> None:
    """What waits for somebody on a bad night, the oldest first."""
    for key, amount, age in (
        ("payout-2026-03-01", 12_500_000, 184),
        ("order-7731", 4900, 47),
        ("k" * 255, 990, 21),
    ):
        charge = doubt(acme, key, amount)
        keys = IdempotencyKey.objects.filter(pk=charge.idempotency_key_id)
        moment = timezone.now() - timedelta(minutes=age)
        keys.update(created_at=moment - timedelta(seconds=1), recovery_point_at=moment)
        KeyEvent.objects.filter(key_id=charge.idempotency_key_id).update(
            at=moment + timedelta(seconds=9)
        )


def check_looks(page: Page, folder: Path, name: str) -> None:
    """Readable in every look; axe-core reads the page in two that differ in all."""
    # The admin's links fade from one colour to the next, and would be caught on their way.
    page.add_style_tag(content="* { transition: none !important; }")
    for look in LOOKS:
        scheme, size = cast(Any, look.values)
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        check_readable(page)
        if look.id in ("light", "phone-dark"):
            check_accessible(page)
        take(page, folder, f"{name}-{look.id}")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(DESKTOP)


def take(page: Page, folder: Path, name: str) -> None:
    """A picture of the whole page, if it is one of those that are kept."""
    if name in PICTURES:
        page.screenshot(path=folder / f"{name}.png", full_page=True)
