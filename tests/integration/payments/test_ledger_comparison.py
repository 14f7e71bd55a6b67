"""The gateway's ledger beside ours: each planted difference is found, and nothing else is."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import Client
from django.utils import timezone

from payments import charges, refunds, tasks
from payments.gateways.base import MovementsUnknown
from payments.gateways.http import HttpGateway
from payments.models import Charge, LedgerDifference, Refund
from payments.reconciliation import books, job
from payments.reconciliation.job import Comparison, compare_ledgers
from tests.integration.payments.api import Api, at_once
from tests.plugins.gateway import GatewayProcess

pytestmark = pytest.mark.django_db

SOURCES = ["tok_visa", "tok_declined", "tok_answer_lost", "tok_down", "tok_error_after"]


class Day:
    """Begins with the test: what other tests moved at the same gateway was before."""

    def __init__(self) -> None:
        self.began = timezone.now()

    def compare(self, until: datetime | None = None) -> Comparison:
        until = until or timezone.now() + timedelta(minutes=1)
        return compare_ledgers(since=self.began, until=until)


_numbers = itertools.count(10)


@pytest.fixture
def bank(running_gateway: GatewayProcess, settings: Any) -> GatewayProcess:
    """The gateway of all tests, by an adapter of this one's: what fails in others opens no breaker
    here."""
    settings.PAYMENTS_GATEWAY = {"URL": running_gateway.url, "CALLS": next(_numbers)}
    return running_gateway


@pytest.fixture
def day() -> Day:
    return Day()


def moved(bank: GatewayProcess, day: Day) -> list[dict[str, Any]]:
    """What moved at the gateway in this test."""
    began = day.began.isoformat()
    return [entry for entry in bank.ledger() if entry["created"] >= began]


def shown() -> list[tuple[Any, ...]]:
    """What an operator sees of each difference that is there."""
    columns = ("kind", "movement", "reference", "amount_here", "amount_there")
    rows = LedgerDifference.objects.filter(gone_at=None).order_by("kind", "movement", "reference")
    return list(rows.values_list(*columns))


def pending(api: Api, amount: int = 1000) -> Charge:
    return charges.create_pending(merchant=api.merchant, amount=amount, currency="EUR")


def post(movement: Charge | Refund, gateway_id: str) -> None:
    """Write into our ledger that it became this movement of the gateway."""
    service = charges if isinstance(movement, Charge) else refunds
    with transaction.atomic():
        service.succeed(public_id=movement.public_id, gateway_reference=gateway_id)


def charged(bank: GatewayProcess, charge: Charge, **order: Any) -> str:
    """The gateway charges for it; the id of the movement."""
    return str(bank.charge(reference=charge.public_id, **order).json()["id"])


def ordinary_day(api: Api) -> None:
    """Charges of every kind, and refunds: whatever happens on a day without differences."""
    ids = [api.charge(source).json().get("id") for source in SOURCES]
    for charge in filter(None, ids):
        assert api.refund(charge, amount=100).status_code == 201
    assert api.refund(ids[0]).status_code == 201


def missing_here(api: Api, bank: GatewayProcess) -> str:
    bank.charge(reference="ch_nobody", amount=7)
    return "ch_nobody"


def missing_there(api: Api, bank: GatewayProcess) -> str:
    charge = pending(api)
    post(charge, "gch_never")
    return charge.public_id


def amount_differs(api: Api, bank: GatewayProcess) -> str:
    charge = pending(api)
    post(charge, charged(bank, charge, amount=999))
    return charge.public_id


def double(api: Api, bank: GatewayProcess) -> str:
    charge = pending(api)
    post(charge, charged(bank, charge))
    charged(bank, charge)
    return charge.public_id


# Finding


def test_an_ordinary_day_has_no_differences(bank: GatewayProcess, acme: Api, day: Day) -> None:
    ordinary_day(acme)

    result = day.compare()

    assert (result.movements, result.postings) == (7, 7)
    assert (result.found, result.new, result.gone, result.unsure) == (0, 0, 0, 0)
    assert shown() == []


def test_each_of_four_planted_differences_is_found_and_nothing_else(
    bank: GatewayProcess, acme: Api, caplog: pytest.LogCaptureFixture, day: Day
) -> None:
    ordinary_day(acme)
    planted = {plant.__name__: plant(acme, bank) for plant in PLANTED}
    ordinary_day(acme)

    result = day.compare()

    assert (result.found, result.new) == (4, 4)
    assert shown() == [
        ("amount_differs", "charge", planted["amount_differs"], 1000, 999),
        ("double", "charge", planted["double"], 0, 1000),
        ("missing_here", "charge", "ch_nobody", 0, 7),
        ("missing_there", "charge", planted["missing_there"], 1000, 0),
    ]
    assert "4 differences, 4 of them new" in caplog.text


PLANTED = [missing_here, missing_there, amount_differs, double]


def test_refunds_are_compared_as_well(bank: GatewayProcess, acme: Api, day: Day) -> None:
    acme.fund(10_000)
    charge = acme.charge().json()
    moved = Charge.objects.get().gateway_reference

    def refund(amount: int) -> Refund:
        with transaction.atomic():
            return refunds.create_pending(
                merchant=acme.merchant, charge_id=charge["id"], amount=amount
            )

    def given_back(amount: int, reference: str) -> str:
        order = {"charge": moved, "amount": amount, "reference": reference}
        return str(bank.post("/refunds", order).json()["id"])

    given_back(1, "re_nobody")
    never, other, twice = refund(2), refund(3), refund(5)
    post(never, "gre_never")
    post(other, given_back(4, other.public_id))
    post(twice, given_back(5, twice.public_id))
    given_back(5, twice.public_id)

    day.compare()

    assert shown() == [
        ("amount_differs", "refund", other.public_id, 3, 4),
        ("double", "refund", twice.public_id, 0, 5),
        ("missing_here", "refund", "re_nobody", 0, 1),
        ("missing_there", "refund", never.public_id, 2, 0),
    ]


def test_money_that_moved_for_a_charge_that_did_not_succeed_here_is_missing_here(
    bank: GatewayProcess, acme: Api, day: Day
) -> None:
    declined, withdrawn = pending(acme), pending(acme)
    charges.decline(public_id=declined.public_id, code="no")
    charges.withdraw(public_id=withdrawn.public_id)
    for charge in (declined, withdrawn):
        charged(bank, charge)

    day.compare()

    assert [row[0] for row in shown()] == ["missing_here"] * 2


def test_a_charge_that_names_another_ones_movement_is_missing_there(
    bank: GatewayProcess, acme: Api, day: Day
) -> None:
    acme.charge()
    thief = pending(acme)
    post(thief, moved(bank, day)[0]["id"])

    day.compare()

    assert shown() == [("missing_there", "charge", thief.public_id, 1000, 0)]


def test_another_currency_is_another_amount(bank: GatewayProcess, acme: Api, day: Day) -> None:
    charge = pending(acme)
    post(charge, charged(bank, charge, currency="USD"))

    day.compare()

    difference = LedgerDifference.objects.get()
    assert difference.kind == "amount_differs"
    assert (difference.currency_here, difference.currency_there) == ("EUR", "USD")


# What is no difference yet


def test_what_is_still_pending_is_left_to_the_jobs_until_it_is_too_old(
    bank: GatewayProcess, acme: Api, day: Day
) -> None:
    charged(bank, pending(acme))

    assert day.compare().found == 0
    Charge.objects.update(created=timezone.now() - job.PENDING)
    assert day.compare().found == 1
    assert shown()[0][0] == "missing_here"


def test_a_movement_on_the_other_side_of_an_edge_is_no_difference(
    bank: GatewayProcess, acme: Api, day: Day
) -> None:
    acme.charge()
    at = datetime.fromisoformat(moved(bank, day)[0]["created"])
    behind = at + timedelta(microseconds=1)

    earlier = day.compare(until=behind)
    later = compare_ledgers(since=behind, until=at + timedelta(minutes=1))

    assert (later.movements, later.postings, later.found) == (0, 1, 0)
    assert (earlier.movements, earlier.postings, earlier.found) == (1, 0, 0)


def test_a_clock_of_the_gateway_that_is_off_makes_no_difference(
    bank: GatewayProcess, acme: Api, monkeypatch: pytest.MonkeyPatch, day: Day
) -> None:
    acme.charge()
    listed = HttpGateway.movements

    def early(self: HttpGateway, *, since: datetime, until: datetime) -> Any:
        off = timedelta(hours=5)
        return listed(self, since=since - off, until=until - off)

    monkeypatch.setattr(HttpGateway, "movements", early)

    assert day.compare().found == 0


def test_a_posting_that_the_gateway_says_nothing_about_is_no_difference(
    gateway: GatewayProcess, acme: Api, day: Day, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PAYMENTS_GATEWAY = {"URL": gateway.url}
    missing_there(acme, gateway)
    assert day.compare().found == 1
    listed = HttpGateway.movements

    def then_silence(self: HttpGateway, **window: datetime) -> Any:
        yield from listed(self, **window)
        gateway.kill()

    monkeypatch.setattr(HttpGateway, "movements", then_silence)
    result = day.compare()

    # Nor does silence close what was found before.
    assert (result.found, result.unsure, result.gone) == (0, 1, 0)
    assert len(shown()) == 1


def test_a_list_that_breaks_off_is_compared_with_nothing(
    bank: GatewayProcess, acme: Api, monkeypatch: pytest.MonkeyPatch, day: Day
) -> None:
    missing_here(acme, bank)
    day.compare()
    acme.charge()
    listed = HttpGateway.movements

    def breaks_off(self: HttpGateway, **window: datetime) -> Any:
        yield from itertools.islice(listed(self, **window), 1)
        raise MovementsUnknown("no answer")

    monkeypatch.setattr(HttpGateway, "movements", breaks_off)
    with pytest.raises(MovementsUnknown):
        day.compare()
    with pytest.raises(CommandError, match="Not every day was compared"):
        call_command("compare_ledgers")

    assert [row[0] for row in shown()] == ["missing_here"]


def test_a_comparison_that_is_cut_off_has_kept_and_told_what_it_read(
    bank: GatewayProcess,
    acme: Api,
    monkeypatch: pytest.MonkeyPatch,
    day: Day,
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing_here(acme, bank)
    listed = HttpGateway.movements

    def today_only(self: HttpGateway, *, since: datetime, until: datetime) -> Any:
        if until <= day.began:
            raise MovementsUnknown("no answer")
        return listed(self, since=since, until=until)

    monkeypatch.setattr(HttpGateway, "movements", today_only)
    until = timezone.now() + timedelta(minutes=1)
    with pytest.raises(MovementsUnknown):
        compare_ledgers(since=until - timedelta(days=2), until=until)
    assert "missing_here" in [row[0] for row in shown()]
    assert [it.levelname for it in caplog.records if "differences" in it.message] == ["ERROR"]


def test_it_reads_both_sides_in_batches(
    bank: GatewayProcess, acme: Api, monkeypatch: pytest.MonkeyPatch, day: Day
) -> None:
    monkeypatch.setattr(books, "BATCH", 2)
    ordinary_day(acme)
    planted = missing_there(acme, bank)

    result = day.compare()

    assert (result.movements, result.postings) == (7, 8)
    assert [row[2] for row in shown()] == [planted]


# Running again


def test_running_it_again_adds_nothing(
    bank: GatewayProcess, acme: Api, caplog: pytest.LogCaptureFixture, day: Day
) -> None:
    for plant in PLANTED:
        plant(acme, bank)
    day.compare()
    before = list(LedgerDifference.objects.order_by("pk").values())
    caplog.clear()

    result = day.compare()

    assert (result.found, result.new, result.gone) == (4, 0, 0)
    assert list(LedgerDifference.objects.order_by("pk").values()) == before
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.django_db(transaction=True)
def test_two_at_once_write_one_row_each(bank: GatewayProcess, acme: Api, day: Day) -> None:
    for plant in PLANTED:
        plant(acme, bank)

    at_once(day.compare, day.compare, day.compare)

    assert len(shown()) == LedgerDifference.objects.count() == 4


def test_what_is_gone_is_closed_and_comes_back_as_a_new_row(
    bank: GatewayProcess, acme: Api, day: Day
) -> None:
    double(acme, bank)
    ours, other = (entry["id"] for entry in moved(bank, day))
    day.compare()
    first = LedgerDifference.objects.get()
    LedgerDifference.objects.update(handled_at=timezone.now())

    Charge.objects.update(gateway_reference=other)
    result = day.compare()
    assert (result.new, result.gone) == (1, 1)

    Charge.objects.update(gateway_reference=ours)
    result = day.compare()
    assert (result.new, result.gone) == (1, 1)
    again = LedgerDifference.objects.get(gone_at=None)
    assert (again.gateway_id, first.gateway_id) == (other, other)
    assert again.pk != first.pk
    assert again.handled_at is None


def test_what_is_handled_stays_handled_while_it_is_there(
    bank: GatewayProcess, acme: Api, day: Day
) -> None:
    missing_here(acme, bank)
    day.compare()
    LedgerDifference.objects.update(
        handled_at=timezone.now(), handled_by="ann", handling="refunded"
    )

    result = day.compare()

    assert (result.found, result.new) == (1, 0)
    assert LedgerDifference.objects.get().handled_by == "ann"


def test_what_is_outside_the_window_is_left_as_it_is(
    bank: GatewayProcess, acme: Api, day: Day
) -> None:
    missing_here(acme, bank)
    day.compare()

    (there,) = moved(bank, day)
    result = day.compare(until=datetime.fromisoformat(there["created"]))

    assert (result.movements, result.found, result.gone) == (0, 0, 0)
    assert len(shown()) == 1


# Who runs it


def test_the_command_compares_the_last_days_or_what_it_is_told(
    bank: GatewayProcess, acme: Api, day: Day
) -> None:
    missing_here(acme, bank)

    def command(*options: str) -> str:
        out = StringIO()
        call_command("compare_ledgers", *options, stdout=out)
        return out.getvalue()

    # The last hour may still be written down.
    assert command().startswith("0 movements and 0 postings compared: 0 differences")
    until, since = timezone.now().isoformat(), day.began.isoformat()
    assert "1 differences, 1 of them new" in command("--since", since, "--until", until)
    with pytest.raises(CommandError, match="ISO 8601"):
        command("--since", "yesterday")


def test_the_task_compares_and_ends_below_the_brokers_patience(
    bank: GatewayProcess, acme: Api
) -> None:
    from config.celery import app

    tasks.compare_ledgers.run()

    task = app.tasks["payments.compare_ledgers"]
    visibility = app.conf.broker_transport_options["visibility_timeout"]
    assert task.acks_late
    assert task.reject_on_worker_lost
    assert task.soft_time_limit < task.time_limit < visibility
    assert app.conf.beat_schedule["payments.compare_ledgers"]["task"] == task.name


# What others wrote


def test_a_reference_that_no_row_of_ours_could_hold_stops_nothing(
    bank: GatewayProcess, acme: Api, monkeypatch: pytest.MonkeyPatch, day: Day
) -> None:
    """At a provider whose account others use as well."""
    double(acme, bank)
    listed = HttpGateway.movements

    def theirs_too(self: HttpGateway, **window: datetime) -> Any:
        for movement in listed(self, **window):
            yield movement
        yield replace(movement, id="theirs", reference="x" * 299 + "\0")

    monkeypatch.setattr(HttpGateway, "movements", theirs_too)
    day.compare()
    kinds = LedgerDifference.objects.values_list("kind", "reference")
    assert ("missing_here", "x" * 255) in kinds
    assert len(kinds) == 2


def test_a_currency_that_is_none_of_ours_has_its_line(
    difference: LedgerDifference, admin_client: Client
) -> None:
    LedgerDifference.objects.update(amount_there=100, currency_there="HRK")
    page = admin_client.get("/admin/payments/ledgerdifference/")
    assert "100 HRK (minor units)" in page.content.decode()


# The operator


@pytest.fixture
def difference(bank: GatewayProcess, acme: Api, day: Day) -> LedgerDifference:
    double(acme, bank)
    day.compare()
    return LedgerDifference.objects.get()


def mark(client: Client, difference: LedgerDifference, reason: str) -> Any:
    data = {"action": "mark_as_handled", "_selected_action": [difference.pk], "reason": reason}
    return client.post("/admin/payments/ledgerdifference/", data, follow=True)


def test_an_operator_marks_a_difference_as_handled_and_says_how(
    difference: LedgerDifference, admin_client: Client
) -> None:
    page = mark(admin_client, difference, "refunded in their portal")

    assert "1 difference marked as handled." in page.content.decode()
    difference.refresh_from_db()
    assert (difference.handled_by, difference.handling) == ("admin", "refunded in their portal")
    assert LogEntry.objects.get().change_message == "refunded in their portal"
    mark(admin_client, difference, "once more")
    difference.refresh_from_db()
    assert difference.handling == "refunded in their portal"
    assert LogEntry.objects.count() == 1


def test_without_a_reason_nothing_is_marked(
    difference: LedgerDifference, admin_client: Client
) -> None:
    page = mark(admin_client, difference, " ")

    assert "Say how it was handled." in page.content.decode()
    difference.refresh_from_db()
    assert difference.handled_at is None


def test_it_takes_a_permission_of_its_own(difference: LedgerDifference) -> None:
    user = get_user_model().objects.create_user("viewer", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_ledgerdifference"))
    client = Client()
    client.force_login(user)

    assert "mark_as_handled" not in client.get("/admin/payments/ledgerdifference/").content.decode()
    mark(client, difference, "mine")

    difference.refresh_from_db()
    assert difference.handled_at is None


def test_the_list_shows_what_is_open_handled_or_gone(
    difference: LedgerDifference, admin_client: Client
) -> None:
    def listed(standing: str) -> bool:
        page = admin_client.get(f"/admin/payments/ledgerdifference/?standing={standing}")
        return difference.reference in page.content.decode()

    assert [listed(it) for it in ("open", "handled", "gone")] == [True, False, False]
    LedgerDifference.objects.update(handled_at=timezone.now())
    assert [listed(it) for it in ("open", "handled", "gone")] == [False, True, False]
    LedgerDifference.objects.update(gone_at=timezone.now())
    assert [listed(it) for it in ("open", "handled", "gone")] == [False, False, True]


def test_the_page_of_a_difference_links_to_our_charge(
    difference: LedgerDifference, admin_client: Client
) -> None:
    page = admin_client.get(f"/admin/payments/ledgerdifference/{difference.pk}/change/")

    charge = Charge.objects.get(public_id=difference.reference)
    assert f"/admin/payments/charge/{charge.pk}/change/" in page.content.decode()
